"""The place of a token in its sentence and of the sentence (He et al. 2024, arXiv 2401.16421)."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pe_bench.api import InputError, ModelConfig, Positions, Wrapper, join_ids, split_ids
from pe_bench.encodings.alibi import ALiBi
from pe_bench.encodings.rope import RoPE


class BiPE(Wrapper):
    """Two ids per token: inter counts separators before it, intra counts tokens since the last one.

        x     = token + table[min(intra, train_scale - 1)]
        logit = RoPE at the inter ids, or -96 slope_h (inter_i - inter_j)

    A separator belongs to the segment that it ends. Inserting a whole segment changes no intra id,
    and shifts all later inter ids by the same number, to which both forms are invariant.

    | authors' code | here |
    |---|---|
    | LLaMA's ids 869 and 13 are separators, its full stop 29889 is not | ends in "." or a newline |
    | the last row of the table stays zero, as padding | it is learned |
    | no cache | a cache |

    Args:
        form: encoding of the inter ids: "rope", or "alibi" with 96 times its slopes.
        train_scale: rows of the table; None is the training length, as in the authors' code (1024).
    """

    family = "structure"
    colour = "#AA4499"
    marker = "v"

    prefix_consistent = True
    parameters_per_layer = "L*C once"
    variants = ("form=alibi", "train_scale=8")

    def __init__(
        self,
        model: ModelConfig,
        layer: int = 0,
        *,
        form: Literal["rope", "alibi"] = "rope",
        train_scale: int | None = None,
    ) -> None:
        rope = form == "rope"
        super().__init__(
            model, layer, RoPE(model, layer) if rope else ALiBi(model, layer, slope_scale=96)
        )
        if not model.separator_ids:
            raise InputError(
                "bipe needs tokens that end a sentence or line: choose a task that has them, or "
                "set separator_ids of the model"
            )
        self.train_scale = model.train_length if train_scale is None else train_scale
        if self.train_scale < 1:
            raise InputError(f"bipe:train_scale must be at least 1, not {train_scale}")
        self.is_separator: Tensor
        ends = torch.isin(torch.arange(model.vocab_size), torch.tensor(model.separator_ids))
        self.register_buffer("is_separator", ends, persistent=False)
        self.table = nn.Embedding(self.train_scale, model.width)
        nn.init.normal_(self.table.weight, std=model.init_std)

    def positions(self, tokens: Tensor) -> Tensor:
        """Return inter and intra ids, (B, S, 2)."""
        ends = self.is_separator[tokens]
        index = torch.arange(tokens.shape[1], device=tokens.device)
        starts = F.pad(torch.where(ends, index + 1, 0)[:, :-1], (1, 0)).cummax(dim=1).values
        intra = (index - starts).clamp(max=self.train_scale - 1)
        return join_ids(ends.cumsum(dim=1) - ends.long(), intra)

    def embed(self, x: Tensor, positions: Positions) -> Tensor:
        _, intra = split_ids(positions.query)
        return super().embed(x + self.table(intra), positions)
