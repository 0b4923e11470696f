"""Checkpoints that hold no code: tensors in the safetensors format, all else as JSON.

A file has the size of its header, the header in JSON, then the tensors' bytes, as the safetensors
library reads and writes. Its metadata keep what the file belongs to, its SHA-256, and the tree of
dicts and lists that the tensors are in. Nothing in it is ever run.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import CheckpointIO
from torch import Tensor

from pe_bench.system.files import write_atomic
from pe_bench.system.sealed import DamagedError

SUFFIX = ".safetensors"
TYPES = {
    "BF16": torch.bfloat16,
    "BOOL": torch.bool,
    "F16": torch.float16,
    "F32": torch.float32,
    "F64": torch.float64,
    "I32": torch.int32,
    "I64": torch.int64,
    "U8": torch.uint8,
}
NAMES = {dtype: name for name, dtype in TYPES.items()}
ALIGNED = 8  # bytes; the header is padded to a multiple


def write_checkpoint(path: Path, content: Mapping[str, Any], *, of: str) -> None:
    """Write a tree of dicts and lists of tensors, numbers and texts, atomically.

    Args:
        path: of the file.
        content: the tree.
        of: what it belongs to.
    """
    tensors: dict[str, Tensor] = {}
    tree = _without_tensors(content, "", tensors)
    header: dict[str, Any] = {}
    parts: list[bytes] = []
    end = 0
    for name, tensor in tensors.items():
        part = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        parts.append(part)
        header[name] = {
            "dtype": NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [end, end + len(part)],
        }
        end += len(part)
    data = b"".join(parts)
    header["__metadata__"] = {"of": of, "tree": json.dumps(tree)}
    header["__metadata__"]["sha256"] = _seal(header, data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % ALIGNED)
    write_atomic(path, len(text).to_bytes(8, "little") + text + data)


def read_checkpoint(path: Path, *, of: str) -> dict[str, Any]:
    """Return the tree that `write_checkpoint` has written; tuples have become lists.

    Raises:
        FileNotFoundError: there is none.
        DamagedError: it is not what was written, or belongs to something else.
    """
    try:
        whole = path.read_bytes()
        size = int.from_bytes(whole[:8], "little")
        header = json.loads(whole[8 : 8 + size])
        data = bytearray(whole[8 + size :])
        about = header["__metadata__"]
        sealed = about.pop("sha256") == _seal(header, data)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, TypeError, AttributeError, KeyError, RecursionError):
        raise DamagedError(path, "is no checkpoint, or is cut short") from None
    if not sealed:
        raise DamagedError(path, "is not as it was written, its checksum is another one")
    if about["of"] != of:
        raise DamagedError(path, f"belongs to {about['of']}, not to {of}")
    del header["__metadata__"]
    try:
        tensors = {name: _tensor(data, **entry) for name, entry in header.items()}
        content: dict[str, Any] = _with_tensors(json.loads(about["tree"]), tensors)
    except (ValueError, TypeError, KeyError, RuntimeError):  # someone else's, well sealed
        raise DamagedError(path, "is no checkpoint") from None
    return content


class CheckpointFiles(CheckpointIO):
    """Lets Lightning write and read checkpoints of this form.

    Args:
        of: what they belong to.
        content: of the checkpoint to go on from, if any.
    """

    def __init__(self, of: str, content: dict[str, Any] | None) -> None:
        self.of = of
        self.content = content

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        write_checkpoint(Path(path), checkpoint, of=self.of)

    def load_checkpoint(self, path: Any, *args: Any, **more: Any) -> dict[str, Any]:
        assert self.content is not None
        return self.content

    def remove_checkpoint(self, path: Any) -> None:
        Path(path).unlink(missing_ok=True)


def _seal(header: Mapping[str, Any], data: bytes | bytearray) -> str:
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    digest.update(data)
    return digest.hexdigest()


def _tensor(data: bytearray, dtype: str, shape: list[int], data_offsets: list[int]) -> Tensor:
    start, stop = data_offsets
    if start == stop:
        return torch.empty(shape, dtype=TYPES[dtype])
    part = torch.frombuffer(data, dtype=torch.uint8, count=stop - start, offset=start)
    return part.clone().view(TYPES[dtype]).reshape(shape)


def _without_tensors(node: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """Return a tree as JSON has it, and put its tensors, by their places in it, into `tensors`."""
    if isinstance(node, Tensor):
        tensors[name] = node
        return {"tensor": name}
    if isinstance(node, Mapping):  # with its keys as values: some are numbers
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
