"""Costs of an encoding: parameters, operations and cache, beyond a decoder without positions."""

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from pe_bench.checks.counting import CountElementwise, CountProducts
from pe_bench.config import ModelConfig
from pe_bench.decoder.cache import Cache
from pe_bench.decoder.model import Decoder, MakeEncoding
from pe_bench.encoding import Encoding

SHAPE = ModelConfig(
    layers=6,
    heads=4,
    width=256,
    mlp_width=1024,
    vocab_size=256,
    train_length=512,
    digit_ids=tuple(range(48, 58)),
    separator_ids=(10, 46),
)


@dataclass(frozen=True)
class Costs:
    """Costs of one encoding, in addition to the costs of a decoder without positions.

    Attributes:
        parameters: number of parameters of the encoding in all layers.
        flops: floating-point operations per token of a forward pass over the training length.
            As usual, attention counts all pairs of queries and keys. Copies are free.
        cache: cached numbers per token; None if no cache can be used.
        bare_flops: operations per token of the decoder without positions.
        bare_cache: cached numbers per token of the decoder without positions.
    """

    parameters: int
    flops: float
    cache: int | None
    bare_flops: float
    bare_cache: int


def measure_costs(make_encoding: MakeEncoding, shape: ModelConfig = SHAPE) -> Costs:
    """Return the costs of an encoding, from forward passes with and without it.

    Raises:
        InputError: the encoding does not fit the shape.
    """
    model = Decoder(shape, make_encoding).eval()
    limit = model.encoding.max_position
    length = shape.train_length if limit is None else min(shape.train_length, limit)
    bare_flops, bare_cache = _bare_costs(shape, length)
    tokens = _tokens(shape, length)
    flops = _flops(model, tokens) / length
    kept = _cached(model, tokens) - bare_cache if model.encoding.prefix_consistent else None
    return Costs(
        parameters=sum(p.numel() for p in model.encodings.parameters()),
        flops=flops - bare_flops,
        cache=kept,
        bare_flops=bare_flops,
        bare_cache=bare_cache,
    )


@functools.cache
def _bare_costs(shape: ModelConfig, length: int) -> tuple[float, int]:
    """Return the operations and cached numbers per token of a decoder without positions."""
    bare = Decoder(shape, Encoding).eval()
    tokens = _tokens(shape, length)
    return _flops(bare, tokens) / length, _cached(bare, tokens)


def _tokens(shape: ModelConfig, length: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(shape.vocab_size, (1, length), generator=generator)


@torch.no_grad()
def _flops(model: Decoder, tokens: Tensor) -> float:
    products = CountProducts()
    # Avoid the blocked backend, which skips the products with later keys.
    formula = any(map(model.encoding.overrides, ("product", "rewrite_logits", "normalise")))
    with products, CountElementwise() as others:
        model(tokens, backend="eager" if formula else "sdpa")
    return float(products.get_total_flops() + others.count)


@torch.no_grad()
def _cached(model: Decoder, tokens: Tensor) -> int:
    cache = Cache(1, 2)
    model(tokens[:, :2], cache)
    return cache.numbers_per_token
