"""RoPE in chunks, with ids from training across chunks (An et al. 2024, arXiv 2402.17463)."""

from typing import Any

import torch
from torch import Tensor

from pe_bench.api import InputError, ModelConfig, Positions
from pe_bench.encodings.rope import Remap


class DualChunk(Remap):
    """In evaluation, RoPE in chunks of c = chunk - local tokens, with other ids.

    Key j has the id j mod c. The id of query i depends on the chunk of the key:

    | chunk of the key | id of the query |
    |---|---|
    | the query's chunk | i mod c |
    | the previous chunk | min(i mod c + c, chunk) |
    | an older chunk | min(2c - 1, chunk) |

    Distances are exact within a chunk, and to the previous chunk for the first `local` queries.

    | published code | here |
    |---|---|
    | chunk = 3/4 of L0, local = L0/8; the paper, as remembered: L0 - 1, L0/4 - 1 | as the code |
    | cos and sin times 1 + 0.05 ln(S/L0), without which the paper was measured | left out |

    Args:
        chunk: largest id of a query; None is three quarters of the training length L0.
        local: number of queries of a chunk with exact distances to the previous one; None is L0/8.
    """

    family = "extension"
    label = "Dual chunk"
    colour = "#56B4E9"
    marker = "^"

    shift_invariant = False
    variants = ("chunk=9,local=3",)

    def __init__(
        self,
        model: ModelConfig,
        layer: int = 0,
        *,
        chunk: int | None = None,
        local: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(model, layer, **options)
        self.chunk = max(1, model.train_length * 3 // 4) if chunk is None else chunk
        self.local = model.train_length // 8 if local is None else local
        if not 0 <= self.local < self.chunk:
            raise InputError(
                "dual-chunk:local must be at least 0 and less than chunk; they are "
                f"{self.local} and {self.chunk}"
            )
        self.size = self.chunk - self.local

    def far(self, positions: Positions) -> Tensor:
        chunks = positions.query[:, :, None] // self.size - positions.key[:, None] // self.size
        beyond = positions.query % self.size + self.size > self.chunk  # (B or 1, T)
        return (chunks > 1) | (chunks == 1) & beyond[:, :, None]

    def far_ids(self, positions: Positions) -> tuple[Tensor, Tensor]:
        largest = min(2 * self.size - 1, self.chunk)
        return torch.full_like(positions.query, largest), positions.key % self.size
