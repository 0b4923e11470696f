"""Processes that train a model together: each has a share of every batch's rows.

The loss is a mean over all targets of a batch, so gradients of shares are added, not averaged: the
sum is the gradient of the whole batch, however many targets a share has. Each process makes the
whole batch and draws the same random numbers as one process would.
"""

import datetime
import os
import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import TCPStore

from pe_bench.config import IGNORE

Strategy = Literal["ddp", "fsdp"]
LOOPBACK = {"linux": "lo", "darwin": "lo0"}
LONGEST_WAIT = datetime.timedelta(hours=12)  # a process that has died is found by other means


@dataclass(frozen=True)
class Group:
    """One process among those that train a model together.

    Attributes:
        rank: number of this process; the first, 0, saves and evaluates.
        size: number of processes.
        strategy: "ddp": each has the whole model; "fsdp": each has a share of every weight, its
            gradient and its moments, and gathers a block's weights where it needs them.
    """

    rank: int = 0
    size: int = 1
    strategy: Strategy = "ddp"

    @property
    def shards(self) -> bool:
        """Whether weights are shared out too."""
        return self.size > 1 and self.strategy == "fsdp"

    def share(self, tokens: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return this process's rows of (b, T) each; one without a target if there are too few."""
        own = tokens.tensor_split(self.size)[self.rank]
        if len(own):
            return own, targets.tensor_split(self.size)[self.rank]
        return tokens[:1], torch.full_like(targets[:1], IGNORE)

    def any(self, flag: bool) -> bool:
        """Tell whether a flag is set in any process; no GPU is waited for."""
        if self.size == 1:
            return flag
        flags = torch.tensor(int(flag))
        dist.all_reduce(flags, dist.ReduceOp.MAX)
        return bool(flags)

    def add_up(self, parameters: Iterable[nn.Parameter], loss: Tensor) -> Tensor:
        """Add up gradients in place, and losses, of all processes; return the loss, a scalar.

        One message has them all. Lightning's wrapper sends each layer's while others are computed,
        but needs equal shares, a use of every parameter, and no process short of memory.
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

    def spread(self, model: nn.Module) -> None:
        """Give all processes the weights of the first."""
        if self.size == 1:
            return
        for tensor in model.state_dict().values():
            dist.broadcast(tensor, 0)


ALONE = Group()


class Team(Protocol):
    """The other processes that train with this one, the first.

    Attributes:
        devices: number of processes, this one included.
        strategy: of all of them.
    """

    devices: int
    strategy: Strategy

    def gather(self, phase: "Phase") -> AbstractContextManager[Group]:
        """Let the others begin a phase, and end it with this process."""
        ...


@dataclass(frozen=True)
class Phase:
    """A training phase of a run, in terms that any process understands.

    Attributes:
        identity: stands for all that decides the weights.
        subset: that it is for; None: it serves all.
        seed: of weights and batches.
        lr: learning rate.
        value: of the encoding's tunable option, None for its default.
        folder: of its checkpoints.
        resumes: whether it goes on from a checkpoint there.
    """

    identity: str
    subset: str | None
    seed: int
    lr: float
    value: str | None
    folder: Path
    resumes: bool = False


def meet(group: Group, device: str, store: TCPStore) -> None:
    """Connect this process with the others of a group, on this machine.

    Args:
        group: this process's place.
        device: "cpu" or "cuda", of which each process has the one of its rank.
        store: by which they find each other.
    """
    if sys.platform in LOOPBACK:  # or gloo asks the network for this machine's name
        os.environ.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK[sys.platform])
    backend = "gloo"
    if device == "cuda":
        torch.cuda.set_device(group.rank)
        backend = "cpu:gloo,cuda:nccl"
    dist.init_process_group(
        backend, store=store, rank=group.rank, world_size=group.size, timeout=LONGEST_WAIT
    )
