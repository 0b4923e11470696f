"""A generalized Gaussian prior over distances (Bianchessi et al. 2025, arXiv 2505.22842)."""

from typing import Any

import torch
from torch import Tensor, nn

from pe_bench.api import Encoding, ModelConfig
from pe_bench.encodings.alibi import slopes

EPSILON = 1e-5


class BAM(Encoding):
    """logit_ij -= e^c (|d - mu| + 1e-5)^a, with d = i - j and c, a and mu of each head.

    It starts as ALiBi: a = 1, e^c are ALiBi's slopes, mu = 0. Unlike the power of Kerple, a is not
    bounded; a head with a negative a attends to distant tokens.

    The published code has no licence, so the tests compare with the formula in float64. Formula and
    initial values follow its last version; earlier versions have e^c inside the power.

    | published code | here |
    |---|---|
    | mu = 2 sinh(l), added to d | subtracted: a head with mu > 0 attends mu tokens back |
    | BAM-SSMax: scores and bias times s ln n | not part of this encoding |
    | the exponent may have a separate learning rate | one learning rate for all parameters |

    Args:
        location: whether mu is learned; the authors keep it at 0.
        shared: whether all layers share one prior, as by default in the authors' code.
    """

    family = "bias"
    colour = "#D55E00"
    marker = "s"

    shift_invariant = True
    parameters_per_layer = "2*H once"
    variants = ("location=true,shared=false",)

    def __init__(
        self,
        model: ModelConfig,
        layer: int = 0,
        *,
        location: bool = False,
        shared: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(model, layer, **options)
        self.shared = shared
        self.log_scale = nn.Parameter(torch.tensor(slopes(model.heads)).log())
        self.shape = nn.Parameter(torch.ones(model.heads))
        self.location = nn.Parameter(torch.zeros(model.heads)) if location else None

    def distance_bias(self, distances: Tensor) -> Tensor:
        d = distances.to(self.shape.dtype).expand(len(self.shape), -1)  # (H, N)
        if self.location is not None:
            d = (d - 2 * self.location.sinh()[:, None]).abs()
        return -self.log_scale.exp()[:, None] * (d + EPSILON) ** self.shape[:, None]
