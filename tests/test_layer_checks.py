"""Encodings are refused if their layers do not fit together or into the decoder."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from pe_bench.checks.before_run import find_fault
from pe_bench.config import ModelConfig
from pe_bench.decoder.attention_layers import AttentionLayers
from pe_bench.decoder.empty import without_memory
from pe_bench.decoder.layer import AttentionLayer
from pe_bench.decoder.model import Decoder
from pe_bench.decoder.unsaved import find_unsaved
from pe_bench.encoding import Encoding
from pe_bench.errors import FaultyPlugin
from pe_bench.layers import Layers
from pe_bench.positions import Positions
from pe_bench.pretrained.weights import make_empty
from pe_bench.registry import plugins

SHAPE = ModelConfig(layers=4, heads=2, width=8, mlp_width=8, vocab_size=50)


class Dilated(Encoding):
    shared = False

    def positions(self, tokens: Tensor) -> Tensor:
        return super().positions(tokens) // (1 + self.layer)


class Coarse(Encoding):
    shared = False

    def draw_positions(self, ids: Tensor, lengths: Tensor) -> Tensor:
        drawn = ids + int(torch.randint(1000, ()))
        return drawn // (1 + self.layer)


class Added(Encoding):
    shared = False

    def embed(self, x: Tensor, positions: Positions) -> Tensor:
        return x + self.layer


class Tables(Encoding):
    shared = False

    def __init__(self, model: ModelConfig, layer: int = 0) -> None:
        super().__init__(model, layer)
        self.max_position = 100 - layer


class Lengths(Encoding):
    shared = False

    def __init__(self, model: ModelConfig, layer: int = 0) -> None:
        super().__init__(model, layer)
        self.prefix_consistent = layer != 1


class Alternating(Layers):
    def __init__(self, model: ModelConfig, layer: int = 0) -> None:
        super().__init__(model, [Encoding, Dilated], [0, 1, 0, 1], [None, None])


REFUSED = {
    Dilated: "Dilated.positions differs between layers 0 and 1, .* select it by positions.layer",
    Coarse: "Coarse.draw_positions differs between layers 0 and 1, but is called for the first",
    Added: "Added.embed differs between layers 0 and 1, .* the input of the first layer only",
    Tables: "Tables.max_position is 100 in layer 0 and 99 in layer 1: set it to the same value",
    Lengths: "prefix_consistent is True in layer 0 and False in layer 1",
    Alternating: "Dilated.positions differs between layers 1 and 3",
}


@pytest.mark.parametrize("make", [Decoder, AttentionLayers, make_empty])
@pytest.mark.parametrize("cls", REFUSED)
def test_positions_of_one_layer_are_refused(cls: Any, make: Callable[..., Any]) -> None:
    with pytest.raises(FaultyPlugin, match=REFUSED[cls]):
        make(SHAPE, cls)


class SinkOfShares(Encoding):
    def sink(self) -> Tensor:
        return torch.zeros(self.model.heads)

    def normalise(self, logits: Tensor) -> Tensor:
        return logits.softmax(-1)


class NoSink(SinkOfShares):
    def sink(self) -> Any:
        return None


class OneSink(Layers):
    def __init__(self, model: ModelConfig, layer: int = 0) -> None:
        super().__init__(model, [Encoding, SinkOfShares], [0, 1, 0, 1], [None, None])


@pytest.mark.parametrize("make", [Decoder, AttentionLayers, make_empty, AttentionLayer])
@pytest.mark.parametrize("make_encoding", [SinkOfShares, OneSink])
def test_a_sink_without_softmax_is_refused(make_encoding: Any, make: Callable[..., Any]) -> None:
    layer = {"layer": 1} if make is AttentionLayer else {}
    with pytest.raises(FaultyPlugin, match=r"a sink, .* but its normalise replaces the softmax"):
        make(SHAPE, make_encoding, **layer)


def test_a_sink_may_be_none() -> None:
    Decoder(SHAPE, NoSink)


FILE = """
from pe_bench.api import Encoding

