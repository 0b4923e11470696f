"""Next-token losses, with the logits computed in chunks."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from pe_bench.config import IGNORE


def next_token_losses(
    hidden: Tensor, targets: Tensor, make_logits: Callable[[Tensor], Tensor], chunk: int
) -> Tensor:
    """Return cross-entropies in nats: (N, C), (N,) -> (N,) float32 or wider, zero at IGNORE.

    Args:
        hidden: the last hidden states.
        targets: the next ids, or IGNORE.
        make_logits: maps hidden states (n, C) to logits (n, V).
        chunk: number of tokens per chunk.
    """
    losses = []
    for some, of_some in zip(hidden.split(chunk), targets.split(chunk), strict=True):
        logits = make_logits(some)  # (n, V)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        losses.append(F.cross_entropy(logits, of_some, ignore_index=IGNORE, reduction="none"))
    return torch.cat(losses)


def scored_tokens(targets: Tensor) -> Tensor:
    """Return flat indices of the tokens that have a target: (B, T) -> (N,)."""
    return (targets.flatten() != IGNORE).nonzero().flatten()
