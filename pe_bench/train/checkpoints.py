"""Format of checkpoint files: safetensors with a JSON tree. Reading a file never runs code.

The metadata contain the key of the checkpoint, the tree of dicts and lists that refers to the
tensors, and the SHA-256 of all content.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import torch
from torch import Tensor

from pe_bench.system.sealed import DamagedError
from pe_bench.train.tensor_file import write_tensors

SUFFIX = ".safetensors"


def write_checkpoint(path: Path, content: Mapping[str, Any], *, owner: str) -> None:
    """Write a tree of dicts and lists of tensors, numbers and texts, atomically.

    Args:
        path: path of the file.
        content: the tree.
        owner: key of its owner, such as a digest of the settings.
    """
    found: dict[str, Tensor] = {}
    tree = json.dumps(_without_tensors(content, "", found))
    tensors: dict[str, Tensor] = {}
    pointers: set[int] = set()
    for name, tensor in found.items():
        tensors[name] = tensor.detach().cpu().contiguous()
        if tensors[name].data_ptr() in pointers:  # safetensors refuses shared memory
            tensors[name] = tensors[name].clone()
        pointers.add(tensors[name].data_ptr())
    about = {"of": owner, "tree": tree, "sha256": _seal(owner, tree, tensors)}
    write_tensors(path, tensors, about)


def read_checkpoint(path: Path, *, owner: str) -> dict[str, Any]:
    """Return the tree written by `write_checkpoint`, with lists in place of tuples.

    Raises:
        FileNotFoundError: there is no file.
        DamagedError: the content has changed, or the file has another owner.
    """
    try:
        with safetensors.safe_open(path, "pt") as file:
            about = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        sealed = about["sha256"] == _seal(about["of"], about["tree"], tensors)
    except FileNotFoundError:
        raise
    except (OSError, KeyError, safetensors.SafetensorError):
        raise DamagedError(path, "is not a checkpoint, or is truncated") from None
    if not sealed:
        raise DamagedError(path, "has changed since it was written: its checksum differs")
    if about["of"] != owner:
        raise DamagedError(path, f"belongs to {about['of']}, not to {owner}")
    try:
        content: dict[str, Any] = _with_tensors(json.loads(about["tree"]), tensors)
    except (ValueError, TypeError, KeyError, RecursionError):  # sealed by another program
        raise DamagedError(path, "is not a checkpoint") from None
    return content


def _seal(owner: str, tree: str, tensors: Mapping[str, Tensor]) -> str:
    kinds = {name: [str(t.dtype), list(t.shape)] for name, t in sorted(tensors.items())}
    digest = hashlib.sha256(json.dumps([owner, tree, kinds]).encode())
    for name in kinds:
        digest.update(tensors[name].reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _without_tensors(node: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """Return a tree for JSON; move its tensors to `tensors`, named by their paths in the tree."""
    if isinstance(node, Tensor):
        tensors[name] = node
        return {"tensor": name}
    if isinstance(node, Mapping):  # store keys as values, because some are numbers
        return {
            "items": [[k, _without_tensors(v, f"{name}/{k}", tensors)] for k, v in node.items()]
        }
    if isinstance(node, list | tuple):
        return [_without_tensors(v, f"{name}/{i}", tensors) for i, v in enumerate(node)]
    if node is None or isinstance(node, bool | int | float | str):
        return node
    raise TypeError(f"a checkpoint cannot hold {type(node).__name__} ({name})")


def _with_tensors(node: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(node, list):
        return [_with_tensors(each, tensors) for each in node]
    if not isinstance(node, dict):
        return node
    if "tensor" in node:
        return tensors[node["tensor"]]
    return {key: _with_tensors(value, tensors) for key, value in node["items"]}