class Mine(Encoding):
    shared = {shared}

    def positions(self, tokens):
        return super().positions(tokens) // (1 + self.layer)

    def bias(self, positions):
        return -positions.distance[:, None] * (1.0 + positions.layer)
"""


@pytest.mark.parametrize(
    ("shared", "words"),
    [(False, "positions differs between layers"), (True, "cannot depend on positions.layer")],
)
def test_a_run_is_refused_before_it_trains(shared: bool, words: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(FILE.format(shared=shared))
    for spec in (str(file), f"hybrid:local={file}"):
        found = find_fault(plugins.load("encoding", spec))
        assert found is not None and words in found


def test_a_run_with_a_sink_without_softmax_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from pe_bench.api import Encoding\n\nclass Mine(Encoding):\n"
        "    def normalise(self, logits):\n        return logits.softmax(-1)\n"
    )
    assert find_fault(plugins.load("encoding", str(file))) is None
    found = find_fault(plugins.load("encoding", f"sinks:base={file}"))
    assert found is not None and "Sinks has a sink, which takes part in the softmax" in found


class Jittered(Encoding):
    """The same random numbers in all layers, and parameters of each layer."""

    shared = False

    def __init__(self, model: ModelConfig, layer: int = 0) -> None:
        super().__init__(model, layer)
        self.gain = nn.Parameter(torch.rand(1))

    def draw_positions(self, ids: Tensor, lengths: Tensor) -> Tensor:
        return ids + int(torch.randint(1000, ()))

    def embed(self, x: Tensor, positions: Positions) -> Tensor:
        return x * self.gain


class Fails(Encoding):
    shared = False

    def positions(self, tokens: Tensor) -> Tensor:
        raise RuntimeError


@pytest.mark.parametrize("cls", [Jittered, Fails])
def test_layers_that_may_agree_are_accepted(cls: type[Encoding]) -> None:
    torch.manual_seed(0)
    Decoder(SHAPE, Encoding)
    for _ in range(SHAPE.layers if cls is Jittered else 0):
        torch.rand(1)
    numbers = torch.rand(3)
    torch.manual_seed(0)
    Decoder(SHAPE, cls)
    assert torch.equal(torch.rand(3), numbers)  # the comparison draws none


class Table(Encoding):
    shared = False

    def __init__(self, model: ModelConfig, layer: int = 0) -> None:
        super().__init__(model, layer)
        self.ids: Tensor
        self.register_buffer("ids", torch.arange(100) // (1 + layer))

    def positions(self, tokens: Tensor) -> Tensor:
        return self.ids[None, : tokens.shape[1]]


def test_positions_without_values_are_not_compared() -> None:
    for without_values in (without_memory, FakeTensorMode):
        with without_values():
            Decoder(SHAPE, Table)
    with pytest.raises(FaultyPlugin, match=r"Table.positions differs"):
        Decoder(SHAPE, Table)


class RandomBuffer(Encoding):
    """Draws positions from a saved random buffer, which each layer has; the first one is used."""

    shared = False

    def __init__(self, model: ModelConfig, layer: int = 0) -> None:
        super().__init__(model, layer)
        self.order: Tensor
        self.register_buffer("order", torch.randperm(200))

    def draw_positions(self, ids: Tensor, lengths: Tensor) -> Tensor:
        return self.order[None, : ids.shape[1]].sort().values

    def embed(self, x: Tensor, positions: Positions) -> Tensor:
        return x + self.order[positions.query][..., None] / 200  # (B, T, C)


def test_saved_random_buffers_may_differ_between_layers() -> None:
    Decoder(SHAPE, RandomBuffer)
    assert find_unsaved(RandomBuffer, SHAPE) is None


class Views(Encoding):
    def __init__(self, model: ModelConfig, layer: int = 0) -> None:
        super().__init__(model, layer)
        self.weight = nn.Parameter(torch.randn(4))
        self.views = [self.weight[:2]]
        self.by_head = {0: self.weight}
        self.number = next(COUNTER)


COUNTER = itertools.count()


def test_views_of_saved_tensors_and_counters_are_not_random() -> None:
    assert find_unsaved(Views, SHAPE) is None
