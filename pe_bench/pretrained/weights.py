"""Weights of a Llama in this suite's decoder: from a state dict, or from safetensors files.

Names and shapes are those of `LlamaForCausalLM`, with or without "model." in front.
"""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import safetensors
import torch
from torch import Tensor, nn

from pe_bench.config import ModelConfig
from pe_bench.decoder.model import Decoder, MakeEncoding
from pe_bench.encoding import Encoding
from pe_bench.errors import InputError

WHOLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
HEAD = "lm_head.weight"
EMBEDDINGS = "embed_tokens.weight"
OF_ENCODING = "encodings."
AGAIN = "download it again"
BLOCKS = 256
BLOCK = 4096  # bytes


def load_llama(model: Decoder, state_dict: Mapping[str, Tensor]) -> None:
    """Load a Llama's weights into a decoder of the same shape; the encoding's own stay as they are.

        load_llama(model, LlamaForCausalLM.from_pretrained(folder).state_dict())

    Names are those of `LlamaForCausalLM`, with or without "model." in front. Tied embeddings,
    which have no "lm_head.weight", serve as the head too.

    Raises:
        InputError: weights are missing, left over, or of another shape.
    """
    weights = {_own_name(name): tensor for name, tensor in state_dict.items()}
    weights = {name: tensor for name, tensor in weights.items() if name}
    if EMBEDDINGS in weights:
        weights.setdefault(HEAD, weights[EMBEDDINGS])
    check_shapes(model, {name: tuple(tensor.shape) for name, tensor in weights.items()})
    for name, tensor in weights.items():
        _put(model, name, tensor)


def make_empty(config: ModelConfig, make_encoding: MakeEncoding) -> Decoder:
    """Return a decoder whose weights take no memory yet, with an encoding as it starts."""

    def make(model: ModelConfig, layer: int) -> Encoding:
        with torch.device("cpu"):
            return make_encoding(model, layer)

    with torch.device("meta"):
        empty = Decoder(config, make)
    empty.make_encoding = make_encoding
    return empty


def load_files(
    model: Decoder,
    folder: Path,
    *,
    dtype: torch.dtype | None,
    with_encoding: bool = False,
    device: str = "cpu",
) -> None:
    """Load the safetensors files of a folder, one tensor after the other, each read once.

    Args:
        model: what `make_empty` returned, or another decoder.
        folder: has `model.safetensors`, or several files and their index.
        dtype: of the weights, but not of an encoding's; None: that of the file.
        with_encoding: load the encoding's own parameters too; False: they stay as they are.
        device: where weights go that take no memory yet.

    Raises:
        InputError: a file is missing or damaged; weights are missing, left over, of another
            shape, or not finite.
    """
    for path, names in check_files(model, folder, with_encoding=with_encoding).items():
        for name, tensor in _read(path, list(names)):
            if not math.isfinite(float(tensor.sum(dtype=torch.float32))):
                raise InputError(f"{path.name} has numbers in {name} that are not finite: {AGAIN}")
            _put(model, names[name], tensor, dtype, device)
    if model.config.tied_embeddings:
        model.lm_head.weight = model.embed_tokens.weight


def check_files(
    model: Decoder, folder: Path, *, with_encoding: bool = False
) -> dict[Path, dict[str, str]]:
    """Check that the safetensors files of a folder are of a decoder's shape; read headers alone.

    Args:
        model, folder, with_encoding: as in `load_files`.

    Returns:
        Of each file the tensors that are the decoder's, each with the decoder's name.

    Raises:
        InputError: a file is missing or damaged; weights are missing, left over, or of another
            shape.
    """
    places = find_tensors(folder)
    names = {name: own for name in places if (own := _own_name(name))}
    if not with_encoding:
        names = {name: own for name, own in names.items() if not own.startswith(OF_ENCODING)}
    if model.config.tied_embeddings:  # some files have the same matrix twice
        names = {name: own for name, own in names.items() if own != HEAD}
    shapes = {own: places[name][1] for name, own in names.items()}
    try:
        check_shapes(model, shapes, with_encoding=with_encoding)
    except InputError as error:
        raise InputError(f"{folder}: {error}") from None
    files: dict[Path, dict[str, str]] = {}
    for name, own in names.items():
        files.setdefault(places[name][0], {})[name] = own
    return files


def share(model: Decoder, parameters: Mapping[str, nn.Parameter]) -> None:
    """Put the parameters of a Llama, no copies of them, into a decoder of the same shape.

    Raises:
        InputError: some are missing, left over, or of another shape.
    """
    own = {_own_name(name): parameter for name, parameter in parameters.items()}
    check_shapes(model, {name: tuple(parameter.shape) for name, parameter in own.items()})
    for name, parameter in own.items():
        owner, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(owner), leaf, parameter)


