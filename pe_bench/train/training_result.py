"""What a training phase leaves behind. Apart from training itself: Lightning takes seconds."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pe_bench.results.learning_curves import LearningCurve
from pe_bench.system.sealed import recall
from pe_bench.train.checkpoints import SUFFIX, read_checkpoint

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
        curve: its learning curve; empty for a model that an earlier version has trained.
    """

    steps: int
    tokens: int
    seconds: float
    loss: float
    peak_memory_bytes: int = 0
    micro_batch: int | None = None
    curve: LearningCurve = field(default=LearningCurve(), compare=False)  # has times

    def cost(self) -> dict[str, Any]:
        """Return everything but the curve."""
        return {name: value for name, value in asdict(self).items() if name != "curve"}

    def to_json(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        return self.cost() | {"curve": self.curve.to_json()}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Trained":
        """Return what `to_json` has made, or that of an earlier version, which had no curves."""
        curve = content.get("curve")
        kept = LearningCurve.from_json(curve) if curve else LearningCurve()
        return cls(**{**content, "curve": kept})


def read_trained(folder: Path, of: str) -> Trained | None:
    """Return cost and end of a phase that an earlier call of `train` has finished."""
    kept = recall(lambda: read_checkpoint(folder / f"final{SUFFIX}", of=of))
    return Trained.from_json(kept["trained"]) if kept else None
