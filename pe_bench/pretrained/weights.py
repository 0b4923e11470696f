"""Load pretrained weights into the decoder: from a state dict, or from safetensors files.

Names and shapes follow transformers, with or without the prefix "model.".
"""

import math
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from pe_bench.config import ModelConfig
from pe_bench.decoder.model import Decoder, MakeEncoding
from pe_bench.encoding import Encoding
from pe_bench.errors import InputError
from pe_bench.pretrained.tensor_names import EMBEDDINGS, HEAD, Part, TensorNames
from pe_bench.pretrained.weight_files import AGAIN, find_tensors, read_tensors

OF_ENCODING = "encodings."
LLAMA = TensorNames()


def load_llama(model: Decoder, state_dict: Mapping[str, Tensor]) -> None:
    """Load the weights of a Llama into a decoder of the same shape, except for the encoding.

        load_llama(model, LlamaForCausalLM.from_pretrained(folder).state_dict())

    Names follow `LlamaForCausalLM`, with or without the prefix "model.". Without "lm_head.weight",
    the embeddings are tied and also used for the head.

    Raises:
        InputError: weights are missing, left over, given twice, not finite, or of another shape;
            or the model has tied embeddings and the weights do not.
    """
    weights: dict[str, Tensor] = {}
    for name, tensor in state_dict.items():
        for part in LLAMA.parts(name):
            if part.name in weights:
                raise InputError(f"the weights contain {part.name} twice: leave one out")
            if not tensor.isfinite().all():
                raise InputError(f"{name} has values that are NaN or infinite")
            weights[part.name] = tensor
    is_tied = model.config.tied_embeddings and {HEAD, EMBEDDINGS} <= weights.keys()
    if is_tied and not torch.equal(weights[HEAD], weights[EMBEDDINGS]):
        raise InputError("the model has tied embeddings, but the weights have another head")
    if EMBEDDINGS in weights:
        weights.setdefault(HEAD, weights[EMBEDDINGS])
    check_shapes(model, {name: tuple(tensor.shape) for name, tensor in weights.items()})
    for name, tensor in weights.items():
        _put(model, name, tensor)


def make_empty(config: ModelConfig, make_encoding: MakeEncoding) -> Decoder:
    """Return a decoder with weights on the meta device and an initialised encoding."""

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
    names: TensorNames | None = None,
) -> None:
    """Load the safetensors files of a folder, one tensor at a time.

    Args:
        model: return value of `make_empty`, or another decoder.
        folder: folder with `model.safetensors`, or with several files and their index.
        dtype: dtype of all weights except the encoding's; None: the dtype of the file.
        with_encoding: whether to load the parameters of the encoding too.
        device: device of weights that are on the meta device.
        names: names of the tensors in the files; None: the names of Llama.

    Raises:
        InputError: a file is missing or damaged; weights are missing, unexpected, of the wrong
            shape, or not finite.
    """
    files = check_files(model, folder, with_encoding=with_encoding, names=names)
    for path, tensors in files.items():
        for name, tensor in read_tensors(path, list(tensors)):
            if not math.isfinite(float(tensor.sum(dtype=torch.float32))):
                raise InputError(f"{path.name} has numbers in {name} that are not finite: {AGAIN}")
            for part in tensors[name]:
                _put(model, part.name, part.take(tensor), dtype, device)
    if model.config.tied_embeddings:
        model.lm_head.weight = model.embed_tokens.weight


