"""Blocks of other families equal a Llama with other weights, or the formula."""

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pe_bench.config import BlockConfig, ModelConfig
from pe_bench.decoder.block import MLP
from pe_bench.decoder.model import Decoder
from pe_bench.encodings.nope import NoPE

SHAPE = ModelConfig(
    layers=2, heads=2, width=16, mlp_width=24, vocab_size=30, init_std=0.3, train_length=12
)
TOKENS = torch.arange(24).view(2, 12) % 30
Change = Callable[[Decoder], None]


def make(shape: ModelConfig = SHAPE, **block: Any) -> Decoder:
    """Return a decoder in float64 whose gains are not 1."""
    torch.manual_seed(0)
    model = Decoder(shape.changed(block=BlockConfig(**block)), NoPE).double().eval()
    for name, parameter in model.named_parameters():
        if "norm" in name:
            nn.init.uniform_(parameter, 0.5, 1.5)
    return model


def times(factor: float, *names: str) -> Change:
    """Return a change that multiplies the weights of these parameters."""

    def change(model: Decoder) -> None:
        for name, parameter in model.named_parameters():
            if name.endswith(tuple(f"{one}.weight" for one in names)):
                parameter.mul_(factor)

    return change


def add_to_gains(model: Decoder) -> None:
    for name, parameter in model.named_parameters():
        if "norm" in name:
            parameter.add_(1)


def as_it_is(model: Decoder) -> None: ...


# The block, the change of a Llama's weights, and the change of its logits.
LIKE_LLAMA: list[tuple[dict[str, Any], Change, Callable[[Tensor], Tensor]]] = [
    ({"embedding_scale": 3.0}, times(3, "embed_tokens"), lambda z: z),
    ({"residual_scale": 0.5}, times(0.5, "o_proj", "down_proj"), lambda z: z),
    ({"score_scale": 2.0}, times(2 * 8**0.5, "q_proj"), lambda z: z),
    ({"score_cap": 1e6}, as_it_is, lambda z: z),
    ({"norm_offset": True}, add_to_gains, lambda z: z),
    ({"logit_scale": 0.25}, as_it_is, lambda z: z / 4),
    ({"logit_cap": 2.0}, as_it_is, lambda z: 2 * torch.tanh(z / 2)),
    ({"logit_scale": 3.0, "logit_cap": 2.0}, as_it_is, lambda z: 2 * torch.tanh(3 * z / 2)),
]


@pytest.mark.parametrize(("block", "change", "on_logits"), LIKE_LLAMA)
@torch.no_grad()
def test_a_block_is_a_llama_with_other_weights(
    block: dict[str, Any], change: Change, on_logits: Callable[[Tensor], Tensor]
) -> None:
    llama = make()
    plain = llama(TOKENS)
    change(llama)
    expected = on_logits(llama(TOKENS))
    found = make(**block)(TOKENS)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    if block != {"score_cap": 1e6}:
        assert not torch.allclose(found, plain, atol=1e-2)


@torch.no_grad()
def test_attention_logits_are_capped() -> None:
    uncapped: list[Tensor] = []
    plain = make()
    plain.hidden(TOKENS, logits=uncapped)
    capped: list[Tensor] = []
    make(score_cap=0.3).hidden(TOKENS, logits=capped)
    finite = uncapped[0].isfinite()
    assert torch.equal(capped[0].isfinite(), finite)
    expected = 0.3 * torch.tanh(uncapped[0][finite] / 0.3)
    torch.testing.assert_close(capped[0][finite], expected)


@pytest.mark.parametrize("norms", ["input", "output", "both"])
@pytest.mark.parametrize("norm", ["rms", "layer", "fixed"])
@torch.no_grad()
def test_norms_are_at_the_inputs_or_the_outputs(norms: Any, norm: Any) -> None:
    model = make(SHAPE.changed(norm_eps=0.1), norms=norms, norm=norm)
    block: Any = model.layers[0]

    def normalise(module: Any, x: Tensor) -> Any:
        if norm == "rms":
            return x / (x.square().mean(-1, keepdim=True) + 0.1).sqrt() * module.weight
        standard = (x - x.mean(-1, keepdim=True)) / (
            x.var(-1, keepdim=True, correction=0) + 0.1
        ).sqrt()
        return standard if norm == "fixed" else standard * module.weight + module.bias

    x = torch.randn(2, 12, 16, dtype=torch.float64)
    mlp_in = x if norms == "output" else normalise(block.post_attention_layernorm, x)
    out = block.mlp(mlp_in)
    expected = out if norms == "input" else normalise(block.mlp_output_norm, out)
    found = block.mlp_output_norm(block.mlp(block.post_attention_layernorm(x)))
    torch.testing.assert_close(found, expected)
    for of_attention, of_mlp in (
        ("input_layernorm", "post_attention_layernorm"),
        ("attention_output_norm", "mlp_output_norm"),
    ):
        assert type(getattr(block, of_attention)) is type(getattr(block, of_mlp))


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@torch.no_grad()
def test_an_mlp_has_a_gate_and_biases_or_not(activation: Any, gated: bool, bias: bool) -> None:
    block = BlockConfig(activation=activation, gated=gated, bias=bias)
    mlp = MLP(SHAPE.changed(block=block))
    layers = dict(mlp.named_children())
    assert ("gate_proj" in layers) == gated
    assert all((layer.bias is not None) == bias for layer in layers.values())
    x = torch.randn(3, 16)
    gate = mlp.gate_proj(x) if gated else mlp.up_proj(x)
    hidden = F.silu(gate) if activation == "silu" else F.gelu(gate, approximate="tanh")
    expected = mlp.down_proj(hidden * mlp.up_proj(x) if gated else hidden)
    torch.testing.assert_close(mlp(x), expected)


@pytest.mark.parametrize("qk_norm", ["none", "rms", "width"])
def test_heads_have_their_width(qk_norm: Any) -> None:
    shape = SHAPE.changed(heads=4, kv_heads=2, qk_norm=qk_norm)
    attention: Any = make(shape, head_dim=6, bias=True).layers[0].self_attn
    sizes = {name: tuple(p.shape) for name, p in attention.named_parameters()}
    assert sizes["q_proj.weight"] == (24, 16) and sizes["o_proj.weight"] == (16, 24)
    assert sizes["k_proj.weight"] == sizes["v_proj.weight"] == (12, 16)
    assert sizes["k_proj.bias"] == (12,) and sizes["o_proj.bias"] == (16,)
    of_queries = {"none": None, "rms": (6,), "width": (24,)}[qk_norm]
    assert sizes.get("q_norm.weight") == of_queries
    assert sizes.get("k_norm.weight") == ((12,) if qk_norm == "width" else of_queries)


def test_every_field_is_tested() -> None:
    names = {name for block, _, _ in LIKE_LLAMA for name in block}
    here = {"norm", "norms", "gated", "bias", "activation", "head_dim"}
    assert names | here == {field.name for field in fields(BlockConfig)}
