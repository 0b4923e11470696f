"""Result of a training phase. A separate module so that importing it does not import Lightning."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from pe_bench.results.learning_curves import LearningCurve

VERSION = 1
"""Part of every run's settings: raise it when the same batches give other weights."""


@dataclass(frozen=True)
class TrainingResult:
    """Cost and final loss of a training phase.

    Attributes:
        steps: optimizer steps.
        tokens: tokens seen, padding included.
        seconds: wall time, before an interruption included.
        loss: mean training loss of the last tenth of the steps, nats per target.
        peak_memory_bytes: highest memory use of this process, before an interruption included.
        micro_batch: rows per forward pass at the end, fewer than configured if memory did not
            suffice; None: the whole batch.
        curve: its learning curve; empty if no step was taken.
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
        """Return the result as a checkpoint stores it."""
        return self.cost() | {"curve": self.curve.to_json()}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "TrainingResult":
        """Return the result that `to_json` has converted, perhaps of a version without curves."""
        curve = content.get("curve")
        kept = LearningCurve.from_json(curve) if curve else LearningCurve()
        return cls(**{**content, "curve": kept})
