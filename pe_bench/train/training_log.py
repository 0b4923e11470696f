"""Record the losses and the learning curve of a training without waiting for the device."""

import math
import time
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pe_bench.results.learning_curves import LearningCurve

POINTS = 200  # maximum number of points of a curve


class Mark(NamedTuple):
    """Progress of a training: steps, tokens and seconds since its first step."""

    step: int
    tokens: int
    seconds: float


class TrainingLog:
    """Keeps loss and gradient norm of every step, and a mark after every interval of steps.

    The clock is paused from an interruption to the first step after it.

    Args:
        steps: planned optimizer steps of the training.
        device: device of losses and norms.
    """

    def __init__(self, steps: int, device: torch.device | str = "cpu") -> None:
        self.steps = steps
        self.interval = max(1, math.ceil(steps / POINTS))
        self.marks: list[Mark] = []
        self.tokens = 0
        self.seconds = 0.0  # before this call
        self.started: float | None = None  # the clock at the first step of this call
        self.losses = torch.zeros(steps, device=device)
        self.norms = torch.full((steps,), math.nan, device=device)

    def begin(self, step: int) -> None:
        """Start the clock; call this before every step, with its index."""
        if self.started is None:
            self.started = time.monotonic()
        if not self.marks:
            self.marks.append(Mark(step, 0, 0.0))

    def record(self, step: int, loss: Tensor, norm: Tensor, tokens: int) -> None:
        """Record a completed step.

        Args:
            step: index of the step, from 0.
            loss: mean loss over the targets, a scalar.
            norm: norm of the gradient before clipping, a scalar.
            tokens: number of tokens of the batch.
        """
        self.losses[step] = loss
        self.norms[step] = norm
        self.tokens += tokens
        if (step + 1) % self.interval == 0:
            self.marks.append(self._mark(step + 1))

    def mean_loss(self, first: int, last: int) -> float:
        """Return the mean loss of the steps from `first` to before `last`."""
        return float(self.losses[first:last].mean())

    def recent_loss(self, step: int) -> float:
        """Return the mean loss of the last tenth of the planned steps; NaN before the first step.

        Args:
            step: number of completed steps.

        Raises:
            FloatingPointError: the mean loss is not finite.
        """
        if not step:
            return math.nan
        loss = self.mean_loss(max(0, step - max(1, self.steps // 10)), step)
        if not math.isfinite(loss) and not math.isfinite(float(self.losses[0])):
            raise FloatingPointError(
                f"the loss is {float(self.losses[0])} at the first step, before anything was "
                "trained: the outputs of the model or the targets are wrong"
            )
        if not math.isfinite(loss):
            raise FloatingPointError(
                f"the loss is {loss} at step {step}: lower --train.lr or raise --train.warmup"
            )
        return loss

    def is_point(self, step: int) -> bool:
        """Return whether the curve has a point after `step` completed steps."""
        return step % self.interval == 0 or step == self.steps

    def curve(self, step: int, rate: Callable[[int], float], first: int = 0) -> LearningCurve:
        """Return the curve up to a step.

        Args:
            step: number of completed steps.
            rate: index of a step -> its learning rate.
            first: index of the first point to return.
        """
        marks = list(self.marks)
        # The number of steps need not be a multiple of the interval.
        if marks and marks[-1].step < step:
            marks.append(self._mark(step))
        norms = self.norms.cpu()
        losses = self.losses.cpu()
        points = []
        for before, mark in pairwise(marks[first:]):
            inside = slice(before.step, mark.step)
            seconds = mark.seconds - before.seconds
            speed = (mark.tokens - before.tokens) / seconds if seconds else math.nan
            loss, norm = float(losses[inside].mean()), float(norms[inside].mean())
            points.append((mark.step, loss, rate(mark.step - 1), norm, speed))
        return LearningCurve(*zip(*points, strict=True))  # without points: empty columns

    def state_dict(self, step: int) -> dict[str, Any]:
        """Return the state after `step` completed steps."""
        now = self._mark(step)
        return {
            "marks": [list(mark) for mark in self.marks],
            "tokens": now.tokens,
            "seconds": now.seconds,
            "losses": self.losses[:step].tolist(),
            "norms": self.norms[:step].tolist(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state."""
        self.marks = [Mark(*mark) for mark in state["marks"]]
        self.tokens = state["tokens"]
        self.seconds = state["seconds"]
        self.losses[: len(state["losses"])] = torch.tensor(state["losses"])
        self.norms[: len(state["norms"])] = torch.tensor(state["norms"])

    def _mark(self, step: int) -> Mark:
        seconds = self.seconds
        if self.started is not None:
            seconds += time.monotonic() - self.started
        return Mark(step, self.tokens, seconds)