def check_files(
    model: Decoder, folder: Path, *, with_encoding: bool = False, names: TensorNames | None = None
) -> dict[Path, dict[str, list[Part]]]:
    """Check that the headers of the safetensors files of a folder match a decoder.

    Args:
        model, folder, with_encoding, names: as in `load_files`.

    Returns:
        For each file, a dict from names in the file to the parameters in that tensor.

    Raises:
        InputError: a file is missing or damaged; weights are missing, unexpected, or of the wrong
            shape.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    files: dict[Path, dict[str, list[Part]]] = {}
    try:
        for name, (path, shape) in find_tensors(folder).items():
            for part in (names or LLAMA).parts(name, shape, model.config):
                if part.name.startswith(OF_ENCODING) and not with_encoding:
                    continue
                if part.name == HEAD and model.config.tied_embeddings:
                    continue  # some files contain the same matrix twice
                if part.name in shapes:
                    raise InputError(f"the weights contain {part.name} twice")
                shapes[part.name] = part.shape(shape)
                files.setdefault(path, {}).setdefault(name, []).append(part)
        check_shapes(model, shapes, with_encoding=with_encoding)
    except InputError as error:
        if str(folder) in str(error):
            raise
        raise InputError(f"{folder}: {error}") from None
    return files


def share(
    model: Decoder,
    parameters: Mapping[str, nn.Parameter],
    names: TensorNames,
    *,
    with_encoding: bool = False,
) -> None:
    """Share the parameters of a model of transformers with a decoder.

    Parameters that are fused, transposed, or in another order are copied.

    Args:
        model: a decoder of the same shape.
        parameters: the parameters.
        names: names of the parameters.
        with_encoding: whether to share the parameters of the encoding too.

    Raises:
        InputError: parameters are missing, unexpected, or of the wrong shape.
    """
    own: dict[str, nn.Parameter] = {}
    for name, parameter in parameters.items():
        for part in names.parts(name, tuple(parameter.shape), model.config):
            if part.name.startswith(OF_ENCODING) and not with_encoding:
                continue
            if not part.is_whole:
                copy = part.take(parameter.detach()).clone(memory_format=torch.contiguous_format)
                own[part.name] = nn.Parameter(copy, requires_grad=parameter.requires_grad)
            else:
                own[part.name] = parameter
    shapes = {name: tuple(parameter.shape) for name, parameter in own.items()}
    check_shapes(model, shapes, with_encoding=with_encoding)
    for name, parameter in own.items():
        owner, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(owner), leaf, parameter)


def check_shapes(
    model: Decoder, shapes: Mapping[str, tuple[int, ...]], *, with_encoding: bool = False
) -> None:
    """Check that shapes of weights match a decoder.

    Args:
        model: the decoder.
        shapes: shapes by names in the decoder.
        with_encoding: whether the weights include the parameters of the encoding.

    Raises:
        InputError: weights are missing, unexpected, or of the wrong shape.
    """
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    if not with_encoding:
        expected = {n: shape for n, shape in expected.items() if not n.startswith(OF_ENCODING)}
    if model.config.tied_embeddings and HEAD not in shapes:
        del expected[HEAD]
    for name, shape in expected.items():
        if name not in shapes:
            for other in shapes:
                if other.endswith(f".{name}"):
                    prefix = other.removesuffix(name)
                    raise InputError(f"names of weights begin with {prefix}: remove this prefix")
            raise InputError(f"the Llama weights have no {name}: give all of a model's weights")
        if shapes[name] != shape:
            raise InputError(
                f"{name} is {shapes[name]}, but the decoder's is {shape}: make the decoder's "
                "ModelConfig equal to the Llama's config.json"
            )
    left = sorted(set(shapes) - set(expected))
    if left:
        raise InputError(
            f"the decoder has no place for {left[0]} ({len(left)} weights in all): only a plain "
            "Llama fits"
        )


@torch.no_grad()
def _put(
    model: Decoder,
    name: str,
    tensor: Tensor,
    dtype: torch.dtype | None = None,
    device: str = "cpu",
) -> None:
    """Copy a tensor into a parameter, and allocate it if it is on the meta device.

    Raises:
        InputError: the tensor does not have real numbers, as in quantized weights.
    """
    if not tensor.is_floating_point():
        raise InputError(
            f"{name} has the type {tensor.dtype}: give weights in float32, float16 or bfloat16"
        )
    owner, _, leaf = name.rpartition(".")
    module = model.get_submodule(owner)
    parameter = getattr(module, leaf)
    if parameter.is_meta:
        empty = torch.empty(parameter.shape, dtype=dtype or tensor.dtype, device=device)
        parameter = nn.Parameter(empty)
        setattr(module, leaf, parameter)
    parameter.copy_(tensor)
