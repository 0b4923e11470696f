"""RoPE with changed distances, which extends a trained model without further training."""

import math
from typing import Any

import torch
from torch import Tensor

from pe_bench.api import InputError, ModelConfig, Positions
from pe_bench.encodings.rope.encoding import RoPE, rotate


class Remap(RoPE):
    """In evaluation, logit_ij = q_i^T R_f k_j / sqrt(D), R_f RoPE's rotation by f positions.

    For near pairs f = i - j, and the logit equals that of RoPE bit by bit. For far pairs query and
    key have other ids, and f is their difference: subclasses override `far` and `far_ids`. The
    frequencies must not depend on the length.

    Args:
        train_remapped: whether training also uses the changed distances; otherwise it is RoPE,
            with fused kernels.
        log_n: whether logits are multiplied by max(1, ln n / ln L0), n the number of keys up to the
            query and L0 the training length; always in the published code of ReRoPE, an option in
            that of Self-Extend.
    """

    def __init__(
        self,
        model: ModelConfig,
        layer: int = 0,
        *,
        train_remapped: bool = False,
        log_n: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(model, layer, **options)
        if self.scaling.dynamic:
            raise InputError(
                f"{type(self).__name__} needs frequencies that do not depend on the length: use a "
                "scaling that is not dynamic"
            )
        self.train_remapped = train_remapped
        self.log_n = log_n
        self.logits_grow = log_n

    def far(self, positions: Positions) -> Tensor:
        """Return True for far pairs, (B or 1, T, S)."""
        raise NotImplementedError

    def far_ids(self, positions: Positions) -> tuple[Tensor, Tensor]:
        """Return the ids of queries (B or 1, T) and keys (B or 1, n) in far pairs.

        If n < S, only the first n keys can be far.
        """
        raise NotImplementedError

    def prepare_product(self, k: Tensor, positions: Positions) -> Tensor | None:
        """Return the keys as they are in far pairs, (B, H, S, D), once for all blocks of queries.

        Return None if only a few keys can be far, or if far keys keep their ids.
        """
        _, key = self.far_ids(positions)
        if key is positions.key or key.shape != positions.key.shape:
            return None
        return self._turn(k, key - positions.key)

    def rewrite_logits(self, scores: Tensor, q: Tensor, k: Tensor, positions: Positions) -> Tensor:
        query, key = self.far_ids(positions)
        first = key.shape[1]
        # Both are already rotated by their ids, so rotate by the difference.
        q = self._turn(q, query - positions.query)  # (B, H, T, D)
        if positions.prepared is not None:
            k = positions.prepared
        elif key is not positions.key:
            k = self._turn(k[:, :, :first], key - positions.key[:, :first])  # (B, H, n, D)
        far = (q / math.sqrt(q.shape[-1])) @ k.mT  # (B, H, T, n)
        is_far = self.far(positions)[:, None, :, :first]  # (B or 1, 1, T, n)
        logits = torch.where(is_far, far, scores[..., :first])
        if first < scores.shape[-1]:
            logits = torch.cat([logits, scores[..., first:]], dim=-1)  # (B, H, T, S)
        if not self.log_n:
            return logits
        length = positions.query_column + 1  # (B or 1, T)
        growth = length.log() / math.log(self.model.train_length)  # (B or 1, T)
        return logits * growth.clamp(min=1).to(logits.dtype)[:, None, :, None]

    def overrides(self, hook: str) -> bool:
        """Return False for the logits in training, so that it uses fused kernels."""
        remaps = self.train_remapped or not self.training
        of_logits = hook in ("prepare_product", "rewrite_logits")
        return super().overrides(hook) and (remaps or not of_logits)

    def _turn(self, x: Tensor, by: Tensor) -> Tensor:
        """Rotate x, (B, H, T, D), by a number of positions, (B or 1, T)."""
        cos, sin = self.turns(by, self.model.train_length)
        return rotate(x, cos.to(x.dtype), sin.to(x.dtype))


def check_at_least(least: int, **values: int) -> None:
    """Refuse an option below its minimum.

    Raises:
        InputError: names the option.
    """
    for name, value in values.items():
        if value < least:
            raise InputError(f"{name} must be at least {least}, not {value}")
