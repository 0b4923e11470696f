"""RoPE with long distances shifted to shorter ones (An et al. 2024, arXiv 2410.18745)."""

from typing import Any

from torch import Tensor

from pe_bench.api import InputError, ModelConfig, Positions
from pe_bench.encodings.rope import Remap


class STRING(Remap):
    """In evaluation, RoPE with the distance d = i - j below the offset N, and d - N + W from there.

    This avoids the longest distances, which are rare in training. It is designed for texts up to
    the training length L0; texts longer than L0 + N - W have untrained distances.

    | published code | here |
    |---|---|
    | W = 128 of 131 072 tokens | 128, but at most L0/16 |
    | cos and sin times 1 + 0.1 ln 2, at all lengths | times `gain`, 1 by default |
    | a prompt counts the key at distance N twice, decoding once | once |

    Args:
        offset: N; None is a third of the training length L0.
        local: W, the new value of the distance N; None: see above.
        gain: factor of cos and sin; logits are multiplied by its square.
    """

    family = "extension"
    colour = "#56B4E9"
    marker = "D"

    variants = ("offset=5,local=2,gain=1.07",)

    def __init__(
        self,
        model: ModelConfig,
        layer: int = 0,
        *,
        offset: int | None = None,
        local: int | None = None,
        gain: float = 1.0,
        **options: Any,
    ) -> None:
        super().__init__(model, layer, **options)
        self.offset = max(1, model.train_length // 3) if offset is None else offset
        self.local = min(128, model.train_length // 16) if local is None else local
        self.gain = gain
        if not 0 <= self.local <= self.offset or self.offset < 1:
            raise InputError(
                "string-rope:offset must be at least 1, and local from 0 to offset; they are "
                f"{self.offset} and {self.local}"
            )
        if gain <= 0:
            raise InputError(f"string-rope:gain must be greater than 0, not {gain}")

    def far(self, positions: Positions) -> Tensor:
        return positions.distance >= self.offset

    def far_ids(self, positions: Positions) -> tuple[Tensor, Tensor]:
        return positions.query - self.offset + self.local, positions.key

    def rewrite_logits(self, scores: Tensor, q: Tensor, k: Tensor, positions: Positions) -> Tensor:
        return self.gain**2 * super().rewrite_logits(scores, q, k, positions)
