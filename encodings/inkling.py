"""Biases by distance that depend on the query (Thinking Machines 2026, Inkling)."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from pe_bench.api import Encoding, InputError, ModelConfig, Positions


class Inkling(Encoding):
    """logit_ij += r_i P[:, i - j] below distance `extent`, with r = W x for each head.

    P is (rank, extent) and shared by all heads of a layer: profiles over distances, which every
    query mixes according to its content. With a constant r it is a bias by distance, as in T5. The
    source is the code of the model in transformers (Apache 2.0), with which the tests compare; no
    paper was found.

    | Inkling | here |
    |---|---|
    | P ends at 1024 of 131,072 tokens, with a window at 512 | at a quarter of the training length |
    | windows in five of six layers | no windows |
    | queries and keys normalised, products divided by D | as in the model, by sqrt(D) |
    | short convolutions over keys and values | left out: not positional |

    Args:
        rank: numbers of r per head, and rows of P; 16 in the model.
        extent: number of distances in P; None: a quarter of the training length.
        floor: if a query has n > floor keys, q and bias are multiplied by 1 + strength
            ln(n / floor). None, the default of the model's code, turns this off.
        strength: see `floor`; 0.1 in the model's code.
    """

    family = "content"
    colour = "#009E73"
    marker = "s"

    shared = False
    shift_invariant = True
    parameters_per_layer = "16*H*C + 16*(L//4)"
    variants = ("rank=4,extent=8,floor=16,strength=0.2",)

    def __init__(
        self,
        model: ModelConfig,
        layer: int = 0,
        *,
        rank: int = 16,
        extent: int | None = None,
        floor: int | None = None,
        strength: float = 0.1,
        **options: Any,
    ) -> None:
        super().__init__(model, layer, **options)
        self.extent = max(1, model.train_length // 4) if extent is None else extent
        self.floor = floor
        self.strength = strength
        for name, value in {"rank": rank, "extent": extent, "floor": floor}.items():
            if value is not None and value < 1:
                raise InputError(f"inkling:{name} must be at least 1, not {value}")
        if not 0 <= strength < math.inf:
            raise InputError(f"inkling:strength must be at least 0, not {strength}")
        self.mix = nn.Linear(model.width, model.heads * rank, bias=False)
        self.profiles = nn.Parameter(model.init_std * torch.randn(rank, self.extent))
        nn.init.normal_(self.mix.weight, std=model.init_std)

    def token_features(self, x: Tensor, positions: Positions) -> Tensor:
        """Return r, (B, H, T, rank)."""
        mixed: Tensor = self.mix(x).unflatten(-1, (self.model.heads, -1))
        return mixed.transpose(1, 2)

    def bias(self, positions: Positions) -> Tensor:
        assert positions.query_features is not None  # `token_features` made them
        by_distance = positions.query_features @ self.profiles  # (B, H, T, extent)
        distance = positions.distance[:, None]  # (B or 1, 1, T, S)
        near = distance.clamp(max=self.extent - 1).expand(*by_distance.shape[:2], -1, -1)
        bias = by_distance.gather(-1, near)  # (B, H, T, S)
        bias = bias.masked_fill(distance >= self.extent, 0)
        factors = self.temperature(positions)  # (B or 1, 1, T)
        return bias if factors is None else bias * factors[..., None]

    def temperature(self, positions: Positions) -> Tensor | None:
        if self.floor is None:
            return None
        keys = positions.count[:, None]  # (B or 1, 1, T)
        return 1 + self.strength * (keys / self.floor).clamp(min=1).log()
