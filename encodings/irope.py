"""Chunked RoPE, and NoPE with a temperature in every 4th layer (Llama 4, Meta 2025)."""

from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from pe_bench.api import EncodingSpec, Layers, ModelConfig, Positions, Visibility
from pe_bench.encodings.hybrid import find_global_layers
from pe_bench.encodings.log_temperature import LogTemperature
from pe_bench.encodings.nope import NoPE
from pe_bench.encodings.rope import BASE, RoPE

LIMITS = {"original_length": 8192, "beta_slow": 1.0, "beta_fast": 1.0 + 1e-9}
"""Of Llama 4's scaling: waves of more than 8192 tokens are scaled, all others are not.

Both limits are 1 in its config; the ramp between them needs a width.
"""


class _NormalisedRoPE(RoPE):
    """RoPE whose queries and keys have a mean square of one."""

    def transform_qk(self, q: Tensor, k: Tensor, positions: Positions) -> tuple[Tensor, Tensor]:
        q, k = super().transform_qk(q, k, positions)
        return _normalise(q), _normalise(k)


class IRoPE(Layers):
    """Layers l with (l + 1) % 4 == 0: NoPE, all keys, a temperature; the others: RoPE, chunks.

    In local layers, queries attend to the keys of their chunk only, and queries and keys are
    divided by their root mean square after the rotation. In the other layers, the temperature for n
    keys is 1 + scale ln(1 + floor(n / start)).

    | Llama 4 | here |
    |---|---|
    | chunks of 8192 tokens | a quarter of the training length |
    | temperature from 8192 keys on | from the training length on |
    | base 5e5, frequencies scaled as in Llama 3.1 | `rope`'s |

    The source is the code of transformers (models/llama4); there is no paper. `llama4` has the
    numbers of Llama 4.

    Args:
        every: distance between two layers without positions.
        chunk: size of a chunk; None is a quarter of the training length.
        start: number of keys where the temperature starts to grow; None is the training length.
        scale: scale of the temperature; 0 turns it off.
        base: base of the rotation in local layers.
        factor: s of the scaling in local layers, as in Llama 3.1 with both limits at 8192 tokens;
            1: no scaling.
    """

    family = "hybrid"
    label = "iRoPE"
    colour = "#44AA99"
    marker = "^"

    tunable = BASE
    variants: ClassVar[tuple[str, ...]] = (
        "every=2,chunk=8,start=8",
        "scale=0",
        "base=500",
        "factor=8",
    )

    def __init__(
        self,
        model: ModelConfig,
        layer: int = 0,
        *,
        every: int = 4,
        chunk: int | None = None,
        start: int | None = None,
        scale: float = 0.1,
        base: float = 10_000.0,
        factor: float = 1.0,
    ) -> None:
        size = max(1, model.train_length // 4) if chunk is None else chunk

        def make_global(model: ModelConfig, layer: int) -> LogTemperature:
            nope = EncodingSpec("nope")
            return LogTemperature(model, layer, base=nope, form="llama4", scale=scale, start=start)

        make_local = partial(_NormalisedRoPE, base=base)
        if factor != 1:
            make_local = partial(make_local, scaling="llama3", factor=factor, **LIMITS)
        makers = [make_local, make_global if scale else NoPE]
        kinds = find_global_layers(model, every)
        super().__init__(model, makers, kinds, [Visibility(chunk=size), None])


def _normalise(x: Tensor) -> Tensor:
    """Return x over its root mean square: (B, H, T, D) -> (B, H, T, D)."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
