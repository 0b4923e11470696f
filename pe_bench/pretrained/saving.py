"""Save a decoder as a Hugging Face folder: config.json, safetensors, tokenizer.json.

If a class of transformers computes the same, the model is saved as a plain model of that class,
such as a Llama. Otherwise the folder contains code that imports this package, and
`AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)` loads it.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pe_bench.config import ModelConfig
from pe_bench.decoder.model import Decoder, MakeEncoding
from pe_bench.decoder.unsaved import find_unsaved
from pe_bench.encoding import Encoding
from pe_bench.errors import InputError
from pe_bench.pretrained.families import FAMILIES
from pe_bench.pretrained.llama_config import make_config
from pe_bench.pretrained.plain import plain_config
from pe_bench.pretrained.tensor_names import HEAD, TensorNames
from pe_bench.pretrained.weight_files import INDEX, WHOLE
from pe_bench.registry import plugins
from pe_bench.registry.options import plugin_options
from pe_bench.registry.plugins import Plugin
from pe_bench.system.files import saving, write_atomic, write_json
from pe_bench.text.tokenizer import Tokenizer
from pe_bench.text.tokenizer_files import tokenizer_files
from pe_bench.train.tensor_file import write_tensors

SHARD = 2 * 2**30
"""Approximate size of a file in bytes. A file is assembled in memory."""

MODELING = "modeling_pe_bench.py"
CODE = '''"""Loads this folder into transformers; the package pe-bench has to be installed."""

from pe_bench.pretrained.inside import PeBenchConfig, PeBenchForCausalLM

__all__ = ["PeBenchConfig", "PeBenchForCausalLM"]
'''


def save_checkpoint(
    model: Decoder,
    folder: Path | str,
    encoding: str,
    *,
    tokenizer: Tokenizer | None = None,
) -> None:
    """Write a model as a Hugging Face folder.

    Args:
        model: the model.
        folder: a new or empty folder.
        encoding: spec of the encoding of the model.
        tokenizer: tokenizer of the model; None: the model has no text.

    Raises:
        InputError: the folder is not empty, the model has another encoding, or random values of
            the encoding would not be saved.
        SavingError: the folder cannot be written.
    """
    plugin = plugins.load("encoding", encoding)
    check_saved(plugin.make, model.config)
    with torch.random.fork_rng(devices=[]):  # a new encoding has random weights
        others = [plugin.make(model.config, layer) for layer in range(len(model.encodings))]
    for own, other in zip(model.encodings, others, strict=True):
        if not _is_same(own, other):
            raise InputError(f"the encoding of the model is not '{encoding}': give its spec")
    write_folder(model, Path(folder), plugin, tokenizer)


def check_saved(make_encoding: MakeEncoding, config: ModelConfig) -> None:
    """Check that all random values of an encoding are saved with a model.

    Raises:
        InputError: one is not saved.
    """
    unsaved = find_unsaved(make_encoding, config)
    if unsaved:
        raise InputError(unsaved)


def _is_same(encoding: nn.Module, other: nn.Module) -> bool:
    """Return whether two encodings have the same class, spec, settings and constants.

    The spec of an encoding is unknown if its class was called directly. Weights and buffers that
    are saved with the model are not compared.
    """
    if getattr(encoding, "made_from", "") not in ("", other.made_from):
        return False
    ours, theirs = dict(encoding.named_modules()), dict(other.named_modules())
    if ours.keys() != theirs.keys():
        return False
    for name, module in ours.items():
        if type(module) is not type(theirs[name]) or _settings(module) != _settings(theirs[name]):
            return False
    saved = encoding.state_dict()
    constants = dict(other.named_buffers())
    return all(
        name in constants and torch.equal(buffer.cpu(), constants[name].to(buffer).cpu())
        for name, buffer in encoding.named_buffers()
        if name not in saved
    )


def _settings(module: nn.Module) -> dict[str, Any]:
    """Return the attributes of a module that have the names of its options.

    Other attributes may change in a forward pass.
    """
    plain = (bool, int, float, str, tuple, type(None))
    options = plugin_options(type(module)) if isinstance(module, Encoding) else []
    found = {option.name: vars(module).get(option.name) for option in options}
    return {name: value for name, value in found.items() if isinstance(value, plain)}


def write_folder(
    model: Decoder, folder: Path, encoding: Plugin, tokenizer: Tokenizer | None = None
) -> None:
    """Implement `save_checkpoint`, given the encoding."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} is not empty: give a new folder")
    plain = plain_config(model)
    config = plain or make_config(model.config, encoding)
    names = TensorNames(FAMILIES[plain["model_type"]]) if plain else None
    with saving(folder):
        folder.mkdir(parents=True, exist_ok=True)
        _write_weights(model, folder, names)
        for name, content in (tokenizer_files(tokenizer) if tokenizer else {}).items():
            write_atomic(folder / name, content)
        if plain is None:
            write_atomic(folder / MODELING, CODE)
    if tokenizer is not None:
        config |= {"bos_token_id": tokenizer.bos, "eos_token_id": tokenizer.eos}
        config["pad_token_id"] = tokenizer.pad
    if plain is not None and not model.encoding.prefix_consistent:
        config["use_cache"] = False  # a cache keeps keys that a longer text rotates differently
    config["dtype"] = str(model.embed_tokens.weight.dtype).removeprefix("torch.")
    write_json(folder / "config.json", config)


def _write_weights(model: Decoder, folder: Path, names: TensorNames | None) -> None:
    """Write one safetensors file, or several and their index; names: None for our own class."""
    weights: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        if not (name == HEAD and model.config.tied_embeddings):
            weights[names.in_files(name) if names else f"model.{name}"] = tensor
    shards = _shards(weights)
    if len(shards) == 1:
        _write_file(folder / WHOLE, shards[0])
        return
    shard_of: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        _write_file(folder / name, shard)
        shard_of |= dict.fromkeys(shard, name)
    total = sum(tensor.nbytes for tensor in weights.values())
    write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": shard_of})


def _shards(weights: dict[str, Tensor]) -> list[dict[str, Tensor]]:
    """Divide weights, in order, into parts of about SHARD bytes."""
    shards: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, tensor in weights.items():
        if shards[-1] and size + tensor.nbytes > SHARD:
            shards.append({})
            size = 0
        shards[-1][name] = tensor
        size += tensor.nbytes
    return shards


def _write_file(path: Path, shard: dict[str, Tensor]) -> None:
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in shard.items()}
    write_tensors(path, tensors, {"format": "pt"})
