"""Distance buckets, one learned bias per head and bucket (You et al. 2026, arXiv 0000.00000)."""

import torch
from torch import Tensor, nn

from pe_bench.api import Encoding, InputError, ModelConfig


class Mine(Encoding):
    """logit_ij += table[h, min(log2(1 + i - j), buckets - 1)].

    Args:
        buckets: number of distance buckets.
    """

    shared = False  # every layer has its own table
    shift_invariant = True  # only distances matter

    def __init__(self, model: ModelConfig, layer: int = 0, *, buckets: int = 16) -> None:
        super().__init__(model, layer)
        if buckets < 2:
            raise InputError(f"mine:buckets must be at least 2, not {buckets}")
        self.table = nn.Parameter(torch.zeros(model.heads, buckets))

    def distance_bias(self, distances: Tensor) -> Tensor:
        bucket = (1 + distances).log2().long()  # (N,)
        return self.table[:, bucket.clamp(max=self.table.shape[1] - 1)]  # (H, N)
