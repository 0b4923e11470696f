"""The shapes of return values of hooks are checked; a wrong one might broadcast silently."""

from typing import Any

import pytest
import torch
from torch import Tensor

from pe_bench.config import ModelConfig
from pe_bench.decoder.attention import Backend
from pe_bench.decoder.cache import Cache
from pe_bench.decoder.model import Decoder
from pe_bench.encoding import Encoding, StatefulEncoding
from pe_bench.errors import InputError
from pe_bench.positions import Positions

SHAPE = ModelConfig(layers=2, heads=4, kv_heads=2, width=64, mlp_width=32, vocab_size=50)
TOKENS = torch.arange(14).reshape(2, 7)

Hook = Any  # a function, or a fact


def decoder(hooks: dict[str, Hook], base: type[Encoding] = Encoding) -> Decoder:
    mine: Any = type("Mine", (base,), hooks)
    return Decoder(SHAPE, mine).eval()


WRONG: dict[str, tuple[dict[str, Hook], str]] = {
    "positions of one token": (
        {"positions": lambda self, tokens: torch.zeros(1, 1).long()},
        "positions returned (1, 1), expected (2 or 1, 7)",
    ),
    "positions per row only": (
        {"positions": lambda self, tokens: tokens[:, 0]},
        "positions returned (2,), expected (2 or 1, 7)",
    ),
    "several positions per token, of too few tokens": (
        {"positions": lambda self, tokens: torch.zeros(1, 6, 2).long()},
        "positions returned (1, 6, 2), expected (2 or 1, 7, any)",
    ),
    "a mask as a bias": (
        {"distance_bias": lambda self, d: (d < 3)[None].expand(4, -1)},
        "distance_bias returned True and False, expected numbers; `visible` says "
        "which keys a query can see",
    ),
    "a complex bias": (
        {"distance_bias": lambda self, d: d[None].expand(4, -1) * 1j},
        "distance_bias returned complex numbers, expected real ones",
    ),
    "queries of whole numbers": (
        {"transform_qk": lambda self, q, k, positions: (q.long(), k)},
        "transform_qk returned q torch.int64, expected floating point numbers",
    ),
    "embeddings of one row": (
        {"embed": lambda self, x, positions: x[:1]},
        "embed returned (1, 7, 64), expected (2, 7, 64)",
    ),
    "embeddings too wide": (
        {"embed": lambda self, x, positions: torch.cat([x, x], -1)},
        "embed returned (2, 7, 128), expected (2, 7, 64)",
    ),
    "no embeddings": (
        {"embed": lambda self, x, positions: None},
        "embed returned NoneType, expected (2, 7, 64)",
    ),
    "narrow queries": (
        {"transform_qk": lambda self, q, k, positions: (q[..., :2], k)},
        "transform_qk returned q (2, 4, 7, 2), expected (2, 4, 7, 16)",
    ),
    "narrow queries and keys": (
        {"transform_qk": lambda self, q, k, positions: (q[..., :2], k[..., :2])},
        "transform_qk returned q (2, 4, 7, 2), expected (2, 4, 7, 16)",
    ),
    "keys for all heads": (
        {"transform_qk": lambda self, q, k, positions: (q, k.repeat(1, 2, 1, 1))},
        "transform_qk returned k (2, 4, 7, 16), expected (2, 2, 7, 16)",
    ),
    "queries of another width than declared": (
        {"qk_width": 32, "transform_qk": lambda self, q, k, positions: (q, k)},
        "transform_qk returned q (2, 4, 7, 16), expected (2, 4, 7, 32)",
    ),
    "queries alone": (
        {"transform_qk": lambda self, q, k, positions: q},
        "transform_qk returned (2, 4, 7, 16), expected a pair (q, k)",
    ),
    "features per token and no head": (
        {"token_features": lambda self, x, positions: x},
        "token_features returned (2, 7, 64), expected (2, 4, 7, any)",
    ),
    "features with a token too many": (
        {
            "token_features": lambda self, x, positions: x.new_zeros(2, 4, 7, 3),
            "scan_features": lambda self, features: features.repeat(1, 1, 2, 1),
        },
        "scan_features returned (2, 4, 14, 3), expected (2, 4, 7, any)",
    ),
    "separable bias of a pair": (
        {"separable_bias": lambda self, positions: torch.zeros(1, 4, 7, 7)},
        "separable_bias returned (1, 4, 7, 7), expected (2 or 1, 4, 7)",
    ),
    "separable bias of one head": (
        {"separable_bias": lambda self, positions: torch.zeros(1, 1, 7)},
        "separable_bias returned (1, 1, 7), expected (2 or 1, 4, 7)",
    ),
    "bias without a batch": (
        {"bias": lambda self, positions: torch.zeros(4, 7, 7)},
        "bias returned (4, 7, 7), expected (2 or 1, 4, 7, 7)",
    ),
    "bias of too many heads": (
        {"bias": lambda self, positions: torch.zeros(1, 2, 7, 7)},
        "bias returned (1, 2, 7, 7), expected (2 or 1, 4, 7, 7)",
    ),
    "bias of keys alone": (
        {"bias": lambda self, positions: torch.zeros(2, 1, 1, 7), "shared": False},
        "bias returned (2, 1, 1, 7), expected (2 or 1, 1, 7, 7)",
    ),
    "products of one head": (
        {"product": lambda self, q, k, positions: (q @ k.mT)[:, :1]},
        "product returned (2, 1, 7, 7), expected (2, 4, 7, 7)",
    ),
    "preparation of one head": (
        {
            "prepare_product": lambda self, k, positions: k[:, :1],
            "product": lambda self, q, k, positions: q @ k.mT,
        },
        "prepare_product returned (2, 1, 7, 16), expected (2, 4, 7, any)",
    ),
    "logits of one head": (
        {"rewrite_logits": lambda self, scores, q, k, positions: scores[:, :1]},
        "rewrite_logits returned (2, 1, 7, 7), expected (2, 4, 7, 7)",
    ),
}


