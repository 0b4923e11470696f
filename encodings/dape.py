"""An MLP over all heads' logits adapts their biases (Zheng et al. 2024, arXiv 2405.14722)."""

from typing import Any, Literal

import torch
from torch import Tensor, nn

from pe_bench.api import Encoding, InputError, ModelConfig, Positions
from pe_bench.encodings.alibi import ALiBi
from pe_bench.encodings.fire import FIRE
from pe_bench.encodings.kerple import Kerple


class DAPE(Encoding):
    """logit_ij = s + b + MLP([s; b]), s the scaled scores of all heads, b their biases.

    The MLP maps the 2H numbers of each pair of tokens through Linear(2H, hidden), leaky ReLU (0.01)
    and Linear(hidden, H), with torch's default initialisation. Every layer has a separate MLP and
    base encoding.

    The MLP mixes heads, so there is no fused kernel. Short inputs store B x T x S x (2H + hidden)
    numbers per layer; long inputs are processed in blocks of queries and store none. FIRE as a base
    has leaky ReLUs, as in the published code. The second version is `dapev2`.

    Args:
        base: encoding of b: "alibi", "kerple" (its logarithmic form, the base in the paper's
            comparison of costs) or "fire".
        hidden: width of the MLP, and of the MLP of FIRE.
    """

    family = "content"
    colour = "#009E73"
    marker = "X"

    shared = False
    shift_invariant = True
    parameters_per_layer = "2*H*32 + 32 + 32*H + H + 2*H"
    variants = ("base=alibi,hidden=8", "base=fire")

    def __init__(
        self,
        model: ModelConfig,
        layer: int = 0,
        *,
        base: Literal["alibi", "kerple", "fire"] = "kerple",
        hidden: int = 32,
        **options: Any,
    ) -> None:
        super().__init__(model, layer, **options)
        if hidden < 1:
            raise InputError(f"dape:hidden must be at least 1, not {hidden}")
        self.base: Encoding
        if base == "fire":
            self.base = FIRE(model, layer, width=hidden, activation="leaky-relu")
        else:
            self.base = {"alibi": ALiBi, "kerple": Kerple}[base](model, layer)
        self.shift_invariant = self.base.shift_invariant
        self.mlp = nn.Sequential(
            nn.Linear(2 * model.heads, hidden),
            nn.LeakyReLU(inplace=True),
            nn.Linear(hidden, model.heads),
        )

    def rewrite_logits(self, scores: Tensor, q: Tensor, k: Tensor, positions: Positions) -> Tensor:
        bias = self.base.bias_matrix(positions)  # (B or 1, H, T, S)
        assert bias is not None  # every base has one
        bias = bias.to(scores.dtype).expand_as(scores)
        pairs = torch.cat([scores, bias], dim=1).movedim(1, -1)  # (B, T, S, 2 H)
        adapted: Tensor = self.mlp(pairs)  # (B, T, S, H)
        return scores + bias + adapted.movedim(-1, 1)
