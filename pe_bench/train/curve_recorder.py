"""Records the learning curve of a training; no step waits for the device."""

import math
import time
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pe_bench.results.learning_curves import LearningCurve

POINTS = 200  # of a curve, at most


class Mark(NamedTuple):
    """How far a training is: steps, tokens and seconds since its first step."""

    step: int
    tokens: int
    seconds: float


class CurveRecorder(nn.Module):
    """Keeps the gradient norm of every step, and a mark at the end of every interval of steps.

    Losses are kept by the training itself, which needs them too. The clock stands still between a
    kill and the first step after it.

    Args:
        steps: planned optimizer steps of the training.
    """

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.interval = max(1, math.ceil(steps / POINTS))
        self.marks: list[Mark] = []
        self.tokens = 0
        self.seconds = 0.0  # before this call
        self.started: float | None = None  # the clock at the first step of this call
        self.norms: Tensor  # (steps,), on the device
        self.register_buffer("norms", torch.full((steps,), math.nan), persistent=False)

    def begin(self, step: int) -> None:
        """Start the clock; call this before every step, with its index."""
        if self.started is None:
            self.started = time.monotonic()
        if not self.marks:
            self.marks.append(Mark(step, 0, 0.0))

    def record(self, step: int, norm: Tensor, tokens: int) -> None:
        """Record a step that is done.

        Args:
            step: its index, from 0 on.
            norm: of its gradient before clipping, a scalar.
            tokens: that it has seen.
        """
        self.norms[step] = norm
        self.tokens += tokens
        if (step + 1) % self.interval == 0:
            self.marks.append(self._mark(step + 1))

    def curve(self, step: int, losses: Tensor, rate: Callable[[int], float]) -> LearningCurve:
        """Return the curve up to a step.

        Args:
            step: number of steps that are done.
            losses: of each step, (steps,).
            rate: index of a step -> its learning rate.
        """
        marks = list(self.marks)
        if (
            marks and marks[-1].step < step
        ):  # steps are no multiple of the interval, or it ended early
            marks.append(self._mark(step))
        norms = self.norms.cpu()
        losses = losses.cpu()
        points = []
        for before, mark in pairwise(marks):
            inside = slice(before.step, mark.step)
            seconds = mark.seconds - before.seconds
            speed = (mark.tokens - before.tokens) / seconds if seconds else math.nan
            loss, norm = float(losses[inside].mean()), float(norms[inside].mean())
            points.append((mark.step, loss, rate(mark.step - 1), norm, speed))
        return LearningCurve(*zip(*points, strict=True))  # of nothing: empty columns

    def kept(self, step: int) -> dict[str, Any]:
        """Return what a checkpoint after so many steps has to keep."""
        now = self._mark(step)
        return {
            "marks": [list(mark) for mark in self.marks],
            "tokens": now.tokens,
            "seconds": now.seconds,
            "norms": self.norms[:step].tolist(),
        }

    def go_on(self, state: Mapping[str, Any]) -> None:
        """Go on from what a checkpoint keeps."""
        self.marks = [Mark(*mark) for mark in state["marks"]]
        self.tokens = state["tokens"]
        self.seconds = state["seconds"]
        self.norms[: len(state["norms"])] = torch.tensor(state["norms"])

    def _mark(self, step: int) -> Mark:
        seconds = self.seconds
        if self.started is not None:
            seconds += time.monotonic() - self.started
        return Mark(step, self.tokens, seconds)
