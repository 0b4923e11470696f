"""Costs of an encoding: parameters, operations and cache, beyond a decoder without positions."""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

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

# Operations on every element that carry no "pointwise" tag; and those that only move numbers.
REDUCTIONS = {"_softmax", "cumsum", "sum", "mean", "amax", "max", "linalg_vector_norm"}
MOVES = {"_to_copy", "clone", "copy", "copy_", "masked_fill", "masked_fill_", "where", "fill_"}


@dataclass(frozen=True)
class Costs:
    """Costs of one encoding, in addition to those of a decoder without positions.

    Attributes:
        parameters: number of parameters of the encoding in all layers.
        flops: floating-point operations per token of a forward pass over the training length.
            Attention counts as the whole square of queries and keys, as usual; copies are free.
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
    """Return the costs of an encoding, from one forward pass with and one without it.

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
    products = FlopCounterMode(display=False, custom_mapping=_EXTRA)
    # Blocks, and nothing else, leave out the products with later keys.
    formula = any(map(model.encoding.overrides, ("product", "rewrite_logits", "normalise")))
    with products, _Elementwise() as others:
        model(tokens, backend="eager" if formula else "sdpa")
    return float(products.get_total_flops() + others.count)


@torch.no_grad()
def _cached(model: Decoder, tokens: Tensor) -> int:
    cache = Cache(1, 2)
    model(tokens[:, :2], cache)
    return cache.numbers_per_token


def count_products(call: Callable[[], object]) -> int:
    """Return the floating-point operations of the matrix products in a call."""
    counter = FlopCounterMode(display=False, custom_mapping=_EXTRA)
    with counter:
        call()
    return int(counter.get_total_flops())


class _Elementwise(TorchDispatchMode):
    """Counts one operation for each element that arithmetic touches."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        first = out[0] if isinstance(out, tuple | list) else out
        if isinstance(first, Tensor) and first.is_floating_point():
            if name in REDUCTIONS:
                self.count += args[0].numel()
            elif torch.Tag.pointwise in func.tags and name not in MOVES:
                self.count += first.numel()
        return out


def _attention(q: Any, k: Any, v: Any, *_: Any, **__: Any) -> int:
    """Operations of torch's fused attention on a CPU, which torch's counter lacks."""
    batch, heads, queries, dim = q
    return int(2 * batch * heads * queries * k[2] * (dim + v[3]))


def _attention_backward(gradient: Any, q: Any, k: Any, v: Any, *_: Any, **__: Any) -> int:
    """Operations of its backward pass: the logits again, and two products for each forward one."""
    batch, heads, queries, dim = q
    return int(2 * batch * heads * queries * k[2] * (3 * dim + 2 * v[3]))


def _triangular_solve(matrix: Any, right: Any, *_: Any, **__: Any) -> int:
    """Operations of a triangular solve: n^2 for each column of the right-hand side."""
    return int(math.prod(matrix[:-2]) * matrix[-1] ** 2 * right[-1])


_EXTRA: dict[Any, Callable[..., int]] = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
    torch.ops.aten.linalg_solve_triangular: _triangular_solve,
}
