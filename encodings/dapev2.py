"""Convolutions along the keys adapt the biases (Zheng et al. 2024, arXiv 2410.04798)."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pe_bench.api import InputError, ModelConfig, Positions
from pe_bench.encodings.dape import DAPE


class DAPEv2(DAPE):
    """logit_ij = s + b + conv(leaky_relu(conv([s; b]))), both convolutions 1 x `kernel`.

    s are the scaled scores of all heads and b their biases. The convolutions run along the keys of
    each query, with 2H, hidden and H channels, and zeros after the query.

    | published code | here |
    |---|---|
    | no mask between the convolutions | zeros after the query there too |

    The first convolution reaches beyond the query. Without the mask, the logits of a token change
    when another token follows (whatever it is), and decoding with a cache differs from a full
    forward pass. With the mask, each query has the logits that the published code gives to the last
    token.

    As in the first version there is no fused kernel; blocks of queries keep memory small. The tests
    compare with the published code (Apache 2.0) at the last token of texts of every length.

    Args:
        hidden: channels between the convolutions, and width of the MLP of FIRE.
        kernel: number of keys in a convolution, odd.
    """

    family = "content"
    colour = "#009E73"
    marker = "P"

    parameters_per_layer = "3*2*H*32 + 32 + 3*32*H + H + 2*H"
    variants = ("kernel=5,base=alibi,hidden=8", "base=fire")

    def __init__(
        self,
        model: ModelConfig,
        layer: int = 0,
        *,
        hidden: int = 32,
        kernel: int = 3,
        **options: Any,
    ) -> None:
        super().__init__(model, layer, hidden=hidden, **options)
        if kernel < 1 or kernel % 2 == 0:
            raise InputError(f"dapev2:kernel must be odd and at least 1, not {kernel}")
        size = (1, kernel)
        side = (0, kernel // 2)
        del self.mlp  # the MLP of the first version
        self.first = nn.Conv2d(2 * model.heads, hidden, size, padding=side)
        self.second = nn.Conv2d(hidden, model.heads, size, padding=side)

    def rewrite_logits(self, scores: Tensor, q: Tensor, k: Tensor, positions: Positions) -> Tensor:
        bias = self.base.bias_matrix(positions)  # (B or 1, H, T, S)
        assert bias is not None  # every base has one
        bias = bias.to(scores.dtype).expand_as(scores)
        beyond = ~positions.causal  # (B or 1, 1, T, S)
        pairs = torch.cat([scores, bias], dim=1).masked_fill(beyond, 0)  # (B, 2 H, T, S)
        hidden = F.leaky_relu(self.first(pairs))  # (B, hidden, T, S)
        adapted: Tensor = self.second(hidden.masked_fill(beyond, 0))  # (B, H, T, S)
        return scores + bias + adapted
