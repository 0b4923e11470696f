"""Logits that grow with the logarithm of the number of keys (Nakanishi 2025, arXiv 2501.19399)."""

import math
from typing import Literal

import torch
from torch import Tensor, nn

from pe_bench.api import EncodingSpec, InputError, ModelConfig, Positions, Wrapper, make_base


class LogTemperature(Wrapper):
    """logit_ij = tau(n_i) q_i k_j / sqrt(D) + the biases of `base`, n_i the number of keys of i.

    | form | tau(n) | source |
    |---|---|---|
    | ssmax | s ln n, s learned per layer and head | arXiv 2501.19399 |
    | log | ln n / ln L0 | entropy-invariant attention, Su 2021 |
    | log-past | max(1, ln n / ln L0) | Su 2023, ReRoPE |
    | llama4 | 1 + scale ln(1 + floor(n / start)) | Llama 4, scale 0.1, start 8192 |
    | ministral | 1 + scale ln(1 + floor((n - 1) / start)) | Ministral 3, scale 0.1, start 16384 |

    L0 is the training length. Llama 4 uses its form only in layers without positions:
    `hybrid:global=log-temperature:form=llama4:base=nope`. The initial s could not be verified. By
    default it is 1 / mean of ln n over a training row, so that training starts near the base.

    Args:
        base: spec of the encoding whose logits are multiplied, with colons between its options.
        form: see above.
        scale: scale of llama4 and ministral.
        start: number of keys where llama4 and ministral start to grow; None is the training length.
        initial: initial value of s; None: see above. Other implementations have 0.43 and 1.
        bias: whether the biases of `base` are multiplied too, as in the published code of BAM.
    """

    family = "softmax"
    label = "Log temperature"
    colour = "#661100"
    marker = "v"

    parameters_per_layer = "H"
    variants = (
        "form=log",
        "form=llama4,start=8,scale=0.2",
        "form=log-past",
        "form=ministral,start=8",
        "base=alibi,bias=true",
        "base=t5,initial=0.43",
    )

    def __init__(
        self,
        model: ModelConfig,
        layer: int = 0,
        *,
        base: EncodingSpec = EncodingSpec("rope"),  # noqa: B008  # as immutable as any str
        form: Literal["ssmax", "log", "log-past", "llama4", "ministral"] = "ssmax",
        scale: float = 0.1,
        start: int | None = None,
        initial: float | None = None,
        bias: bool = False,
    ) -> None:
        super().__init__(model, layer, make_base(base, model, layer))
        stepped = form in ("llama4", "ministral")
        if not stepped and (start is not None or scale != 0.1):
            raise InputError(f"log-temperature:scale and start have no effect on form={form}")
        if form != "ssmax" and initial is not None:
            raise InputError(f"log-temperature:initial has no effect on form={form}")
        if start is not None and start < 1:
            raise InputError(f"log-temperature:start must be at least 1, not {start}")
        if not 0 <= scale < math.inf:
            raise InputError(f"log-temperature:scale must not be negative, not {scale}")
        self.shift_invariant = self.base.shift_invariant
        self.logits_grow = True
        self.form = form
        self.scale = scale
        self.start = model.train_length if start is None else start
        self.with_bias = bias
        if form == "ssmax":
            self.shared = False
            counts = torch.arange(1, model.train_length + 1).double()
            neutral = 1 / max(float(counts.log().mean()), 0.1)
            value = neutral if initial is None else initial
            self.s = nn.Parameter(torch.full((model.heads,), value))

    def temperature(self, positions: Positions) -> Tensor | None:
        tau = self._factors(positions.count.float())  # (B or 1, H or 1, T)
        own = super().temperature(positions)
        return tau if own is None else tau * own

    def bias(self, positions: Positions) -> Tensor | None:
        if not self.with_bias:
            return super().bias(positions)
        bias = self.base.bias_matrix(positions)  # (B or 1, H or 1, T, S)
        if bias is None:
            return None
        return bias * self._factors(positions.count.float())[..., None]

    def separable_bias(self, positions: Positions) -> Tensor | None:
        return None if self.with_bias else super().separable_bias(positions)

    def _factors(self, n: Tensor) -> Tensor:
        """Return tau for numbers of keys: (B or 1, T) -> (B or 1, H or 1, T)."""
        n = n[:, None]
        length = math.log(max(self.model.train_length, 2))
        if self.form == "ssmax":
            return self.s[:, None] * n.log()
        if self.form == "log":
            return n.log() / length
        if self.form == "log-past":
            return (n.log() / length).clamp(min=1)
        if self.form == "llama4":
            return 1 + self.scale * (1 + n.div(self.start, rounding_mode="floor")).log()
        return 1 + self.scale * (1 + (n - 1).div(self.start, rounding_mode="floor")).log()
