"""Adaptation methods: which parameters are trained when a model continues with another encoding."""

from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor, nn

from pe_bench.config import AdaptConfig, TrainConfig
from pe_bench.decoder.block import Block
from pe_bench.decoder.model import Decoder
from pe_bench.decoder.shifted_sparse import FULL_ATTENTION
from pe_bench.encoding import Encoding
from pe_bench.errors import InputError

GROUPS_PER_ROW = 4
"""Number of groups in LongLoRA: attention stays within a quarter of a training row."""


def trains_all(config: TrainConfig) -> bool:
    """Return whether a phase trains all weights."""
    few = isinstance(config, AdaptConfig) and config.method != "full"
    return bool(config.steps) and not few


def trained_names(model: nn.Module) -> set[str]:
    """Return the names of a module's tensors, without the parameters that are frozen."""
    found = set(model.state_dict())
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if not parameter.requires_grad:
            found.discard(name)
    return found


def saved_part(weights: Mapping[str, Tensor], module: nn.Module, partly: bool) -> dict[str, Tensor]:
    """Return the weights that a checkpoint stores.

    Args:
        weights: weights of the module.
        module: the module.
        partly: whether to leave out the frozen parameters.
    """
    names = trained_names(module) if partly else set(weights)
    return {name: tensor for name, tensor in weights.items() if name in names}


def check_method(encoding: Encoding, config: TrainConfig) -> None:
    """Check that an adaptation method can train an encoding.

    Raises:
        InputError: the method cannot train the encoding.
    """
    if not isinstance(config, AdaptConfig) or not config.steps:
        return
    if config.method == "encoding" and not any(True for _ in encoding.parameters()):
        other = "none" if config.also else "lora"
        raise InputError(
            f"it has no parameters, so --adapt.method encoding would train nothing: use {other}"
        )
    pairs = any(map(encoding.overrides, ("bias", "product", "rewrite_logits")))
    if config.method == "longlora" and pairs:
        raise InputError(FULL_ATTENTION)


def check_libraries(config: AdaptConfig) -> None:
    """Check that the library for low-rank adapters is installed.

    Raises:
        InputError: the library is missing.
    """
    if not (config.low_rank and config.steps):
        return
    try:
        import peft  # noqa: F401
    except ImportError:
        raise InputError(
            f"--adapt.method {config.method} needs peft: pip install 'pe-bench[lora]'"
        ) from None


def prepare(model: Decoder, config: TrainConfig, seed: int) -> None:
    """Freeze the parameters that the method does not train, and add its low-rank adapters.

    Args:
        model: model with the weights to start from.
        config: config of the phase; only an `AdaptConfig` has a method.
        seed: seed of the adapters' weights.
    """
    if not isinstance(config, AdaptConfig) or config.method == "full":
        return
    if config.low_rank:
        _add_low_rank(model, config, seed)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(_is_trained(name, config))
        if parameter.requires_grad:  # bfloat16 is too coarse for the updates
            parameter.data = parameter.data.to(torch.promote_types(parameter.dtype, torch.float32))
    if config.method == "longlora":
        length = config.length or model.config.train_length
        model.group_length = max(2, length // GROUPS_PER_ROW)


def finish(model: Decoder, config: TrainConfig) -> None:
    """Undo `prepare`, and merge low-rank adapters into the weights."""
    if not isinstance(config, AdaptConfig):
        return
    model.group_length = None
    model.requires_grad_(True)
    if config.low_rank:
        _merge(model)
    if config.also_trained:
        narrow = cast(Block, model.layers[0]).mlp.up_proj.weight.dtype
        for name, parameter in model.named_parameters():
            if not name.startswith("encodings."):
                parameter.data = parameter.data.to(narrow)


def _is_trained(name: str, config: AdaptConfig) -> bool:
    """Return whether a method that does not train everything trains a parameter."""
    if "lora_" in name:
        return True
    if name.startswith("encodings."):
        return config.method not in ("lora", "none")
    if name.startswith("embed_tokens"):  # if embeddings are tied, also the head
        return "embeddings" in config.also_trained
    return "norm" in name and "norms" in config.also_trained


def _add_low_rank(model: Decoder, config: AdaptConfig, seed: int) -> None:
    from peft import LoraConfig, inject_adapter_in_model

    torch.manual_seed(seed)
    targets = config.targets.split("+")
    lora = LoraConfig(r=config.rank, lora_alpha=2 * config.rank, target_modules=targets)
    inject_adapter_in_model(lora, model.layers)


def _merge(model: Decoder) -> None:
    """Replace each adapted projection by a plain projection with merged weights."""
    from peft.tuners.lora import LoraLayer

    for block in model.layers:
        for module in block.modules():
            for name, child in list(module.named_children()):
                if isinstance(child, LoraLayer):
                    child.merge()
                    plain = child.get_base_layer()
                    assert isinstance(plain, nn.Linear)
                    setattr(module, name, plain)
