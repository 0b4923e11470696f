"""A model with `AttentionLayers` equals the decoder: in one pass, with a cache, with packing."""

from typing import Any, cast

import pytest
import torch
from helpers import CODED, some_slow
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import pe_bench
from pe_bench.decoder.block import Block
from pe_bench.decoder.forward_pass import ForwardPass
from pe_bench.encoding import Encoding, StatefulEncoding

CONFIG = pe_bench.ModelConfig(
    layers=2, heads=2, width=16, mlp_width=16, vocab_size=32, train_length=16, init_std=0.3,
    digit_ids=(1, 2), separator_ids=(3,),
)  # fmt: skip
LENGTH = 12
NAMES = [*CODED, "hybrid:local=nope,global=tape", "hybrid:window=4"]
UNCACHED = "rope:scaling=dynamic-ntk,factor=2"


class Own(torch.nn.Module):
    """A model of the user's with the weights of a decoder."""

    def __init__(self, spec: str, config: pe_bench.ModelConfig = CONFIG) -> None:
        super().__init__()
        make = pe_bench.load_encoding(spec)
        self.decoder = pe_bench.Decoder(config, make)
        self.attention = pe_bench.AttentionLayers(config, make)
        for layer, module in zip(self.attention, self.decoder.layers, strict=True):
            layer.attention = cast(Block, module).self_attn
        with torch.no_grad():  # change the initial values
            for parameter in self.decoder.encodings.parameters():
                parameter.add_(torch.randn_like(parameter) / 10)
        for index, layer in enumerate(self.attention):
            layer.encoding.load_state_dict(self.decoder.encoding_of(index).state_dict())
        self.double()

    def forward(self, tokens: Tensor, forward_pass: ForwardPass, recompute: bool = False) -> Tensor:
        """Return the normalised output of the last layer, (B, T, C)."""

        def block(layer: pe_bench.AttentionLayer, module: Block, x: Tensor) -> Tensor:
            x = x + layer(module.input_layernorm(x), forward_pass)
            mlp_in = module.post_attention_layernorm(x)
            mlp_out = module.mlp(mlp_in)
            forward_pass.update_state(mlp_in, mlp_out)
            return x + cast(Tensor, mlp_out)

        x = forward_pass.embed(self.decoder.embed_tokens(tokens))
        for layer, module in zip(self.attention, self.decoder.layers, strict=True):
            if recompute:
                x = cast(Tensor, checkpoint(block, layer, module, x, use_reentrant=False))
            else:
                x = block(layer, cast(Block, module), x)
        forward_pass.end()
        return cast(Tensor, self.decoder.norm(x))


def random_tokens(rows: int = 2, length: int = LENGTH) -> Tensor:
    return torch.randint(32, (rows, length), generator=torch.Generator().manual_seed(0))


def assert_close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-11)


@torch.no_grad()
@pytest.mark.parametrize("spec", some_slow(NAMES))
def test_one_pass_at_once_and_with_a_cache(spec: str) -> None:
    model = Own(spec).eval()
    tokens = random_tokens()
    expected = model.decoder.hidden(tokens)
    assert_close(model(tokens, model.attention.begin(tokens)), expected)
    cache = pe_bench.Cache(2, LENGTH)
    parts = []
    for part in tokens.split([5, 1, 3, 1, 2], dim=1):
        parts.append(model(part, model.attention.begin(part, cache=cache)))
    assert_close(torch.cat(parts, dim=1), expected)


@torch.no_grad()
@pytest.mark.parametrize("spec", some_slow([*NAMES, UNCACHED]))
def test_packed_documents_are_like_rows_of_one_document(spec: str) -> None:
    model = Own(spec).eval()
    tokens = random_tokens()
    lengths = [[5, 7], [1, 2, 9]]
    ids = torch.stack([torch.cat([torch.arange(n) for n in row]) for row in lengths])
    packed = model(tokens, model.attention.begin(tokens, position_ids=ids))
    for row, own in enumerate(lengths):
        parts = tokens[row : row + 1].split(own, dim=1)
        alone = torch.cat([model.decoder.hidden(part) for part in parts], dim=1)
        assert_close(packed[row : row + 1], alone)


