"""The safetensors files of a folder: which tensors they have, and how to read them."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import safetensors
import torch
from torch import Tensor

from pe_bench.errors import InputError
from pe_bench.pretrained.tensor_names import EMBEDDINGS, HEAD, TensorNames

WHOLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
AGAIN = "download it again"
BLOCKS = 256
BLOCK = 4096  # bytes


def find_tensors(folder: Path) -> dict[str, tuple[Path, tuple[int, ...]]]:
    """Return the file and the shape of each tensor of a folder, from the headers.

    Raises:
        InputError: files are missing or damaged.
    """
    found: dict[str, tuple[Path, tuple[int, ...]]] = {}
    for path in _files(folder):
        try:
            with safetensors.safe_open(path, "pt") as file:
                for name in file.keys():  # noqa: SIM118  # no mapping
                    found[name] = (path, tuple(file.get_slice(name).get_shape()))
        except FileNotFoundError:
            raise InputError(
                f"{folder} has no {path.name}, which its index names: {AGAIN}"
            ) from None
        except (OSError, safetensors.SafetensorError) as error:
            raise InputError(
                f"{path} is truncated, or not a safetensors file ({error}): {AGAIN}"
            ) from None
    return found


def read_tensors(path: Path, names: list[str]) -> Iterator[tuple[str, Tensor]]:
    """Yield tensors of a file, one at a time."""
    for name in names:
        # The file is opened for each tensor, because it keeps tensors in memory while it is open.
        with safetensors.safe_open(path, "pt") as file:
            tensor = file.get_tensor(name)
        yield name, tensor


def has_own_head(folder: Path, names: TensorNames) -> bool:
    """Return whether a folder has a head that differs from the embeddings; False without files.

    transformers keeps such a head even if config.json says that the embeddings are tied.

    Raises:
        InputError: files are damaged.
    """
    if not any((folder / name).is_file() for name in (WHOLE, INDEX)):
        return False
    entries: dict[str, tuple[Path, str]] = {}
    for name, (path, _) in find_tensors(folder).items():
        entries |= {part.name: (path, name) for part in names.parts(name)}
    if not {HEAD, EMBEDDINGS} <= entries.keys():
        return False
    matrices = []
    for own in (HEAD, EMBEDDINGS):
        path, name = entries[own]
        matrices += [tensor for _, tensor in read_tensors(path, [name])]
    return not torch.equal(*matrices)


def sample_files(folder: Path) -> bytes:
    """Return a SHA-256 of sizes, headers and evenly spaced blocks of the safetensors files.

    Files may have many gigabytes. Samples suffice because training changes nearly every number.

    Raises:
        InputError: there are no safetensors files.
    """
    digest = hashlib.sha256()
    for path in _files(folder):
        size = path.stat().st_size
        digest.update(f"{path.name} {size} ".encode())
        with path.open("rb") as file:
            header = int.from_bytes(file.read(8), "little")
            digest.update(file.read(min(header, size)))
            for block in range(BLOCKS):
                file.seek(block * max(0, size - BLOCK) // (BLOCKS - 1))
                digest.update(file.read(BLOCK))
    return digest.digest()


def _files(folder: Path) -> list[Path]:
    """Return the safetensors files of a folder.

    Raises:
        InputError: there are no safetensors files.
    """
    if (folder / WHOLE).is_file():  # preferred to an index, as in transformers
        return [folder / WHOLE]
    index = folder / INDEX
    if not index.is_file():
        pickles = sorted(path.name for path in folder.glob("*.bin"))
        hint = f"; {pickles[0]} is a pickle, which is never read" if pickles else ""
        raise InputError(
            f"{folder} has neither {WHOLE} nor {INDEX}{hint}: give a safetensors checkpoint"
        )
    try:
        names = json.loads(index.read_bytes())["weight_map"].values()
        return [folder / Path(name).name for name in sorted(set(names))]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise InputError(f"{index} is not an index of safetensors files: {AGAIN}") from None
