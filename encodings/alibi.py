"""Linear biases: each head forgets at its own rate (Press et al. 2022, arXiv 2108.12409)."""

import torch
from torch import Tensor

from pe_bench.encoding import Encoding


def slopes(heads: int) -> list[float]:
    """Penalty per token of each head.

    For 2^n heads 2^(-8/H), 2^(-16/H), ...; otherwise those of the next lower power of two P,
    followed by every second one of 2P, in this order, as in the authors' code.
    """
    lower = 2 ** (heads.bit_length() - 1)
    powers = [2.0 ** (-8 * (h + 1) / lower) for h in range(lower)]
    between = [2.0 ** (-4 * (h + 1) / lower) for h in range(0, 2 * (heads - lower), 2)]
    return powers + between


class ALiBi(Encoding):
    """logit_ij -= slope_h (i - j), not learned, the same in every layer.

    The authors add slope_h j, which differs by a constant per query that softmax ignores; in half
    precision it does not survive long sequences, so the engine is given float32.
    """

    shift_invariant = True

    def decay(self, features: Tensor | None, positions: Tensor) -> Tensor:
        per_token = torch.tensor(
            slopes(self.model.heads), dtype=torch.float64, device=positions.device
        )
        return -per_token[:, None] * positions[:, None, :]
