"""RoPE with a maximum distance (Su 2023, kexue.fm/archives/9708)."""

from typing import Any

from torch import Tensor

from pe_bench.api import InputError, ModelConfig, Positions
from pe_bench.encodings.rope import Remap
from pe_bench.encodings.rope.remap import check_at_least


class ReRoPE(Remap):
    """In evaluation, RoPE with the distance d = i - j up to the window w, then w + leak (d - w).

    | published code | here |
    |---|---|
    | w = 512 of 4096 tokens; 1024 in its results | a quarter of the training length |
    | always multiplies queries by max(1, ln n / ln L0) | with log_n=true |
    | Leaky ReRoPE: leak = 1/16 | an option |

    The code has no licence and was not run: tests compare with the formula in a loop.

    Args:
        window: w, the first distance that changes; None is a quarter of the training length.
        leak: slope beyond the window; 0 is ReRoPE, above 0 Leaky ReRoPE, 1 RoPE.
    """

    family = "extension"
    colour = "#56B4E9"
    marker = "s"

    variants = ("window=5,leak=0.0625,log_n=true,train_remapped=true",)

    def __init__(
        self,
        model: ModelConfig,
        layer: int = 0,
        *,
        window: int | None = None,
        leak: float = 0.0,
        **options: Any,
    ) -> None:
        super().__init__(model, layer, **options)
        self.window = max(1, model.train_length // 4) if window is None else window
        check_at_least(1, window=self.window)
        if not 0 <= leak <= 1:
            raise InputError(f"rerope:leak must be from 0 to 1, not {leak}")
        self.leak = leak

    def far(self, positions: Positions) -> Tensor:
        return positions.distance >= self.window

    def far_ids(self, positions: Positions) -> tuple[Tensor, Tensor]:
        query = self.window + self.leak * (positions.query - self.window).double()
        return query, self.leak * positions.key.double()
