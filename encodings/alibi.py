"""Linear biases: each head forgets at its own rate (Press et al. 2022, arXiv 2108.12409)."""

import math
from typing import Any

import torch
from torch import Tensor

from pe_bench.api import Encoding, InputError, ModelConfig, Positions, Tunable


def slopes(heads: int) -> list[float]:
    """Return the penalty per token of each head.

    For 2^n heads they are 2^(-8/H), 2^(-16/H), ... Otherwise they are the slopes for the next lower
    power of two P, followed by every second slope for 2P, as in the authors' code.
    """
    lower = 2 ** (heads.bit_length() - 1)
    powers = [2.0 ** (-8 * (h + 1) / lower) for h in range(lower)]
    between = [2.0 ** (-4 * (h + 1) / lower) for h in range(0, 2 * (heads - lower), 2)]
    return powers + between


def other_scales(model: ModelConfig) -> list[float]:
    """Return powers of two that give the slowest head 1 and 4 nats over a training row.

    With the published slopes it has 1 nat per 256 tokens, so in shorter rows it hardly decays.
    """
    slowest = min(slopes(model.heads)) * model.train_length  # nats
    return [2.0 ** round(math.log2(nats / slowest)) for nats in (1, 4)]


class ALiBi(Encoding):
    """logit_ij -= slope_h (i - j), not learned, the same in every layer.

    The authors add slope_h j instead, which differs by a constant per query, and softmax ignores
    it. The bias is float32, because half precision cannot represent it in long sequences.

    Args:
        slope_scale: factor of all slopes; BiPE uses 96 for segments instead of tokens.
    """

    family = "bias"
    colour = "#D55E00"
    marker = "^"

    shift_invariant = True
    tunable = Tunable("slope_scale", other_scales)
    variants = ("slope_scale=96", "train_positions=random,max_train_position=512")

    def __init__(
        self, model: ModelConfig, layer: int = 0, *, slope_scale: float = 1.0, **options: Any
    ) -> None:
        super().__init__(model, layer, **options)
        if not 0 < slope_scale < math.inf:
            raise InputError(f"alibi:slope_scale must be greater than 0, not {slope_scale}")
        self.slope_scale = slope_scale

    def separable_bias(self, positions: Positions) -> Tensor:
        return positions.once(self._table, positions.key)

    def _table(self, ids: Tensor) -> Tensor:
        """Return c for keys with the given ids: (B or 1, S) -> (B or 1, H, S)."""
        per_head = torch.tensor(slopes(self.model.heads), dtype=torch.float64)
        per_token = self.slope_scale * per_head.to(ids.device, non_blocking=True)  # (H,)
        return -per_token[:, None] * ids[:, None, :]
