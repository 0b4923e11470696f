"""What an encoding does that overrides no hook, hook by hook."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from pe_bench.checks.interface import HOOKS, NO_HOOKS
from pe_bench.checks.subject import CONFIG
from pe_bench.config import ModelConfig
from pe_bench.encoding import Encoding, StatefulEncoding
from pe_bench.errors import InputError
from pe_bench.positions import Positions, in_order
from pe_bench.random_ids import random_ids
from pe_bench.registry import catalogue, plugins

SHAPE = ModelConfig(layers=3, heads=2, width=8, mlp_width=8, vocab_size=9, train_length=6)
X = torch.arange(40.0).view(1, 5, 8)
Q, K = torch.randn(2, 1, 2, 5, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
SCORES = Q @ K.mT
WHERE = in_order(5, torch.device("cpu"))
STATE = (X, 2 * X)

GIVEN: dict[str, tuple[tuple[Any, ...], Any]] = {
    "positions": ((torch.zeros(2, 5),), torch.arange(5)[None]),
    "embed": ((X, WHERE), X),
    "transform_qk": ((Q, K, WHERE), (Q, K)),
    "distance_bias": ((torch.arange(3),), None),
    "bias": ((WHERE,), None),
    "token_features": ((X, WHERE), None),
    "scan_features": ((Q,), Q),
    "separable_bias": ((WHERE,), None),
    "product": ((Q, K, WHERE), SCORES / 2),
    "prepare_product": ((K, WHERE), None),
    "rewrite_logits": ((SCORES, Q, K, WHERE), SCORES),
    "temperature": ((WHERE,), None),
    "sink": ((), None),
    "normalise": ((SCORES,), SCORES.softmax(-1)),
    "extra_loss": ((), None),
    "llama_fields": ((), None),
    "draw_positions": ((torch.arange(5)[None], torch.tensor([5])), torch.arange(5)[None]),
    "prepare": ((X, WHERE), None),
    "extra_values": ((STATE,), None),
    "update_state": ((STATE, None, X, X), STATE),
}


@pytest.mark.parametrize("hook", [hook for hook in HOOKS if hook != "rotate_state"])
def test_a_default(hook: str) -> None:
    args, expected = GIVEN[hook]
    encoding = StatefulEncoding(SHAPE)
    found = getattr(encoding, hook)(*args)
    assert not encoding.overrides(hook)
    if isinstance(expected, tuple):
        assert all(map(torch.equal, found, expected))
    elif expected is None:
        assert found is None
    else:
        assert torch.equal(found, expected)


def test_what_describes_an_encoding() -> None:
    encoding = StatefulEncoding(SHAPE, 2)
    assert (encoding.layer, encoding.train_positions, encoding.eval_samples) == (2, "contiguous", 1)
    assert list(encoding.layer_kinds) == [encoding] and encoding.at_layer(2) is encoding
    assert encoding.kind_of(2) == 0 and encoding.options_of_llama({}, 3) == {}
    assert encoding.bias_matrix(WHERE) is None
    assert {"layer_kinds", "kind_of", "at_layer", "bias_matrix", "overrides"} <= set(NO_HOOKS)
    with pytest.raises(NotImplementedError):
        encoding.rotate_state(None, X)


class Undivided(Encoding):
    divide_scores = False

    def distance_bias(self, distances: Tensor) -> Tensor:
        return torch.stack([-1.0 * distances, 10.0 * distances])

    def separable_bias(self, positions: Positions) -> Tensor:
        return torch.tensor([[[1.0, 2, 4, 8, 16], [0, 0, 0, 0, 1]]])


def test_biases_are_added() -> None:
    encoding = Undivided(SHAPE)
    assert torch.equal(encoding.product(Q, K, WHERE), SCORES)
    last = WHERE.part(torch.tensor([3, 4]), slice(0, 5))
    bias = encoding.bias(last)
    assert bias is not None
    assert bias[0, 0].tolist() == [[-3, -2, -1, 0, 0], [-4, -3, -2, -1, 0]]
    assert torch.equal(bias[0, 1], -10 * bias[0, 0])
    both = encoding.bias_matrix(last)
    assert both is not None
    assert (both - bias)[0, 0].tolist() == [[7, 6, 4, 0, -8], [15, 14, 12, 8, 0]]
    assert (both - bias)[0, 1].tolist() == [[0, 0, 0, 0, -1], [1, 1, 1, 1, 0]]


@pytest.mark.parametrize("rows", [1, 2])
def test_an_offset_is_one_number_below_the_limit(rows: int) -> None:
    encoding = Encoding(SHAPE, train_positions="offset", max_train_position=7)
    ids, lengths = torch.arange(6).expand(rows, -1), torch.full((rows,), 6)
    seen = {int(encoding.draw_positions(ids, lengths)[0, 0]) for _ in range(40)}
    assert seen == {0, 1}
    found = encoding.draw_positions(ids, lengths)
    assert (found - ids).unique().numel() == 1
    assert torch.equal(encoding.eval().draw_positions(ids, lengths), ids)
    with pytest.raises(InputError, match="8 positions do not fit below max_train_position 7"):
        encoding.train().draw_positions(torch.arange(8)[None], torch.tensor([8]))


@pytest.mark.parametrize("how", ["trained", "contiguous"])
def test_random_ids_in_training_and_evaluation(how: Any) -> None:
    encoding = Encoding(SHAPE, train_positions="random", max_train_position=50, eval_positions=how)
    trained = how == "trained"
    assert encoding.needs_final_length is trained
    assert (encoding.eval_samples > 1) is trained
    assert encoding.max_position == (50 if trained else None)
    ids, lengths = torch.arange(6)[None], torch.tensor([6, 6])
    first, second = (encoding.draw_positions(ids, lengths) for _ in range(2))
    assert first.shape == (1, 6) and not torch.equal(first, second)
    assert (first.diff() > 0).all() and int(second.max()) < 50
    encoding.eval()
    frozen = encoding.draw_positions(ids, lengths)
    if not trained:
        assert torch.equal(frozen, ids)
        return
    assert torch.equal(frozen, encoding.draw_positions(ids, lengths))
    expected = random_ids(1, 6, 50, torch.Generator().manual_seed(0))
    assert torch.equal(frozen, expected)
    assert torch.equal(encoding.draw_positions(ids[:, :4], lengths), expected[:, :4])
    encoding.eval_sample = 3
    other = random_ids(1, 6, 50, torch.Generator().manual_seed(3))
    assert torch.equal(encoding.draw_positions(ids, lengths), other)
    more = encoding.draw_positions(torch.tensor([[0, 8]]), lengths)  # ids beyond the tokens
    assert more.tolist() == [
        random_ids(1, 9, 50, torch.Generator().manual_seed(3))[0, [0, 8]].tolist()
    ]


def test_random_ids_of_unequal_rows() -> None:
    """Each row has the smallest ids of the same permutation, padded with the last id."""
    every = random_ids(1, 4, 9, torch.Generator().manual_seed(2))
    found = random_ids(1, torch.tensor([4, 2]), 9, torch.Generator().manual_seed(2))
    assert found.shape == (2, 4) and torch.equal(found[:1], every)
    assert set(found[1, :2].tolist()) < set(every[0].tolist()) and found[1, 2:].tolist() == [8, 8]
    assert sorted(random_ids(1, 9, 9, None)[0].tolist()) == list(range(9))
    with pytest.raises(InputError, match="10 tokens need as many position ids, but there are 9"):
        random_ids(1, 10, 9, None)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"eval_positions": "contiguous"}, "eval_positions=contiguous has no effect"),
        ({"max_train_position": 2049}, "max_train_position has no effect"),
        ({"train_positions": "offset", "max_train_position": 5}, "at least the training length 6"),
        ({"train_positions": "random", "max_train_position": 5}, "at least the training length 6"),
    ],
)
def test_options_that_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        Encoding(SHAPE, **options)
    Encoding(SHAPE, train_positions="offset", max_train_position=6)


AS_THEIR_AUTHORS = ("dape", "dapev2", "fire", "kerple", "grape-a", "selective-rope")
"""Encodings whose random parameters do not depend on the decoder's standard deviation."""

