"""Positions that count tokens selected by the query (Golovneva et al. 2024, arXiv 2405.18719)."""

import math
from typing import Literal

import torch
from torch import Tensor, nn

from pe_bench.api import Encoding, InputError, ModelConfig, Positions


class CoPE(Encoding):
    """logit_ij = (q_i k_j + q_i e[p_ij]) / sqrt(D), p_ij = sum_{t=j..i} sigmoid(q_i k_t / sqrt(D)).

    e is (D, npos), initially zero; each layer has one table for all heads. p is at most npos - 1.
    Between integers e is interpolated, so p has a gradient. The query's own token counts too, so p
    is 0 only if the gates are closed.

    Two options of the published code are left out: a separate key projection for the gates, and
    gates from values. In float32 the gradient needs 32 bytes per head, query and key, and 8 bytes
    per head, query and embedding; long inputs need them for one block of queries at a time. No
    tensor has T x S x npos elements.

    Args:
        npos: number of embeddings. None is train_length + 1 as in the published code, enough for
            every count in training; the comparison in the DAPE paper used 64.
        divide: term that is divided by sqrt(D). "sum" is the formula above and the default of the
            published code; "scores" does not divide q_i e[p_ij], as in the listing of the paper.
    """

    family = "content"
    colour = "#009E73"
    marker = "o"

    shared = False
    shift_invariant = True
    parameters_per_layer = "(L + 1)*D"
    variants = ("npos=8,divide=scores",)

    def __init__(
        self,
        model: ModelConfig,
        layer: int = 0,
        *,
        npos: int | None = None,
        divide: Literal["sum", "scores"] = "sum",
    ) -> None:
        super().__init__(model, layer)
        if npos is not None and npos < 2:
            raise InputError(f"cope:npos must be at least 2, not {npos}")
        self.npos = npos or model.train_length + 1
        self.divide = divide
        self.table = nn.Parameter(torch.zeros(model.head_dim, self.npos))

    def rewrite_logits(self, scores: Tensor, q: Tensor, k: Tensor, positions: Positions) -> Tensor:
        gates = scores.sigmoid().masked_fill(~positions.causal, 0)  # (B, H, T, S)
        # From the query backwards, so that counts near the query are exact.
        counts = gates.flip(-1).cumsum(-1).flip(-1).clamp(max=self.npos - 1)  # (B, H, T, S)
        below = counts.detach().long()
        embedded = q @ self.table  # (B, H, T, npos)
        steps = embedded.diff(dim=-1, append=embedded[..., -1:])  # (B, H, T, npos)
        added = embedded.gather(-1, below) + (counts - below) * steps.gather(-1, below)
        return scores + (added / math.sqrt(q.shape[-1]) if self.divide == "sum" else added)
