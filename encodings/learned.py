"""One learned vector per position, added to the tokens (Gehring et al. 2017, arXiv 1705.03122)."""

from typing import Any, Literal

import torch
from torch import Tensor, nn

from pe_bench.api import Encoding, InputError, ModelConfig, Positions


class Learned(Encoding):
    """x = token + table[p], the table starting as N(0, init_std).

    Rows beyond the training length are never trained and keep their random initial values, so the
    results of longer sequences are meaningless. `train_positions=random` or `offset` trains all
    rows.

    Args:
        rows: number of positions; 2048 as in the comparison of decoders by Kazemnejad et al. (2023,
            arXiv 2305.19466).
        past: "error" refuses later positions, "clamp" gives them the last row.
    """

    family = "absolute"
    colour = "#CC79A7"
    marker = "D"

    max_position: int | None = 2048
    parameters_per_layer = "2048*C once"
    variants = ("rows=64", "rows=64,past=clamp", "train_positions=random")

    def __init__(
        self,
        model: ModelConfig,
        layer: int = 0,
        *,
        rows: int = 2048,
        past: Literal["error", "clamp"] = "error",
        **options: Any,
    ) -> None:
        super().__init__(model, layer, **options)
        sampled = self.train_positions != "contiguous"
        needed = self.max_train_position if sampled else model.train_length
        if rows < (needed if past == "error" else 1):
            raise InputError(
                f"learned:rows must be at least {needed}, as many as there are position ids in "
                f"training, not {rows}"
                if past == "error"
                else f"learned:rows must be at least 1, not {rows}"
            )
        if past == "clamp" and not self.needs_final_length:
            self.max_position = None
        elif not self.needs_final_length:  # otherwise limited by the ids to draw from
            self.max_position = rows
        self.table = nn.Parameter(model.init_std * torch.randn(rows, model.width))

    def embed(self, x: Tensor, positions: Positions) -> Tensor:
        return x + self.table[positions.query.clamp(max=len(self.table) - 1)]
