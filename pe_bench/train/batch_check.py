"""A check of training batches, whose faults torch would report with other words or not at all."""

import torch
from torch import Tensor

from pe_bench.batch import Batch
from pe_bench.config import IGNORE


def find_wrong_batch(batch: Batch, vocab_size: int) -> str:
    """Return the fault of a batch as the rest of a sentence; "": there is none.

    Args:
        batch: the batch of a task, or whatever else the task returned.
        vocab_size: number of ids in the vocabulary.
    """
    if not isinstance(batch, Batch):
        return f"is of the type {type(batch).__name__}, not a Batch of tokens and targets"
    for name, ids in zip(Batch._fields, batch, strict=True):
        if not isinstance(ids, Tensor):
            return f"has {name} of the type {type(ids).__name__}, not a tensor"
        if ids.dtype != torch.int64 and not (name == "tokens" and ids.dtype == torch.int32):
            return f"has {name} of {ids.dtype}, not torch.int64"
    tokens, targets = batch  # (B, T) each
    if tokens.dim() != 2 or tokens.shape != targets.shape:
        return (
            f"has tokens {tuple(tokens.shape)} and targets {tuple(targets.shape)}, not (B, T) of "
            "both"
        )
    for name, ids in (("tokens", tokens), ("targets", targets[targets != IGNORE])):
        if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < vocab_size:
            return (
                f"has {name} from {int(ids.min())} to {int(ids.max())}, but the vocabulary has "
                f"the ids 0 to {vocab_size - 1}"
            )
    return ""
