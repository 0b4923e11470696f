"""Early stopping of the trials of a search."""

from collections.abc import Callable

from pe_bench.config import TrainConfig
from pe_bench.runs.candidates import SOLVED

FAR = 0.2  # nats per target


class EarlyStopping:
    """Stopping rule that ends a trial as soon as its outcome is known.

    A trial is solved once its training loss and then its held-out loss are below half of SOLVED;
    the second condition is necessary because a curriculum may begin with easier training batches.
    A trial is hopeless if its training loss halfway is above SOLVED, and either more than twice
    that of the best trial or more than FAR nats above it.

    Args:
        config: the training phase.
        held_out: measures the loss on held-out batches.
        best: halfway training loss of the best trial; None: the trial must not end as hopeless.
    """

    def __init__(
        self, config: TrainConfig, held_out: Callable[[], float], best: float | None
    ) -> None:
        self.every = config.check_every
        self.steps = config.steps
        self.held_out = held_out
        self.best = best
        self.halfway: float | None = None
        self.reason = ""

    def __call__(self, step: int, loss: float) -> bool:
        """Return whether the training ends after `step` steps, given its recent loss."""
        if step <= self.steps / 2:
            self.halfway = loss
        if loss < SOLVED / 2 and self.held_out() < SOLVED / 2:
            self.reason = "solved"
        in_the_middle = 0 <= step - self.steps / 2 < self.every
        if in_the_middle and self._is_far(loss) and not self.reason:
            self.reason = "hopeless"
        return bool(self.reason)

    def _is_far(self, loss: float) -> bool:
        if self.best is None:
            return False
        return loss > max(min(2 * self.best, self.best + FAR), SOLVED)
