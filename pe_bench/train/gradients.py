"""Gradients of a batch, in micro-batches that fit into memory."""

import torch
from torch import Tensor, nn

from pe_bench.batch import Batch
from pe_bench.config import IGNORE
from pe_bench.decoder.losses import scored_tokens
from pe_bench.decoder.model import Decoder
from pe_bench.errors import InputError
from pe_bench.system import console
from pe_bench.train.fabric import Fabric
from pe_bench.train.process_group import ProcessGroup
from pe_bench.train.sharding import gather


class GradientAccumulator:
    """Accumulates the gradient of a batch's mean loss, in micro-batches.

    If GPU memory runs out, micro-batches are halved from then on, which changes sums only by
    rounding. Each rank has a shard of the rows of every micro-batch.

    Args:
        model: the model.
        fabric: device and precision.
        group: the processes that train the model together.
        micro_batch: number of rows of a forward pass; None: the whole batch.
        seed: seed of the training.
    """

    def __init__(
        self,
        model: Decoder,
        fabric: Fabric,
        group: ProcessGroup,
        micro_batch: int | None,
        seed: int,
    ) -> None:
        self.model = model
        self.fabric = fabric
        self.group = group
        self.micro_batch = micro_batch
        self.seed = seed

    def backward(self, batch: Batch, step: int) -> Tensor:
        """Set the gradients of all parameters; return the mean loss over all targets, a scalar.

        Raises:
            torch.OutOfMemoryError: memory does not suffice for a single row.
        """
        loss = self._try(batch, step)
        while loss is None:
            self.model.zero_grad()  # discard gradients of the attempt that ran out of memory
            loss = self._try(batch, step)
        return loss

    def _try(self, batch: Batch, step: int) -> Tensor | None:
        """Do one attempt and return the loss, or None if a rank ran out of memory."""
        # Random numbers depend only on seed and step, so a resumed training repeats them.
        _seed_generators((1_000_003 * self.seed + step) % 2**32, self.fabric.device)
        size = len(batch.tokens)
        rows = min(self.micro_batch or size, size)
        # Targets stay on the CPU, where counting them does not wait for the device.
        tokens_on_device = batch.tokens.to(self.fabric.device, non_blocking=True)  # (B, T)
        count = (batch.targets != IGNORE).sum()
        if not count:
            sentence = f"the batch of step {step} has no target, so it trains nothing"
            if not step:
                raise InputError(sentence)
            console.warn(sentence)
        count = count.clamp(min=1)
        total = torch.zeros((), device=self.fabric.device)
        is_out_of_memory = False
        micro_batches = zip(tokens_on_device.split(rows), batch.targets.split(rows), strict=True)
        try:
            with self.fabric.autocast():
                for micro_batch in micro_batches:
                    tokens, targets = self.group.shard_rows(*micro_batch)  # (b, T) each
                    where = scored_tokens(targets)
                    loss = self.model.token_losses(tokens, targets, scored=where).sum() / count
                    total += loss.detach()
                    extra = self.model.extra_loss()
                    if extra is not None:
                        loss = loss + extra * (len(tokens) / size)
                    self.fabric.backward(loss)
        except torch.OutOfMemoryError:
            # With sharded weights the other ranks wait for this rank's shards.
            if rows <= self.group.size or self.group.shards_weights:
                raise
            is_out_of_memory = True
        if self.group.any(is_out_of_memory):
            self.micro_batch = (rows + 1) // 2
            console.warn(
                f"memory does not suffice for {rows} rows: continuing with {self.micro_batch} rows"
            )
            return None
        return self.group.all_reduce(self.model.parameters(), total)


def clip(parameters: list[nn.Parameter], largest: float) -> Tensor:
    """Clip the gradient to the norm `largest` (0: no clipping); return the norm before clipping."""
    if largest:
        return gather(nn.utils.clip_grad_norm_(parameters, largest))
    return gather(nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None]))


def _seed_generators(seed: int, device: torch.device) -> None:
    """Seed the random generators of a training.

    `torch.manual_seed` also visits all other devices, which takes a millisecond.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed_all(seed)