@torch.no_grad()
@pytest.mark.parametrize("spec", some_slow(NAMES))
def test_padding_on_either_side(spec: str) -> None:
    """Padding on the left is a document. On the right only a cache needs it to be truncated."""
    model = Own(spec).eval()
    tokens = random_tokens()
    pads = torch.tensor([3, 0])
    ids = (torch.arange(LENGTH) - pads[:, None]).clamp(min=0)
    padded = model(tokens, model.attention.begin(tokens, position_ids=ids))
    assert_close(padded[:1, 3:], model.decoder.hidden(tokens[:1, 3:]))
    assert_close(padded[1:], model.decoder.hidden(tokens[1:]))
    final = torch.tensor([7, 10])
    cache = pe_bench.Cache(2, LENGTH, final_lengths=final)
    first = tokens[:, :9]
    model(first, model.attention.begin(first, cache=cache))
    cache.truncate(torch.tensor([6, 9]))
    last = tokens[:, -1:]
    found = model(last, model.attention.begin(last, cache=cache))
    for row, length in enumerate((6, 9)):
        whole = torch.cat([tokens[row, :length], tokens[row, -1:]])[None]
        assert_close(found[row : row + 1], model.decoder.hidden(whole)[:, -1:])


@pytest.mark.parametrize("spec", some_slow(NAMES))
def test_training_draws_once_and_reaches_the_parameters_of_the_decoder(spec: str) -> None:
    """Losses and gradients, with auxiliary losses."""
    model = Own(spec).train()
    tokens = random_tokens()
    torch.manual_seed(1)
    expected = model.decoder.hidden(tokens)
    own = model.decoder.extra_loss()
    (expected.square().mean() + (0 if own is None else own)).backward()
    torch.manual_seed(1)
    found = model(tokens, model.attention.begin(tokens))
    assert_close(found, expected)
    extra = model.attention.extra_loss()
    (found.square().mean() + (0 if extra is None else extra)).backward()
    for index, layer in enumerate(model.attention):
        pairs = zip(
            layer.encoding.named_parameters(),
            model.decoder.encoding_of(index).parameters(),
            strict=True,
        )
        for (name, parameter), theirs in pairs:
            assert (parameter.grad is None) == (theirs.grad is None), name
            if parameter.grad is not None and theirs.grad is not None:
                assert_close(parameter.grad, theirs.grad)


def test_an_auxiliary_loss_is_a_scalar() -> None:
    cls: Any = type("Mine", (Encoding,), {"extra_loss": lambda self: torch.ones(3)})
    with pytest.raises(pe_bench.InputError, match=r"Mine.extra_loss returned \(3,\), expected"):
        pe_bench.AttentionLayers(CONFIG, cls).extra_loss()


def test_activation_checkpointing_has_the_same_gradient() -> None:
    model = Own("tape", pe_bench.ModelConfig(**vars(CONFIG) | {"layers": 3})).train()
    tokens = random_tokens()
    gradients = []
    for recompute in (False, True):
        model.zero_grad()
        model(tokens, model.attention.begin(tokens), recompute).square().sum().backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    assert len(gradients[0]) == len(gradients[1])
    for found, expected in zip(gradients[1], gradients[0], strict=True):
        assert_close(found, expected)


@pytest.mark.parametrize("spec", [UNCACHED, f"hybrid:local={UNCACHED.replace(',', ':')}"])
def test_what_cannot_be_cached_is_refused_by_name(spec: str) -> None:
    layers = pe_bench.AttentionLayers(CONFIG, pe_bench.load_encoding(spec)).eval()
    with pytest.raises(pe_bench.InputError, match=r"^RoPE has no cache"):
        layers.begin(random_tokens(), cache=pe_bench.Cache(2, LENGTH))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"position_ids": torch.zeros(2, 5).long()}, r"\(2, 5\), but must be \(2, 12\)"),
        ({"position_ids": torch.zeros(3, 12).long()}, r"must be \(2, 12\) or \(1, 12\)"),
        ({"position_ids": torch.zeros(2, 12)}, "integers from 0 on"),
        ({"position_ids": torch.arange(-1, 11)[None]}, "integers from 0 on"),
        ({"position_ids": torch.arange(12)[None], "cache": True}, r"cache\.truncate\(lengths\)"),
        (
            {"final_lengths": torch.tensor([12, 12]), "cache": True},
            "Cache already gives final_lengths",
        ),
    ],
)
def test_arguments_that_do_not_fit(given: dict[str, Any], message: str) -> None:
    layers = pe_bench.AttentionLayers(CONFIG, pe_bench.load_encoding("rope")).eval()
    cache = pe_bench.Cache(2, LENGTH) if given.pop("cache", None) else None
    with pytest.raises(pe_bench.InputError, match=message):
        layers.begin(random_tokens(), cache=cache, **given)
    with pytest.raises(pe_bench.InputError, match=r"ids of shape \(B, T\)"):
        layers.begin(random_tokens()[0])