CONSTANTS = {
    "bam.log_scale": -3.4657,
    "bam.shape": 1.0,
    "carope.projection.bias": 2.0402,
    "fire.c": 0.1,
    "fire.multiplier": 1.0,
    "grape-a.weight": 0.5413,
    "log-temperature.s": 0.39236,
    "wall.gates.bias": 8.0,
}
"""Means of parameters that do not begin at zero."""


@pytest.mark.parametrize("name", catalogue.names("encoding"))
def test_initial_parameters(name: str) -> None:
    """Random ones have the decoder's standard deviation, constants the value above, or zero."""

    def make(seed: int, std: float) -> dict[str, Tensor]:
        torch.manual_seed(seed)
        made = plugins.load("encoding", name).make(replace(CONFIG, init_std=std), 3)
        return {key: p.detach() for key, p in made.named_parameters() if p.numel()}

    first, second, doubled = make(0, 0.15), make(1, 0.15), make(0, 0.3)
    for key, values in first.items():
        if torch.equal(values, second[key]):
            constant = CONSTANTS.get(f"{name}.{key}", 0.0)
            assert float(values.mean()) == pytest.approx(constant, rel=1e-3), key
        elif name in AS_THEIR_AUTHORS:
            assert torch.equal(values, doubled[key]), key
        else:
            torch.testing.assert_close(2 * values, doubled[key])
            assert float(values.std()) == pytest.approx(0.15, rel=0.25), key


def test_a_window_that_is_skipped_in_training() -> None:
    """PoSE: the second part of a row begins later, by a number for each row."""
    encoding = plugins.load("encoding", "pose:target=20").make(SHAPE, 0)
    ids, lengths = torch.arange(6)[None], torch.full((400,), 6)
    drawn = encoding.draw_positions(ids, lengths)
    steps = drawn.diff(dim=1)
    assert drawn.shape == (400, 6) and (drawn[:, 0] == 0).all()
    assert ((steps > 1).sum(1) <= 1).all()
    assert set((drawn[:, -1] - 5).tolist()) == set(range(15))
    jumps = (steps > 1).nonzero()[:, 1] + 1
    assert set(jumps.tolist()) == {1, 2, 3}
    assert torch.equal(encoding.eval().draw_positions(ids, lengths), ids)
