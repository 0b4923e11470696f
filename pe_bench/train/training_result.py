"""Result of a training phase. A separate module so that importing it does not import Lightning."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from pe_bench.results.learning_curves import LearningCurve

VERSION = 1
"""Part of every run's settings. Increase it when the same batches give different weights."""


@dataclass(frozen=True)
class TrainingResult:
    """Cost and final loss of a training phase.

    Attributes:
        steps: optimizer steps.
        tokens: tokens seen, padding included.
        seconds: wall time, including the time before an interruption.
        loss: mean training loss of the last tenth of the steps, nats per target.
        peak_memory_bytes: peak memory of this process, also before an interruption.
        micro_batch: number of rows per forward pass at the end, fewer than configured if memory
            was insufficient; None: the whole batch.
        curve: learning curve; empty if no step was taken.
    """

    steps: int
    tokens: int
    seconds: float
    loss: float
    peak_memory_bytes: int = 0
    micro_batch: int | None = None
    curve: LearningCurve = field(default=LearningCurve(), compare=False)  # contains times

    def cost(self) -> dict[str, Any]:
        """Return all fields except the curve."""
        return {name: value for name, value in asdict(self).items() if name != "curve"}

    def to_json(self) -> dict[str, Any]:
        """Return the result in the form stored in checkpoints."""
        return self.cost() | {"curve": self.curve.to_json()}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "TrainingResult":
        """Return the result from `to_json`; earlier versions had no curves."""
        curve = content.get("curve")
        kept = LearningCurve.from_json(curve) if curve else LearningCurve()
        return cls(**{**content, "curve": kept})
