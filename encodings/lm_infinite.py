"""RoPE with the first tokens and a window visible (Han et al. 2023, arXiv 2308.16137)."""

from typing import Any

import torch
from torch import Tensor

from pe_bench.api import ModelConfig, Positions
from pe_bench.encodings.rope import Remap
from pe_bench.encodings.rope.remap import check_at_least


class LMInfinite(Remap):
    """In evaluation, RoPE with distance min(i - j, w), for keys with j < sinks or i - j < w.

    | published code | here |
    |---|---|
    | 10 or 100 first tokens | 10 |
    | window and distance limit are two options | both are w, as in all its examples |
    | a few more keys in the middle, by their logits, as an option | left out |

    Other keys are masked. The cache keeps them, although the method would not need them.

    Args:
        sinks: number of first tokens that are visible to all queries.
        window: w; None is the training length.
    """

    family = "extension"
    label = "LM-Infinite"
    colour = "#56B4E9"
    marker = "v"

    variants = ("sinks=2,window=6,log_n=true",)

    def __init__(
        self,
        model: ModelConfig,
        layer: int = 0,
        *,
        sinks: int = 10,
        window: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(model, layer, **options)
        self.sinks = sinks
        self.window = model.train_length if window is None else window
        check_at_least(1, sinks=sinks, window=self.window)

    def far(self, positions: Positions) -> Tensor:
        return positions.distance >= self.window

    def far_ids(self, positions: Positions) -> tuple[Tensor, Tensor]:
        key = torch.zeros_like(positions.key[:, : self.sinks])
        return torch.full_like(positions.query, self.window), key

    def rewrite_logits(self, scores: Tensor, q: Tensor, k: Tensor, positions: Positions) -> Tensor:
        logits = super().rewrite_logits(scores, q, k, positions)
        hidden = positions.distance >= self.window  # (B or 1, T, S)
        hidden[..., : self.sinks] = False
        return logits.masked_fill(hidden[:, None], -torch.inf)
