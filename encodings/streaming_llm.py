"""Rotary by places in a cache of first and last tokens (Xiao et al. 2023, arXiv 2309.17453)."""

from typing import Any

import torch
from torch import Tensor

from pe_bench.api import ModelConfig, Positions
from pe_bench.encodings.lm_infinite import LMInfinite


class StreamingLLM(LMInfinite):
    """In evaluation RoPE at the distance of places among what a query sees.

    It sees keys j < sinks, whose place is j, and those at d = i - j < w. Its own place is at most
    sinks + w - 1, so d becomes min(d, sinks + w - 1 - j) for j < sinks.

    | published code | here |
    |---|---|
    | a cache of sinks + `recent_size` keys, and the query behind it | w = recent_size + 1 |
    | 4 first tokens, 255 or 2000 recent ones | as many places in all as in training |
    | other keys are thrown away | they are not seen, but the cache keeps them |

    Args:
        sinks: first tokens that all queries see.
        window: w, with the query itself; None: with the sinks the training length L0.
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
