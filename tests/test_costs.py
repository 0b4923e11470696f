"""Counted costs equal those computed by hand."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from helpers import some_slow
from torch import Tensor, nn

from pe_bench.checks.costs import SHAPE, measure_costs
from pe_bench.checks.counting import CountElementwise
from pe_bench.config import ModelConfig
from pe_bench.encoding import Encoding
from pe_bench.positions import Positions
from pe_bench.registry import catalogue, plugins

NAMES = catalogue.names("encoding")
LAYERS, WIDTH, HEADS, LENGTH = 3, 24, 2, 20
SMALL = SHAPE.changed(
    layers=LAYERS, width=WIDTH, heads=HEADS, kv_heads=0, mlp_width=32, vocab_size=64
).changed(train_length=LENGTH)


class Gated(Encoding):
    """An encoding with a linear map per layer whose result is cached."""

    shared = False

    def __init__(self, model: ModelConfig, layer: int = 0) -> None:
        super().__init__(model, layer)
        self.gate = nn.Linear(model.width, model.heads, bias=False)

    def token_features(self, x: Tensor, positions: Positions) -> Tensor:
        gate: Tensor = self.gate(x)
        return gate.transpose(1, 2)[..., None]


class Scaling(Encoding):
    """An encoding with one multiplication for each number of the embeddings."""

    def embed(self, x: Tensor, positions: Positions) -> Tensor:
        return 2 * x


class Rewriting(Encoding):
    """An encoding that doubles the logits, which rules out fused kernels."""

    def rewrite_logits(self, scores: Tensor, *rest: Any) -> Tensor:
        return 2 * scores


class Whole(Scaling):
    prefix_consistent = False


@pytest.mark.parametrize("kv_heads", [2, 1])
def test_a_decoder_without_positions_costs_nothing_extra(kv_heads: int) -> None:
    costs = measure_costs(Encoding, replace(SMALL, kv_heads=kv_heads))
    assert (costs.parameters, costs.flops, costs.cache) == (0, 0, 0)
    assert costs.bare_cache == kv_heads * LAYERS * WIDTH
    # Per token: the products with the weights, q k^T, the sum of the values, and few others.
    weights = (2 + kv_heads) * WIDTH**2 + 3 * WIDTH * SMALL.mlp_width
    products = 2 * LAYERS * (weights + 2 * LENGTH * WIDTH) + 2 * WIDTH * SMALL.vocab_size
    others = LAYERS * (3 * SMALL.mlp_width + 20 * WIDTH)
    assert products < costs.bare_flops < products + others


class Table(Scaling):
    """An encoding with fewer positions than a training row has tokens."""

    def __init__(self, model: ModelConfig, layer: int = 0) -> None:
        super().__init__(model, layer)
        self.max_position = LENGTH - 8


@pytest.mark.parametrize(
    ("encoding", "parameters", "flops", "cache"),
    [
        (Gated, LAYERS * HEADS * WIDTH, 2 * LAYERS * HEADS * WIDTH, LAYERS * HEADS),
        (Scaling, 0, WIDTH, 0),
        (Whole, 0, WIDTH, None),
        (Table, 0, WIDTH, 0),
    ],
)
def test_costs(encoding: Any, parameters: int, flops: int, cache: int | None) -> None:
    costs = measure_costs(encoding, SMALL)
    assert costs.parameters == parameters and costs.cache == cache
    assert costs.flops == pytest.approx(flops)
    pairs = 4 * LAYERS * WIDTH * (8 if encoding is Table else 0)  # attention to fewer keys
    assert costs.bare_flops == pytest.approx(measure_costs(Encoding, SMALL).bare_flops - pairs)


def test_an_elementwise_operation_counts_once_for_each_number() -> None:
    """A reduction counts the numbers it reads. Moves, and operations on integers, are free."""
    x = torch.ones(2, 3)
    mask = x > 0
    with CountElementwise() as counter:
        x.clone().to(torch.float64).masked_fill_(mask, 0.0).copy_(x)
        torch.where(mask, x, x.masked_fill(mask, 1.0)).fill_(2.0)
        torch.arange(5) * 2
    assert counter.count == 0
    with counter:
        x.exp() + x  # 6 each
        x.softmax(-1).sum()  # 6 each
    assert counter.count == 24


def test_losing_the_fused_path_is_seen() -> None:
    costs = measure_costs(Rewriting, SMALL)
    per_pair = costs.flops / (LAYERS * HEADS * LENGTH)
    assert 2 <= per_pair <= 5  # rewriting and softmax of a logit


def test_counting_leaves_autograd_alone() -> None:
    before = torch.is_grad_enabled()
    measure_costs(Encoding, SMALL)
    assert torch.is_grad_enabled() is before


@pytest.mark.parametrize("name", some_slow(NAMES))
def test_the_costs_of_every_encoding_can_be_counted(name: str) -> None:
    shape = replace(SHAPE, layers=1, train_length=32)
    costs = measure_costs(plugins.load("encoding", name).make, shape)
    assert costs.parameters >= 0 and costs.flops >= 0
