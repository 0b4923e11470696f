"""Tensors of the wrong shape are refused; many of them would broadcast."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import pe_bench
from pe_bench import AttentionLayer, AttentionLayers, Cache, Decoder, InputError, ModelConfig

SHAPE = ModelConfig(
    layers=2, heads=2, width=16, mlp_width=16, vocab_size=32, train_length=16, digit_ids=(1, 2)
)
TOKENS = torch.ones(2, 6, dtype=torch.long)
X = torch.ones(2, 6, 16)


def decoder(spec: str = "rope") -> Decoder:
    return Decoder(SHAPE, pe_bench.load_encoding(spec)).eval()


@pytest.mark.parametrize("spec", ["rope", "alibi", "nope", "abacus", "randpe"])
@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (3, 6), (6,), (1, 6, 1), (2, 12)])
def test_positions_are_for_each_token(spec: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=r"positions are .* must be \(2, 6\) or \(1, 6\), one for"):
        decoder(spec)(TOKENS, positions=torch.zeros(shape, dtype=torch.long))


@pytest.mark.parametrize("rows", [1, 2])
def test_positions_with_a_cache_are_for_all_tokens_so_far(rows: int) -> None:
    model, cache = decoder(), Cache(2, 8)
    ids = torch.arange(6).expand(rows, -1) * 2
    with torch.no_grad():
        expected = model(TOKENS, positions=ids)[:, 4:]
        model(TOKENS[:, :4], cache, positions=ids[:, :4])
        found = model(TOKENS[:, 4:], cache, positions=ids)
    torch.testing.assert_close(found, expected)


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "one row of tokens": (lambda: decoder()(TOKENS[0]), r"ids of shape \(B, T\), not \(6,\)"),
    "tokens that are vectors": (lambda: decoder()(X), r"ids of shape \(B, T\), not \(2, 6, 16\)"),
    "fewer rows than the cache": (
        lambda: decoder()(TOKENS[:1], Cache(2, 8)),
        "the cache has 2 rows, not 1",
    ),
    "a final length of one row": (
        lambda: decoder("randpe")(TOKENS, final_lengths=torch.tensor([9])),
        r"final_lengths are \(1,\), but must be \(2,\), one for each row",
    ),
    "a final length of one row of a cache": (
        lambda: Cache(2, 8, final_lengths=torch.tensor([8])),
        r"final_lengths are \(1,\), but must be \(2,\), one for each row",
    ),
    "a mask of rows": (
        lambda: Cache(2, 8).select(torch.tensor([True, False])),
        "select needs the indices of rows",
    ),
    "targets in another order": (
        lambda: decoder().token_losses(TOKENS, TOKENS.T),
        r"targets are \(6, 2\), but must be \(2, 6\), as tokens",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_shapes(what: str) -> None:
    call, message = WRONG[what]
    with torch.no_grad(), pytest.raises(InputError, match=message):
        call()


@pytest.mark.parametrize("shape", [(2, 1), (1, 6), (2, 5), (6,)])
def test_tokens_of_a_layer_are_those_of_its_input(shape: tuple[int, ...]) -> None:
    layer = AttentionLayer(SHAPE, pe_bench.load_encoding("abacus"))
    tokens = torch.zeros(shape, dtype=torch.long)
    calls: list[Callable[..., Any]] = [layer.attend, layer.embed, layer.prepare, layer.backends]
    for call in calls:
        with pytest.raises(InputError, match=r"tokens are .* must be \(2, 6\), one id for each"):
            call(X, tokens=tokens)


@pytest.mark.parametrize("shape", [(2, 6, 8), (6, 16), (1, 2, 6, 16)])
def test_the_input_of_a_layer_has_the_width_of_the_model(shape: tuple[int, ...]) -> None:
    layers = AttentionLayers(SHAPE, pe_bench.load_encoding("rope"))
    forward_pass = layers.begin(TOKENS)
    forward_pass.embed(X)
    layer = layers[0]
    calls: list[Callable[..., Any]] = [layer, layer.attend, layer.embed, layer.prepare]
    calls += [layer.backends, lambda x: layer(x, forward_pass)]
    for call in calls:
        with pytest.raises(InputError, match=r"x is \(.*\), but must be \(B, T, 16\)"):
            call(torch.zeros(shape))


def test_a_name_is_no_encoding() -> None:
    for make in (AttentionLayer, AttentionLayers, Decoder):
        with pytest.raises(InputError, match=r"give pe_bench.load_encoding\('rope'\)"):
            make(SHAPE, "rope")  # type: ignore[arg-type]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("length", [1, 5, 7])
def test_all_tensors_of_a_pass_have_its_tokens(length: int, packed: bool) -> None:
    layers = AttentionLayers(SHAPE, pe_bench.load_encoding("tape"))
    ids = torch.tensor([[0, 1, 2, 0, 1, 2]]) if packed else None
    forward_pass = layers.begin(TOKENS, position_ids=ids)
    wrong = torch.ones(2, length, 16)
    message = r"the pass has \(2, 6\) tokens, but this tensor is \(2, "
    with pytest.raises(InputError, match=message):
        forward_pass.embed(wrong)
    forward_pass.embed(X)
    with pytest.raises(InputError, match=message):
        layers[0](wrong, forward_pass)
    layers[0](X, forward_pass)
    with pytest.raises(InputError, match=message):
        forward_pass.update_state(wrong, X)
    with pytest.raises(InputError, match=message):
        forward_pass.update_state(X, wrong)
