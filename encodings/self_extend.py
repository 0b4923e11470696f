"""RoPE nearby, and with grouped positions farther away (Jin et al. 2024, arXiv 2401.01325)."""

from typing import Any

from torch import Tensor

from pe_bench.api import ModelConfig, Positions
from pe_bench.encodings.rope import Remap
from pe_bench.encodings.rope.remap import check_at_least


class SelfExtend(Remap):
    """In evaluation, RoPE with the distance i - j up to the window w, and beyond it with

        floor(i/G) - floor(j/G) + w - floor(w/G).

    All distances are within the training length L0 for up to w + G (L0 - w) tokens, by default
    6.25 L0.

    | published code | here |
    |---|---|
    | w = 1024 of 4096 tokens | a quarter of the training length |
    | eager attention: w/G, not rounded; fused: floor | floor, as in the paper |

    Args:
        window: w, the first distance that changes; None is a quarter of the training length.
        group: G, the number of tokens that share a position id.
    """

    family = "extension"
    label = "Self-Extend"
    colour = "#56B4E9"
    marker = "o"

    shift_invariant = False
    variants = ("window=5,group=3",)

    def __init__(
        self,
        model: ModelConfig,
        layer: int = 0,
        *,
        window: int | None = None,
        group: int = 8,
        **options: Any,
    ) -> None:
        super().__init__(model, layer, **options)
        self.window = max(1, model.train_length // 4) if window is None else window
        self.group = group
        check_at_least(1, window=self.window, group=group)

    def far(self, positions: Positions) -> Tensor:
        return positions.distance >= self.window

    def far_ids(self, positions: Positions) -> tuple[Tensor, Tensor]:
        shift = self.window - self.window // self.group
        return positions.query // self.group + shift, positions.key // self.group
