"""Forget gates per head and token that weaken older tokens (Lin et al. 2025, arXiv 2503.02130)."""

import math
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pe_bench.api import Encoding, InputError, ModelConfig, Positions, Tunable


class FoX(Encoding):
    """logit_ij += c_i - c_j, with c_t = sum_{s <= t} ln f_s and the gate f = sigmoid(W x + b).

    Each layer has W (H, C), initially from N(0, init_std), and b (H,). Queries and keys are not
    rotated, as by default in the authors' code. Their "Pro" block also shifts keys and values by a
    token, and normalises and gates the output; these parts are not positional and left out.

    Args:
        gate: "full" is the gate above; "bias_only" has no W, so that the gate does not depend on
            the content; "fixed" also does not learn b.
        bias_init: initial value of b. The authors' 0 halves the weight with every token;
            x-transformers has 5.
        shortest: alternative to bias_init: the initial gates are f = e^(-1/T), where T, the memory
            of a head in tokens, increases geometrically from `shortest` to `longest`. The authors
            do this for "bias_only" and "fixed", without default values.
        longest: memory of the last head.
    """

    family = "content"
    colour = "#999933"
    marker = "s"

    shared = False
    shift_invariant = True
    parameters_per_layer = "C*H + H"
    # Memories of 1.4 tokens at the start, of 7.9, or of 149.
    tunable = Tunable("bias_init", lambda model: (2.0, 5.0))
    variants: ClassVar[tuple[str, ...]] = (
        "bias_init=5",
        "gate=bias_only,shortest=2,longest=64",
        "gate=fixed,shortest=2,longest=64",
    )
    gate_bias: Tensor  # a parameter, or a buffer if it is fixed

    def __init__(
        self,
        model: ModelConfig,
        layer: int = 0,
        *,
        gate: Literal["full", "bias_only", "fixed"] = "full",
        bias_init: float = 0.0,
        shortest: float | None = None,
        longest: float | None = None,
    ) -> None:
        super().__init__(model, layer)
        if not math.isfinite(bias_init):
            raise InputError(f"fox:bias_init must be a finite number, not {bias_init}")
        bias = torch.full((model.heads,), bias_init)
        if shortest is not None or longest is not None:
            if shortest is None or longest is None or bias_init != 0:
                raise InputError(
                    "give fox:shortest and fox:longest together, and without fox:bias_init"
                )
            if not 0 < shortest <= longest < math.inf:
                raise InputError(
                    "fox:shortest and fox:longest must be finite, positive and ascending, "
                    f"not {shortest} and {longest}"
                )
            ends = math.log(shortest), math.log(longest)
            log_gates = -torch.linspace(*ends, model.heads, dtype=torch.float64).neg().exp()
            bias = (log_gates - (-log_gates.expm1()).log()).float()  # the inverse of logsigmoid
        self.gate_weight: Tensor | None = None
        if gate == "full":
            self.gate_weight = nn.Parameter(torch.empty(model.heads, model.width))
            nn.init.normal_(self.gate_weight, std=model.init_std)
        if gate == "fixed":
            self.register_buffer("gate_bias", bias)
        else:
            self.gate_bias = nn.Parameter(bias)

    def gate_logits(self, x: Tensor) -> Tensor:
        """Return W x + b: (B, T, C) -> (B, H, T, 1)."""
        heads = self.gate_bias.expand(*x.shape[:2], -1)
        if self.gate_weight is not None:
            heads = F.linear(x, self.gate_weight, self.gate_bias)
        return heads.mT[..., None]

    def token_features(self, x: Tensor, positions: Positions) -> Tensor:
        """Return ln f, (B, H, T, 1)."""
        return F.logsigmoid(self.gate_logits(x))

    def scan_features(self, features: Tensor) -> Tensor:
        # In float64: after 10^5 tokens the sum may be 7 x 10^4, where neighbouring float32 numbers
        # differ by 1/128, which is more than ln f of a head with a long memory. A GPU sums in
        # parallel only along the last axis.
        return features[..., 0].double().cumsum(dim=-1)[..., None]

    def separable_bias(self, positions: Positions) -> Tensor:
        assert positions.features is not None  # `token_features` made them
        return positions.features[..., 0]  # (B, H, S)
