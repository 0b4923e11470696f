"""The loss of a model on held-out batches, by which a search compares its candidates."""

import torch

from pe_bench.decoder.losses import scored_tokens
from pe_bench.decoder.model import Decoder
from pe_bench.runs.batch_stream import check_batch
from pe_bench.runs.resolve import ResolvedTask


@torch.inference_mode()
def held_out_loss(
    model: Decoder, task: ResolvedTask, subset: str | None, device: str, precision: str
) -> float:
    """Return the mean loss of a model on the targets of held-out batches, in nats.

    Raises:
        InputError: see `check_batch`.
    """
    assert task.tuning is not None
    model.eval()
    autocast = torch.autocast(device, torch.bfloat16, enabled=precision == "bf16")
    nats = 0.0
    targets_seen = 0
    for step in range(task.tuning.batches):
        batch = task.batches.held_out_batch(subset, step)
        check_batch(batch, task, f"the held-out batch {step}")
        size = task.train.micro_batch or len(batch.tokens)
        slices = zip(batch.tokens.split(size), batch.targets.split(size), strict=True)
        for tokens, targets in slices:  # (b, T) each
            where = scored_tokens(targets)
            with autocast:
                losses = model.token_losses(tokens.to(device), targets, scored=where)
            nats += float(losses.double().sum())
            targets_seen += len(where)
    return nats / max(1, targets_seen)