@pytest.mark.parametrize("what", WRONG)
@torch.no_grad()
def test_wrong_shapes_are_refused(what: str) -> None:
    hooks, message = WRONG[what]
    with pytest.raises(InputError) as caught:
        decoder(hooks)(TOKENS)
    assert str(caught.value) == f"Mine.{message}"


@torch.no_grad()
def test_wrong_extra_values_are_refused() -> None:
    model = decoder({"extra_values": lambda self, state: torch.zeros(2, 1, 7, 3)}, StatefulEncoding)
    with pytest.raises(InputError) as caught:
        model(TOKENS)
    says = "Mine.extra_values returned (2, 1, 7, 3), expected (2 or 1, 4, 7, any)"
    assert str(caught.value) == says


@torch.no_grad()
def test_shapes_are_those_of_the_new_tokens_while_decoding() -> None:
    """The encoding has right shapes for a whole prompt and wrong ones with a cache."""

    def bias(self: Encoding, positions: Positions) -> Tensor:
        return positions.key.new_zeros(1, 4, positions.key.shape[1], positions.key.shape[1])

    model, cache = decoder({"bias": bias}), Cache(2, 7)
    model(TOKENS[:, :5], cache)
    with pytest.raises(InputError, match=r"bias returned \(1, 4, 7, 7\), .* \(2 or 1, 4, 2, 7\)"):
        model(TOKENS[:, 5:], cache)


@pytest.mark.parametrize("rows", [1, 2])
@torch.no_grad()
def test_one_row_and_one_head_may_stand_for_all(rows: int) -> None:
    hooks: dict[str, Hook] = {
        "positions": lambda self, tokens: torch.arange(7).expand(rows, -1),
        "separable_bias": lambda self, positions: torch.zeros(rows, 4, 7),
        "bias": lambda self, positions: torch.zeros(rows, 1, 7, 7),
        "prepare": lambda self, x, positions: torch.zeros(rows, 4, 7, 3),
        "extra_values": lambda self, state: state,
    }
    model = decoder(hooks, StatefulEncoding)
    plain = Decoder(SHAPE, Encoding).eval()
    plain.load_state_dict(model.state_dict())
    torch.testing.assert_close(model(TOKENS), plain(TOKENS))
    torch.testing.assert_close(model(TOKENS, backend="eager"), plain(TOKENS))


