"""RoPE by places in a cache of first and last tokens (Xiao et al. 2023, arXiv 2309.17453)."""

from typing import Any

import torch
from torch import Tensor

from pe_bench.api import ModelConfig, Positions
from pe_bench.encodings.lm_infinite import LMInfinite


class StreamingLLM(LMInfinite):
    """In evaluation, RoPE with distances between places in the cache.

    A query attends to keys j < sinks, whose place is j, and to keys at d = i - j < w. The place of
    the query is at most sinks + w - 1, so the distance of keys j < sinks is min(d, sinks + w - 1 -
    j).

    | published code | here |
    |---|---|
    | a cache of sinks + `recent_size` keys, then the query | w = recent_size + 1 |
    | 4 first tokens, 255 or 2000 recent ones | as many places as in training |
    | other keys are dropped | they are masked, but the cache keeps them |

    Args:
        sinks: number of first tokens that are visible to all queries.
        window: w, including the query; None: sinks + w is the training length L0.
    """

    family = "extension"
    colour = "#56B4E9"
    marker = "P"

    variants = ("sinks=2,window=6",)

    def __init__(
        self,
        model: ModelConfig,
        layer: int = 0,
        *,
        sinks: int = 4,
        window: int | None = None,
        **options: Any,
    ) -> None:
        window = max(1, model.train_length - sinks) if window is None else window
        super().__init__(model, layer, sinks=sinks, window=window, **options)

    def far(self, positions: Positions) -> Tensor:
        sinks = torch.arange(positions.key.shape[1], device=positions.key.device)  # (S,)
        return positions.distance > self.sinks + self.window - 1 - sinks

    def far_ids(self, positions: Positions) -> tuple[Tensor, Tensor]:
        last = self.sinks + self.window - 1
        sinks = torch.arange(min(self.sinks, positions.key.shape[1]), device=positions.key.device)
        return torch.full_like(positions.query, last), sinks[None]
