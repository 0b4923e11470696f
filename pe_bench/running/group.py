"""Processes that train a model together: each has a share of every batch's rows.

The loss is a mean over all targets of a batch, so gradients of shares are added, not averaged: the
sum is the gradient of the whole batch, however many targets a share has. Each process makes the
whole batch and draws the same random numbers as one process would.
"""

import datetime
import os
import sys
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
import torch.distributed as dist
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, nn
from torch._C._distributed_c10d import TCPStore
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils._pytree import tree_map

from pe_bench.config import IGNORE
from pe_bench.decoder.model import Decoder

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
        folder: of its checkpoints.
        resumes: whether it goes on from a checkpoint there.
    """

    identity: str
    subset: str | None
    seed: int
    lr: float
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


class Together(DDPStrategy):
    """Lightning's strategy for processes that are there already, without its wrapper of the model.

    Args:
        group: this process's place.
        decoder: the model.
    """

    def __init__(self, group: Group, decoder: Decoder) -> None:
        super().__init__(cluster_environment=_Place(group))
        self.group = group
        self.decoder = decoder

    def configure_ddp(self) -> None:
        if self.group.shards:
            _shard(self.decoder, self.group, self.root_device)

    def lightning_module_state_dict(self) -> dict[str, Any]:
        return whole(super().lightning_module_state_dict(), self.group)

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        return whole(super().optimizer_state(optimizer), self.group)

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        if self.group.shards:
            pairs = zip(self.optimizers, checkpoint["optimizer_states"], strict=True)
            states = [_cut(optimizer, state) for optimizer, state in pairs]
            checkpoint = {**checkpoint, "optimizer_states": states}
        super().load_optimizer_state_dict(checkpoint)

    def teardown(self) -> None:
        if not self.group.shards:
            super().teardown()
            return
        # What super() does, but that shares stay on their device: they cannot leave it.
        self.precision_plugin.teardown()
        assert self.accelerator is not None
        self.accelerator.teardown()


class _Place(LightningEnvironment):
    """Tells Lightning which process this is, and that the others are there."""

    def __init__(self, group: Group) -> None:
        super().__init__()
        self.group = group

    @property
    def creates_processes_externally(self) -> bool:
        return True

    def local_rank(self) -> int:
        return self.group.rank

    def node_rank(self) -> int:
        return 0


def whole(tree: dict[str, Any], group: Group) -> dict[str, Any]:
    """Return a tree with whole tensors on the CPU where it has shares, in the first process.

    All processes of the group have to call it; what the others get is of no use.
    """
    if not group.shards:
        return tree

    def gathered(leaf: Any) -> Any:
        if not isinstance(leaf, DTensor):
            return leaf
        tensor = leaf.full_tensor()
        return tensor.cpu() if group.rank == 0 else None

    result: dict[str, Any] = tree_map(gathered, tree)
    return result


def _shard(model: Decoder, group: Group, device: torch.device) -> None:
    """Leave this process its share of every weight, block by block."""
    mesh = init_device_mesh(device.type, (group.size,))
    for part in (*model.layers, model):
        sharded = fully_shard(part, mesh=mesh)
        # Gradients are added up; gloo knows no other factor.
        sharded.set_force_sum_reduction_for_comms(True)
        sharded.set_gradient_divide_factor(1.0)
    register_fsdp_forward_method(model, "token_losses")


def _cut(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return an optimizer's state with this process's shares of its tensors."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    names = [name for group in state["param_groups"] for name in group["params"]]
    moments = {}
    for name, parameter in zip(names, parameters, strict=True):
        moments[name] = {
            key: _share_of(value, parameter) for key, value in state["state"].get(name, {}).items()
        }
    return {**state, "state": moments}


def _share_of(value: Any, parameter: nn.Parameter) -> Any:
    if not isinstance(parameter, DTensor) or getattr(value, "shape", None) != parameter.shape:
        return value
    mesh = parameter.device_mesh
    return distribute_tensor(value.to(parameter.device), mesh, parameter.placements)
