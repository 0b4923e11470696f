"""Losses of next tokens, with the vocabulary's logits of some of them at a time."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from pe_bench.config import IGNORE


def next_token_losses(
    hidden: Tensor, targets: Tensor, make_logits: Callable[[Tensor], Tensor], chunk: int
) -> Tensor:
    """Return cross-entropies in nats: (N, C), (N,) -> (N,) float32 or wider, zero for IGNORE.

    Args:
        hidden: the last hidden states.
        targets: the next ids, or IGNORE.
        make_logits: gives hidden states (n, C) their logits (n, V).
        chunk: how many tokens have their logits made at once.
    """
    losses = []
    for some, of_some in zip(hidden.split(chunk), targets.split(chunk), strict=True):
        logits = make_logits(some)  # (n, V)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        losses.append(F.cross_entropy(logits, of_some, ignore_index=IGNORE, reduction="none"))
    return torch.cat(losses)


def scored_tokens(targets: Tensor) -> Tensor:
    """Return which tokens have a target, counted row after row: (B, T) -> (N,)."""
    return (targets.flatten() != IGNORE).nonzero().flatten()