@torch.no_grad()
def test_a_bias_is_computed_once_where_layers_share_it() -> None:
    calls: list[int] = []

    def bias(self: Encoding, positions: Positions) -> Tensor:
        calls.append(self.layer)
        assert positions.features is None or not self.shared
        return torch.zeros(1, 4, 7, 7)

    def token_features(self: Encoding, x: Tensor, positions: Positions) -> Tensor:
        return x.new_zeros(2, 4, 7, 1)

    hooks = {"bias": bias, "token_features": token_features}
    decoder(hooks)(TOKENS)
    assert calls == [0]
    decoder(hooks | {"shared": False})(TOKENS)
    assert calls == [0, 0, 1]


@torch.no_grad()
def test_hooks_are_told_their_layer_and_what_is_kept_lasts_a_forward() -> None:
    made: list[int] = []
    layers: list[int] = []

    def table(ids: Tensor) -> int:
        made.append(ids.shape[1])
        return len(made)

    def transform_qk(self: Encoding, q: Tensor, k: Tensor, positions: Positions) -> Any:
        layers.append(positions.layer)
        assert positions.once(table, positions.query) == len(made)
        return q, k

    model = decoder({"transform_qk": transform_qk})
    model(TOKENS)
    model(TOKENS[:, :3])
    assert made == [7, 3] and layers == [0, 1, 0, 1]


def test_positions() -> None:
    query, key = torch.tensor([[4, 6]]), torch.tensor([[0, 3, 4, 6]])
    features = torch.arange(4.0).view(1, 1, 4, 1)
    positions = Positions(query, key, torch.tensor([[2, 3]]), features=features)
    assert positions.distance.tolist() == [[[4, 1, 0, 0], [6, 3, 2, 0]]]
    assert positions.causal.long().tolist() == [[[[1, 1, 1, 0], [1, 1, 1, 1]]]]
    assert positions.query_features is not None
    assert positions.query_features.flatten().tolist() == [2, 3]
    assert Positions(key, key).causal[0, 0].equal(torch.ones(4, 4).tril().bool())


def test_an_auxiliary_loss_is_a_scalar() -> None:
    assert decoder({"extra_loss": lambda self: torch.ones(())}).extra_loss() == 1
    with pytest.raises(InputError, match=r"extra_loss returned \(3,\), expected a scalar"):
        decoder({"extra_loss": lambda self: torch.ones(3)}).extra_loss()
    with pytest.raises(InputError, match="extra_loss returned float, expected a scalar"):
        decoder({"extra_loss": lambda self: 0.1}).extra_loss()


class Slopes(Encoding):
    """Its bias depends on the layer."""

    def bias(self, positions: Positions) -> Tensor:
        return -(1.0 + positions.layer) * positions.distance[:, None]


class OwnSlopes(Slopes):
    shared = False


@torch.no_grad()
@pytest.mark.parametrize("backend", ["auto", "blocked"])
def test_a_shared_bias_does_not_depend_on_the_layer(backend: Backend) -> None:
    expected = r"cannot depend on positions.layer: set shared = False"
    with pytest.raises(InputError, match=expected):
        Decoder(SHAPE, Slopes).eval()(TOKENS, backend=backend)
    model = Decoder(SHAPE, OwnSlopes).eval()
    out = model(TOKENS, backend=backend)
    torch.testing.assert_close(out, model(TOKENS, backend="eager"))


@torch.no_grad()
def test_what_once_keeps_does_not_depend_on_the_layer() -> None:
    def bias(self: Encoding, positions: Positions) -> Tensor:
        made: Tensor = positions.once(Slopes.bias, self, positions)
        return made

    with pytest.raises(InputError, match="leave out `once`"):
        decoder({"bias": bias, "shared": False})(TOKENS)
