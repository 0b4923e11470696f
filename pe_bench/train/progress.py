"""Progress of a training: steps, time and memory, the shown loss, and saving at intervals."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from pe_bench.config import TrainConfig
from pe_bench.system import environment
from pe_bench.system.console import Bar
from pe_bench.system.time_limit import TimeLimit
from pe_bench.train.fabric import Logger
from pe_bench.train.loggers import log_curve
from pe_bench.train.process_group import ProcessGroup
from pe_bench.train.training_log import TrainingLog
from pe_bench.train.training_state import TrainingState

SHOW_EVERY = 0.5  # seconds between updates of the shown loss


@dataclass(frozen=True)
class Callbacks:
    """Callbacks of the training loop, called between steps on the first rank only.

    Attributes:
        save: called with the current state about every `config.save_every` seconds. The next step
            changes the tensors of the state in place.
        stop: called every `config.check_every` steps with the number of completed steps and the
            mean loss since the previous call; True ends the training.
        limit: time limit. When it is over, the state is saved before the training ends with an
            exception.
        logger: gets each point of the learning curve, also the points before an interruption.
    """

    save: Callable[[TrainingState], None] | None = None
    stop: Callable[[int, float], bool] | None = None
    limit: TimeLimit | None = None
    logger: Logger | None = None


NO_CALLBACKS = Callbacks()


class Progress:
    """Completed steps, time and memory of a training, including those before an interruption.

    Args:
        device: "cpu" or "cuda".
        state: state to resume from; None: the training begins.

    Attributes:
        steps: number of completed steps.
    """

    def __init__(self, device: str, state: TrainingState | None) -> None:
        self.steps = state.step if state else 0
        self._device = device
        self._started = time.monotonic()
        self._seconds_before = state.seconds if state else 0.0
        self._peak_before = state.peak_memory_bytes if state else 0

    def seconds(self) -> float:
        """Return the wall time of the training so far."""
        return self._seconds_before + time.monotonic() - self._started

    def peak_memory(self) -> int:
        """Return the highest memory use so far, in bytes."""
        return max(self._peak_before, environment.peak_memory(self._device))


class Report:
    """Shows the loss of a training, and gives the points of its learning curve to a logger.

    Args:
        log: losses of the training.
        rate: index of a step -> its learning rate.
        bar: progress bar.
        logger: gets the points; None: there is no logger.
        shows_loss: whether the bar shows the loss during training.
    """

    def __init__(
        self,
        log: TrainingLog,
        rate: Callable[[int], float],
        bar: Bar,
        logger: Logger | None,
        *,
        shows_loss: bool,
    ) -> None:
        self.log = log
        self.rate = rate
        self.bar = bar
        self.logger = logger
        self.shows_loss = shows_loss
        self._shown = time.monotonic()
        self._logged = 0  # number of points that the logger has

    def update(self, steps: int) -> None:
        """Report one more step, after `steps` completed steps."""
        if self.logger and self.log.is_point(steps):
            points = self.log.curve(steps, self.rate, first=self._logged)
            log_curve(self.logger, points)
            self._logged += len(points)
        if self.shows_loss and time.monotonic() - self._shown > SHOW_EVERY:
            self.show_loss(steps)
            self._shown = time.monotonic()
        self.bar.update()

    def show_loss(self, steps: int) -> None:
        """Show the recent loss after `steps` completed steps; this waits for the device."""
        self.bar.note = f"loss {self.log.recent_loss(steps):.3f}"


class Saver:
    """Saves the state of a training at intervals, and when the time limit is over.

    Args:
        config: the training phase.
        group: the processes that train the model together.
        callbacks: `save` and `limit` of the first rank.
        current_state: returns the state of the training. All ranks call it together, because each
            may hold a shard of the weights.
    """

    def __init__(
        self,
        config: TrainConfig,
        group: ProcessGroup,
        callbacks: Callbacks,
        current_state: Callable[[], TrainingState],
    ) -> None:
        self.config = config
        self.group = group
        self.callbacks = callbacks
        self.current_state = current_state
        self.saved = time.monotonic()

    def save_if_due(self, steps: int) -> None:
        """Save the state after `steps` completed steps if it is time to.

        Raises:
            TimedOut: the time limit is over before the last step.
        """
        limit = self.callbacks.limit
        is_due = time.monotonic() - self.saved >= self.config.save_every
        timed_out = limit is not None and limit.is_over and steps < self.config.steps
        if self.group.any((is_due or timed_out) and self.group.rank == 0):
            state = self.current_state()
            if self.callbacks.save:
                self.callbacks.save(state)
            self.saved = time.monotonic()
        if limit and timed_out:
            limit.check(f"in training after step {steps} of {self.config.steps}")
