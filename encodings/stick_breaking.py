"""Stick-breaking attention weights, nearest keys first (Tan et al. 2024, arXiv 2410.17980)."""

import torch
import torch.nn.functional as F
from torch import Tensor

from pe_bench.api import Encoding, ModelConfig, Positions


def sums_from(x: Tensor) -> Tensor:
    """Return x_j + x_{j+1} + ... along the last axis, exact at its end: (..., S) -> (..., S)."""
    return x.flip(-1).cumsum(dim=-1).flip(-1)


class StickBreaking(Encoding):
    """A_ij = sigmoid(s_ij) prod_{j<k<i} (1 - sigmoid(s_ik)), and A_ii is the remainder.

    s_ij = q_i k_j / sqrt(D). From its own token backwards, a query gives each key a fraction of the
    remaining attention weight, so among equal keys the nearest has the largest weight. There are no
    other positions and no parameters. The remainder prod_{k<i} (1 - sigmoid(s_ik)) is the weight of
    the query's own token, as in the authors' trained models. So the rows of A sum to one, and ln A
    can replace the logits: softmax(ln A) = A, with the same gradient.

    | authors | here |
    |---|---|
    | also models without a remainder | no, since their rows sum to less than one |
    | normalisation of the outputs of the heads | left out: not positional |
    | a fused kernel | plain sums; blocks of queries keep memory small |

    The tests compare with the formula in the authors' repository (sb_ref.py, Apache 2.0).

    Args:
        attend_current: whether the query's own token also has a fraction like the other keys, in
            addition to the remainder.
    """

    family = "content"
    label = "Stick-breaking"
    colour = "#009E73"
    marker = "^"

    shift_invariant = True
    variants = ("attend_current=true",)

    def __init__(self, model: ModelConfig, layer: int = 0, *, attend_current: bool = False) -> None:
        super().__init__(model, layer)
        self.attend_current = attend_current

    def rewrite_logits(self, scores: Tensor, q: Tensor, k: Tensor, positions: Positions) -> Tensor:
        indices = torch.arange(scores.shape[-1], device=scores.device)
        own = indices == positions.query_index[:, None, :, None]  # (B or 1, 1, T, S)
        taking = positions.causal if self.attend_current else positions.causal & ~own
        left = sums_from(F.logsigmoid(-scores).masked_fill(~taking, 0))  # (B, H, T, S)
        remainder = left[..., :1]  # (B, H, T, 1)
        log_weights = F.logsigmoid(scores) + F.pad(left[..., 1:], (0, 1))  # (B, H, T, S)
        of_own = torch.logaddexp(log_weights, remainder) if self.attend_current else remainder
        return torch.where(own, of_own, log_weights)
