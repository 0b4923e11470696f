"""Parameters of another model are those of the decoder, or copies where their order differs."""

import pytest
import torch
from torch import nn

from pe_bench.config import BlockConfig, ModelConfig
from pe_bench.decoder.model import Decoder
from pe_bench.errors import InputError
from pe_bench.pretrained.families import FAMILIES
from pe_bench.pretrained.tensor_names import TensorNames
from pe_bench.pretrained.weights import share
from pe_bench.registry import plugins

SHAPE = ModelConfig(layers=1, heads=2, width=8, mlp_width=12, vocab_size=20, train_length=6)


def make(seed: int, gated: bool = True) -> Decoder:
    torch.manual_seed(seed)
    shape = SHAPE.changed(block=BlockConfig(gated=gated))
    return Decoder(shape, plugins.load("encoding", "learned").make)


def parameters_of(model: Decoder) -> dict[str, nn.Parameter]:
    """Return the parameters under the names of a Llama."""
    names = TensorNames()
    return {names.in_files(name): parameter for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("with_encoding", [True, False])
def test_parameters_are_shared(with_encoding: bool) -> None:
    own, other = make(0), make(1)
    share(own, parameters_of(other), TensorNames(), with_encoding=with_encoding)
    theirs = dict(other.named_parameters())
    for name, parameter in own.named_parameters():
        of_encoding = name.startswith("encodings.")
        assert (parameter is theirs[name]) == (with_encoding or not of_encoding)
    left_out = {n: p for n, p in parameters_of(other).items() if "k_proj" not in n}
    with pytest.raises(InputError, match=r"have no layers.0.self_attn.k_proj"):
        share(own, left_out, TensorNames(), with_encoding=with_encoding)


def test_fused_and_transposed_parameters_are_copied() -> None:
    own, other = make(0, gated=False), make(1, gated=False)
    given: dict[str, nn.Parameter] = {}
    for name, parameter in parameters_of(other).items():
        renamed = name.replace("model.", "transformer.")
        if "_proj" in name:
            turned = parameter.detach().t()
            parameter = nn.Parameter(turned, requires_grad="o_proj" in name)
        given[renamed] = parameter
    qkv = "transformer.layers.0.self_attn.{}_proj.weight"
    parts = torch.cat([given.pop(qkv.format(kind)).detach() for kind in "qkv"], dim=1)
    given[qkv.format("qkv")] = nn.Parameter(parts, requires_grad=False)
    share(own, given, TensorNames(FAMILIES["gpt2"]), with_encoding=True)
    for name, parameter in own.named_parameters():
        theirs = dict(other.named_parameters())[name]
        assert torch.equal(parameter, theirs) and parameter.is_contiguous()
        assert (parameter is theirs) == ("_proj" not in name)
        assert parameter.requires_grad == ("_proj" not in name or "o_proj" in name)
