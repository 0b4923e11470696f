"""Logarithmic or power decay, learned per head (Chi et al. 2022, arXiv 2205.09921)."""

from typing import Any, Literal

import torch
from torch import Tensor, nn

from pe_bench.api import Encoding, ModelConfig, Positions

SMALLEST = 0.01


class Kerple(Encoding):
    """logit_ij -= p ln(1 + a d) or logit_ij -= a d^p, with d = i - j and p, a > 0 of each head.

    "power-weighted" is the authors' variant in which a second kernel multiplies the logits:

        logit_ij = exp(-weight_a d^weight_p) q_i k_j / sqrt(D) - a d^p

    As in their code, p and a are initialised from U(0, 2) and U(0, 1), and all layers share one
    module. Each forward pass first clamps the parameters to their range: at least 0.01, exponents
    at most 2. A clamped parameter keeps its gradient, so it can return.

    Args:
        form: "log", the main variant of the paper, "power", or "power-weighted", which rewrites
            the logits and has no fused kernel.
        shared: whether all layers share the parameters (in DAPE they do not).
    """

    family = "bias"
    label = "KERPLE"
    colour = "#D55E00"
    marker = "P"

    shift_invariant = True
    parameters_per_layer = "2*H once"
    variants = ("form=power", "form=power-weighted,shared=false")

    def __init__(
        self,
        model: ModelConfig,
        layer: int = 0,
        *,
        form: Literal["log", "power", "power-weighted"] = "log",
        shared: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(model, layer, **options)
        self.form = form
        self.shared = shared
        self.p = nn.Parameter(2 * torch.rand(model.heads))
        self.a = nn.Parameter(torch.rand(model.heads))
        if form == "power-weighted":
            self.weight_p = nn.Parameter(2 * torch.rand(model.heads))
            self.weight_a = nn.Parameter(torch.rand(model.heads))

    def penalty(self, distances: Tensor, p: Tensor, a: Tensor) -> Tensor:
        """Return p ln(1 + a d) or a d^p of distances d: (N,), (H,), (H,) -> (H, N)."""
        # Autograd does not track .data. Otherwise a second forward pass before the backward pass
        # of the first would count as a change of saved tensors.
        a.data.clamp_(min=SMALLEST)
        p.data.clamp_(min=SMALLEST, max=None if self.form == "log" else 2)
        d = distances.to(a.dtype)  # (N,)
        p = p[:, None]
        a = a[:, None]
        return p * (a * d).log1p() if self.form == "log" else a * d**p

    def distance_bias(self, distances: Tensor) -> Tensor | None:
        if self.form == "power-weighted":
            return None  # `rewrite_logits` adds it after multiplying
        return -self.penalty(distances, self.p, self.a)

    def rewrite_logits(self, scores: Tensor, q: Tensor, k: Tensor, positions: Positions) -> Tensor:
        if self.form != "power-weighted":
            return scores
        distance = positions.distance  # (B or 1, T, S)
        weight = (-self.penalty(distance.flatten(), self.weight_p, self.weight_a)).exp()
        penalty = self.penalty(distance.flatten(), self.p, self.a)  # (H, B T S)
        shape = (-1, *distance.shape)
        weight = weight.view(shape).transpose(0, 1)  # (B or 1, H, T, S)
        return weight * scores - penalty.view(shape).transpose(0, 1)

    def overrides(self, hook: str) -> bool:
        """Return False for the logits of two of the three forms, which keep the fused path."""
        rewrites = self.form == "power-weighted"
        return super().overrides(hook) and (hook != "rewrite_logits" or rewrites)
