"""Lightning among processes that train a model together: who is there, and shares of weights."""

from collections.abc import Mapping
from typing import Any

import torch
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils._pytree import tree_map

from pe_bench.decoder.model import Decoder
from pe_bench.train.process_group import Group


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


def gathered(tensor: Tensor) -> Tensor:
    """Return a tensor as a whole on its device, from the shares of all processes if it has such.

    All processes of the group have to call it.
    """
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def whole(tree: dict[str, Any], group: Group) -> dict[str, Any]:
    """Return a tree with whole tensors on the CPU where it has shares, in the first process.

    All processes of the group have to call it; what the others get is of no use.
    """
    if not group.shards:
        return tree

    def gather(leaf: Any) -> Any:
        if not isinstance(leaf, DTensor):
            return leaf
        tensor = leaf.full_tensor()
        return tensor.cpu() if group.rank == 0 else None

    result: dict[str, Any] = tree_map(gather, tree)
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
