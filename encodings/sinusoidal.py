"""Absolute sinusoids, added to the token embeddings (Vaswani et al. 2017, arXiv 1706.03762)."""

import math
from typing import Any, Literal

import torch
from torch import Tensor

from pe_bench.api import Encoding, InputError, ModelConfig, Positions


class Sinusoidal(Encoding):
    """x = scale * token + e(p), e a sine and a cosine of p / 10000^(2m/C) for each m < C/2.

    Three layouts have this name. "interleaved", as in the paper, alternates sines and cosines;
    "concat" has all sines first; "t2t", the authors' code, also has all sines first and divides the
    frequencies into C/2 - 1 steps, so that the slowest is exactly 1/10000.

    Args:
        layout: "interleaved", "concat" or "t2t". scale: factor of the token embeddings. "sqrt" is
        sqrt(C) as in the paper; without it tokens
            with a standard deviation of 0.02 are negligible beside sinusoids of amplitude one.
            "one" is common in published baselines.
    """

    family = "absolute"
    colour = "#CC79A7"
    marker = "s"

    variants = ("layout=concat,scale=one", "layout=t2t", "train_positions=offset")

    def __init__(
        self,
        model: ModelConfig,
        layer: int = 0,
        *,
        layout: Literal["interleaved", "concat", "t2t"] = "interleaved",
        scale: Literal["sqrt", "one"] = "sqrt",
        **options: Any,
    ) -> None:
        super().__init__(model, layer, **options)
        if model.width % 2 or (layout == "t2t" and model.width < 4):
            raise InputError(f"sinusoids come in pairs: model.width {model.width} must be even")
        self.layout = layout
        self.scale = math.sqrt(model.width) if scale == "sqrt" else 1.0

    def table(self, positions: Tensor) -> Tensor:
        """Return the embedding of each position in float64: (B or 1, T) -> (B or 1, T, C)."""
        half = self.model.width // 2
        steps = half - 1 if self.layout == "t2t" else half
        exponents = torch.arange(half, device=positions.device).double() / steps
        angles = positions.double()[..., None] * 10_000**-exponents
        waves = angles.sin(), angles.cos()
        if self.layout == "interleaved":
            return torch.stack(waves, dim=-1).flatten(-2)
        return torch.cat(waves, dim=-1)

    def embed(self, x: Tensor, positions: Positions) -> Tensor:
        return self.scale * x + self.table(positions.query).to(x.dtype)
