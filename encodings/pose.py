"""Training ids with a gap, so that all distances occur (Zhu et al. 2024, arXiv 2309.10400)."""

from typing import Any

import torch
from torch import Tensor

from pe_bench.api import EncodingSpec, InputError, ModelConfig, Wrapper, make_base


class PoSE(Wrapper):
    """In training the ids of a row are 0, 1, ..., r - 1, u + r, u + r + 1, ...; else contiguous.

    For n tokens, r is uniform from 1 to (n + 1) // 2 and u from 0 to target - n, drawn for each
    row.

    | published code | here |
    |---|---|
    | the text after r comes from a later place of the document | the text is not cut |
    | a trained model is extended | with `--from`; from scratch otherwise |

    Args:
        base: spec of the encoding that uses the ids, with colons between its options.
        target: length whose ids occur in training; None is four times the training length.
    """

    family = "ids"
    colour = "#661100"
    marker = "o"

    variants = ("base=alibi,target=64",)

    def __init__(
        self,
        model: ModelConfig,
        layer: int = 0,
        *,
        base: EncodingSpec = EncodingSpec("rope"),  # noqa: B008  # as immutable as any str
        target: int | None = None,
    ) -> None:
        super().__init__(model, layer, make_base(base, model, layer))
        self.shift_invariant = self.base.shift_invariant
        self.target = 4 * model.train_length if target is None else target
        if self.target < model.train_length:
            raise InputError(
                f"pose:target must be at least the training length {model.train_length}, "
                f"not {target}"
            )

    def draw_positions(self, ids: Tensor, lengths: Tensor) -> Tensor:
        drawn = super().draw_positions(ids, lengths)
        if not self.training:
            return drawn
        rows = len(lengths)
        tokens = ids.shape[1]
        cut = torch.randint(1, max(2, (tokens + 1) // 2 + 1), (rows, 1))
        skipped = torch.randint(max(0, self.target - tokens) + 1, (rows, 1))
        skip = torch.where(torch.arange(tokens) >= cut, skipped, 0).to(ids.device)  # (B, T)
        drawn = drawn.expand(rows, *drawn.shape[1:])
        if drawn.dim() == 2:
            return drawn + skip
        return torch.cat([drawn[..., :1] + skip[..., None], drawn[..., 1:]], dim=-1)

    def llama_fields(self) -> dict[str, Any] | None:
        """Return the fields of the base, because evaluation uses only the base."""
        return self.base.llama_fields()
