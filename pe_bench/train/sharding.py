"""Sharded weights ("fsdp"): every rank holds a shard of each weight, its gradient and its moments.

With any other strategy these functions return their arguments.
"""

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils._pytree import tree_map

from pe_bench.decoder.model import Decoder
from pe_bench.train.process_group import ProcessGroup


def shard(model: Decoder, group: ProcessGroup, device: torch.device) -> None:
    """Replace every weight by this rank's shard, block by block."""
    # The losses are a view, but nothing changes them in place.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view")
    mesh = init_device_mesh(device.type, (group.size,))
    for part in (*model.layers, model):
        sharded = fully_shard(part, mesh=mesh)
        # Sum the gradients. gloo supports no other factor.
        sharded.set_force_sum_reduction_for_comms(True)
        sharded.set_gradient_divide_factor(1.0)
    register_fsdp_forward_method(model, "token_losses")


def gather(tensor: Tensor) -> Tensor:
    """Gather and return a tensor from the shards of all ranks, on its device.

    All ranks have to call this.
    """
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def gather_tree(tree: dict[str, Any], group: ProcessGroup) -> dict[str, Any]:
    """Gather and return the tensors of a tree, on the CPU, in place of shards.

    All ranks have to call this. Only the first rank gets the tensors; the others get None in place
    of shards.
    """
    if not group.shards_weights:
        return tree

    def gather_leaf(leaf: Any) -> Any:
        if not isinstance(leaf, DTensor):
            return leaf
        tensor = leaf.full_tensor()
        return tensor.cpu() if group.rank == 0 else None

    result: dict[str, Any] = tree_map(gather_leaf, tree)
    return result


def sharded_optimizer_state(
    state: Mapping[str, Any], optimizer: torch.optim.Optimizer, group: ProcessGroup
) -> dict[str, Any]:
    """Return a gathered optimizer state with this rank's shards of its tensors."""
    if not group.shards_weights:
        return dict(state)
    parameters = [p for each in optimizer.param_groups for p in each["params"]]
    names = [name for each in state["param_groups"] for name in each["params"]]
    moments = {}
    for name, parameter in zip(names, parameters, strict=True):
        moments[name] = {
            key: _sharded(value, parameter) for key, value in state["state"].get(name, {}).items()
        }
    return {**state, "state": moments}


def _sharded(value: Any, parameter: nn.Parameter) -> Any:
    if not isinstance(parameter, DTensor) or getattr(value, "shape", None) != parameter.shape:
        return value
    mesh = parameter.device_mesh
    return distribute_tensor(value.to(parameter.device), mesh, parameter.placements)
