"""State of a training between two steps: everything needed to resume it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class TrainingState:
    """State of a training after some steps.

    Attributes:
        step: completed optimizer steps.
        weights: weights of the model.
        optimizer: state dict of the optimizer.
        seconds: wall time of the training so far.
        peak_memory_bytes: highest memory use so far.
        log: losses, gradient norms and times, see `TrainingLog.state_dict`.
    """

    step: int
    weights: Mapping[str, Tensor]
    optimizer: Mapping[str, Any]
    seconds: float
    peak_memory_bytes: int
    log: Mapping[str, Any]