@pytest.mark.parametrize("spec", ["tape", "sinusoidal"])
def test_a_missing_call_is_an_error(spec: str) -> None:
    layers = pe_bench.AttentionLayers(CONFIG, pe_bench.load_encoding(spec))
    tokens = random_tokens()
    x = torch.randn(2, LENGTH, 16)
    forward_pass = layers.begin(tokens)
    with pytest.raises(pe_bench.InputError, match=r"call embed\(x\)"):
        layers[0](x, forward_pass)
    with pytest.raises(pe_bench.InputError, match="call the layer first"):
        forward_pass.update_state(x, x)
    forward_pass.embed(x)
    layers[0](x, forward_pass)
    if spec == "tape":
        with pytest.raises(pe_bench.InputError, match="TAPE passes a state"):
            layers[1](x, forward_pass)


@pytest.mark.parametrize("hook", ["prepare", "extra_values", "update_state"])
def test_one_hook_of_a_state_is_enough_to_need_it(hook: str) -> None:
    cls: Any = type("Mine", (StatefulEncoding,), {hook: lambda self, *given: given[0]})
    layers = pe_bench.AttentionLayers(CONFIG, cls)
    x = torch.randn(2, LENGTH, 16)
    with pytest.raises(pe_bench.InputError, match=r"Mine needs the embeddings: call embed\(x\)"):
        layers[0](x, layers.begin(random_tokens()))
    with pytest.raises(pe_bench.InputError, match="Mine passes a state from layer to layer"):
        layers[0](x)


def test_a_pass_that_has_not_ended_is_not_overwritten() -> None:
    layers = pe_bench.AttentionLayers(CONFIG, pe_bench.load_encoding("rope")).eval()
    cache = pe_bench.Cache(2, LENGTH)
    forward_pass = layers.begin(random_tokens(length=6), cache=cache)
    with pytest.raises(pe_bench.InputError, match=r"call end\(\)"):
        layers.begin(random_tokens(length=6), cache=cache)
    forward_pass.end()
    with pytest.raises(pe_bench.InputError, match=r"holds 12 tokens, not 13: .* cache\.grow\(13\)"):
        layers.begin(random_tokens(length=7), cache=cache)
    with pytest.raises(pe_bench.InputError, match="the cache has 2 rows, not 1"):
        layers.begin(random_tokens(rows=1, length=6), cache=cache)


def test_moved_layers_keep_their_encodings() -> None:
    """A combination of encodings is converted with the layers that have its parts."""
    layers = pe_bench.AttentionLayers(CONFIG, pe_bench.load_encoding("hybrid:global=fire,every=2"))
    second = layers.encoding.layer_kinds[1]
    assert layers.double()[1].encoding is second
    assert {p.dtype for p in second.parameters()} == {torch.float64}


@pytest.mark.parametrize("spec", ["randpe:max=32", "alibi:train_positions=random"])
def test_a_cache_needs_evaluation_mode(spec: str) -> None:
    layers = pe_bench.AttentionLayers(CONFIG, pe_bench.load_encoding(spec))
    tokens = torch.ones(1, 3, dtype=torch.long)
    with pytest.raises(pe_bench.InputError, match="a cache needs evaluation mode"):
        layers.begin(tokens, cache=pe_bench.Cache(1, 16))
    layers.eval().begin(tokens, cache=pe_bench.Cache(1, 16))