def find_tensors(folder: Path) -> dict[str, tuple[Path, tuple[int, ...]]]:
    """Return the file and the shape of each tensor of a folder; only headers are read.

    Raises:
        InputError: there are no such files, or they are damaged.
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
                f"{path} is cut short, or is no safetensors file ({error}): {AGAIN}"
            ) from None
    return found


def has_own_head(folder: Path) -> bool:
    """Return whether the files of a folder have a head that is not the matrix of the embeddings.

    False where there are no files. transformers keeps such a head even if config.json says that
    the embeddings are tied.

    Raises:
        InputError: files are damaged.
    """
    if not any((folder / name).is_file() for name in (WHOLE, INDEX)):
        return False
    places = {_own_name(name): (path, name) for name, (path, _) in find_tensors(folder).items()}
    if not {HEAD, EMBEDDINGS} <= places.keys():
        return False
    matrices = []
    for own in (HEAD, EMBEDDINGS):
        path, name = places[own]
        matrices += [tensor for _, tensor in _read(path, [name])]
    return not torch.equal(*matrices)


def sample_files(folder: Path) -> bytes:
    """Return a SHA-256 of sizes, headers and evenly spaced blocks of the safetensors files.

    Files of many gigabytes are not read as a whole; training changes nearly every number.

    Raises:
        InputError: there are none.
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


def check_shapes(
    model: Decoder, shapes: Mapping[str, tuple[int, ...]], *, with_encoding: bool = False
) -> None:
    """Check that weights are those of a decoder.

    Args:
        model: the decoder.
        shapes: by the decoder's names.
        with_encoding: the encoding's own parameters are among them.

    Raises:
        InputError: weights are missing, left over, or of another shape.
    """
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    if not with_encoding:
        expected = {n: shape for n, shape in expected.items() if not n.startswith(OF_ENCODING)}
    if model.config.tied_embeddings and HEAD not in shapes:
        del expected[HEAD]
    for name, shape in expected.items():
        if name not in shapes:
            raise InputError(f"the Llama weights have no {name}: give all of a model's weights")
        if shapes[name] != shape:
            raise InputError(
                f"{name} is {shapes[name]} and the decoder's {shape}: make the decoder's "
                "ModelConfig equal to the Llama's config.json"
            )
    if left := sorted(set(shapes) - set(expected)):
        raise InputError(
            f"the decoder has no place for {left[0]} ({len(left)} weights in all): only a plain "
            "Llama fits"
        )


def _own_name(name: str) -> str:
    """Return the decoder's name of a weight, "" of other tensors."""
    if name.endswith("rotary_emb.inv_freq"):
        return ""
    return name.removeprefix("model.")


def _files(folder: Path) -> list[Path]:
    """Return the safetensors files of a folder.

    Raises:
        InputError: there are none.
    """
    if (folder / WHOLE).is_file():  # as transformers, also beside the index of another model
        return [folder / WHOLE]
    index = folder / INDEX
    if not index.is_file():
        pickles = sorted(path.name for path in folder.glob("*.bin"))
        hint = f"; {pickles[0]} is a pickle, which is never read" if pickles else ""
        raise InputError(f"{folder} has neither {WHOLE} nor {INDEX}{hint}: give a safetensors one")
    try:
        names = json.loads(index.read_bytes())["weight_map"].values()
        return [folder / Path(name).name for name in sorted(set(names))]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise InputError(f"{index} is no index of safetensors files: {AGAIN}") from None


def _read(path: Path, names: list[str]) -> Iterator[tuple[str, Tensor]]:
    """Yield tensors of a file, one at a time."""
    for name in names:
        # Opened for each: tensors read stay in memory while a file is open.
        with safetensors.safe_open(path, "pt") as file:
            tensor = file.get_tensor(name)
        yield name, tensor


@torch.no_grad()
def _put(
    model: Decoder,
    name: str,
    tensor: Tensor,
    dtype: torch.dtype | None = None,
    device: str = "cpu",
) -> None:
    """Copy a tensor into a parameter, which is made where it takes no memory yet."""
    owner, _, leaf = name.rpartition(".")
    module = model.get_submodule(owner)
    place = getattr(module, leaf)
    if place.is_meta:
        empty = torch.empty(place.shape, dtype=dtype or tensor.dtype, device=device)
        place = nn.Parameter(empty)
        setattr(module, leaf, place)
    place.copy_(tensor)
