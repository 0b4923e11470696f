"""Layers whose encodings have other positions than the first one are refused."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pe_bench.config import ModelConfig
from pe_bench.decoder.attention_layers import AttentionLayers
from pe_bench.decoder.empty import without_memory
from pe_bench.decoder.model import Decoder
from pe_bench.encoding import Encoding
from pe_bench.errors import InputError
from pe_bench.layers import Layers
from pe_bench.positions import Positions
from pe_bench.pretrained.weights import make_empty

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
    with pytest.raises(InputError, match=REFUSED[cls]):
        make(SHAPE, cls)


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
    with without_memory():
        Decoder(SHAPE, Table)
    with pytest.raises(InputError, match=r"Table.positions differs"):
        Decoder(SHAPE, Table)
