"""What a training phase leaves behind. Apart from training itself: Lightning takes seconds."""

from dataclasses import dataclass
from pathlib import Path

from pe_bench.running.checkpoints import SUFFIX, read_checkpoint
from pe_bench.system.sealed import recall

VERSION = 1
"""Part of every run's settings: raise it when the same batches train another model."""


@dataclass(frozen=True)
class Trained:
    """Cost and end of a training phase.

    Attributes:
        steps: optimizer steps.
        tokens: tokens seen, padding included.
        seconds: wall time, the parts before an interruption included.
        loss: mean training loss of the last tenth of the steps, nats per target.
        peak_memory_bytes: most memory in use by this process, before an interruption too.
        micro_batch: rows that went through the model at once in the end, fewer than asked for
            where memory did not suffice; None: all.
    """

    steps: int
    tokens: int
    seconds: float
    loss: float
    peak_memory_bytes: int = 0
    micro_batch: int | None = None


def read_trained(folder: Path, of: str) -> Trained | None:
    """Return cost and end of a phase that an earlier call of `train` has finished."""
    kept = recall(lambda: read_checkpoint(folder / f"final{SUFFIX}", of=of))
    return Trained(**kept["trained"]) if kept else None
