"""Processes that train a model together: each rank has a shard of the rows of every batch.

The loss is a mean over all targets of a batch, so gradients of the shards are summed (all-reduce
SUM), not averaged: the sum is the gradient of the whole batch, however many targets a shard has.
Each rank makes the whole batch and draws the same random numbers as a single process would.
"""

import datetime
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import TCPStore

from pe_bench.config import IGNORE

Strategy = Literal["ddp", "fsdp"]
LOOPBACK = {"linux": "lo", "darwin": "lo0"}
TIMEOUT = datetime.timedelta(hours=12)  # dead processes are detected by other means


@dataclass(frozen=True)
class ProcessGroup:
    """One rank of the processes that train a model together.

    Attributes:
        rank: number of this process; the first, 0, saves and evaluates.
        size: number of processes.
        strategy: "ddp": each rank has the whole model; "fsdp": each has a shard of every weight,
            its gradient and its moments, and gathers the weights of a block to use them.
    """

    rank: int = 0
    size: int = 1
    strategy: Strategy = "ddp"

    @property
    def shards_weights(self) -> bool:
        """Whether each rank has only a shard of the weights."""
        return self.size > 1 and self.strategy == "fsdp"

    def shard_rows(self, tokens: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return this rank's rows of (b, T) tensors, or a row without targets if it has none."""
        own = tokens.tensor_split(self.size)[self.rank]
        if len(own):
            return own, targets.tensor_split(self.size)[self.rank]
        return tokens[:1], torch.full_like(targets[:1], IGNORE)

    def any(self, flag: bool) -> bool:
        """Return whether a flag is set in any process, without synchronising with a GPU."""
        if self.size == 1:
            return flag
        flags = torch.tensor(int(flag))
        dist.all_reduce(flags, dist.ReduceOp.MAX)
        return bool(flags)

    def all_reduce(self, parameters: Iterable[nn.Parameter], loss: Tensor) -> Tensor:
        """Sum gradients (in place) and losses over all ranks; return the loss, a scalar.

        A single message contains all of them. DistributedDataParallel would send the gradients of a
        layer while others are computed. But it requires equal shards, that every parameter is used,
        and that no rank runs out of memory.
        """
        if self.size == 1:
            return loss
        from torch.distributed.tensor import DTensor  # late: it takes a second

        found = [p.grad for p in parameters if p.grad is not None]
        gradients = [gradient for gradient in found if not isinstance(gradient, DTensor)]
        message = torch.cat([loss.view(1), *[gradient.flatten() for gradient in gradients]])
        dist.all_reduce(message)
        sums = message[1:].split([gradient.numel() for gradient in gradients])
        for gradient, total in zip(gradients, sums, strict=True):
            gradient.copy_(total.view_as(gradient))
        return message[0]

    def broadcast(self, model: nn.Module) -> None:
        """Copy the weights of the first rank to all others."""
        if self.size == 1:
            return
        for tensor in model.state_dict().values():
            dist.broadcast(tensor, 0)


SINGLE_PROCESS = ProcessGroup()


def connect(group: ProcessGroup, device: str, store: TCPStore) -> None:
    """Connect this process with the other ranks of a group, on this machine.

    Args:
        group: the group and this process's rank.
        device: "cpu" or "cuda"; each rank uses the GPU with its number.
        store: store through which the ranks find each other.
    """
    if sys.platform in LOOPBACK:  # otherwise gloo looks up the host name on the network
        os.environ.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK[sys.platform])
    backend = "gloo"
    if device == "cuda":
        torch.cuda.set_device(group.rank)
        backend = "cpu:gloo,cuda:nccl"
    dist.init_process_group(
        backend, store=store, rank=group.rank, world_size=group.size, timeout=TIMEOUT
    )
