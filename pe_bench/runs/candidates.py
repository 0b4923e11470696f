"""The candidates of a search, and the rule that chooses one; pure functions of losses.

A candidate is a learning rate and a value of the option that the encoding declares as `tunable`.
Every encoding may try CANDIDATES candidates with the first tuning seed, see `propose`. At most
FINALISTS candidates, the best ones, are also trained with the other seeds. The rule compares the
worst loss of each candidate over its seeds:

    A candidate is as good as the best one if its worst loss is at most SOLVED, or at most FACTOR
    times and at most MARGIN nats above the smallest worst loss. The rule chooses the candidate
    with the smallest rate among these; if several have that rate, the encoding's default value.

A loss close to zero says nothing about which rate is better, and a smaller rate is more stable. An
additional seed can only increase the worst loss of a candidate. So a candidate that can no longer
be chosen gets no further seeds.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pe_bench.config import show_rate
from pe_bench.runs.tuning import round_rate

SOLVED = 0.01  # nats per target
FACTOR = 3.0
MARGIN = 0.02  # nats per target
CANDIDATES = 6
FINALISTS = 3


@dataclass(frozen=True)
class Candidate:
    """A learning rate and an option value that a trial trains with.

    Attributes:
        lr: learning rate.
        value: value of the encoding's tunable option, as in a spec; None: its default.
    """

    lr: float
    value: str | None = None

    def __str__(self) -> str:
        return f"lr {show_rate(self.lr)}" + (f", value {self.value}" if self.value else "")


@dataclass(frozen=True)
class Trial:
    """The result of training one candidate with one seed.

    Attributes:
        loss: loss on held-out batches, nats per target; None: the training diverged.
        training_loss: training loss at the end, nats per target.
        seconds: duration of the training.
        steps: number of training steps.
        halfway: training loss in the middle of the planned steps, or the last one before it if the
            training ended earlier; unknown if the training was resumed after the middle.
        stopped: why it ended before the planned steps: "solved", "hopeless" or "diverged".
    """

    loss: float | None
    training_loss: float | None = None
    seconds: float | None = None
    steps: int | None = None
    halfway: float | None = None
    stopped: str = ""

    @property
    def finite_loss(self) -> float:
        """The loss; infinite if the training diverged."""
        return math.inf if self.loss is None else self.loss


Trials = Mapping[Candidate, Sequence[Trial]]  # trials by candidate, in the order of the seeds


def tolerance(best: float) -> float:
    """Return the largest worst loss that counts as equal to the smallest one, `best`."""
    return max(SOLVED, min(FACTOR * best, best + MARGIN))


def prefer(losses: Mapping[Candidate, float]) -> Candidate:
    """Return the chosen candidate, given worst losses; at least one must be finite."""
    limit = tolerance(min(losses.values()))
    good = [candidate for candidate, loss in losses.items() if loss <= limit]
    return min(good, key=lambda c: (c.lr, c.value is not None, losses[c], c.value or ""))


def propose(
    losses: Mapping[Candidate, float],
    grid: Sequence[float],
    values: Sequence[str],
    default: str | None = None,
) -> Candidate | None:
    """Return the next candidate for the first seed; None: none could be better.

    The order is: the rates of the grid; rates beyond the grid, while the best rate is at its edge
    and enough candidates remain for the values; the values, at the best rate; rates between the
    best one and its neighbours.

    Args:
        losses: losses of the candidates that were tried; infinite if a training diverged.
        grid: learning rates to begin with, in ascending order.
        values: values of the encoding's tunable option, without its default.
        default: option value of the candidates on the grid.
    """
    middle = len(grid) // 2  # tried first: the other rates are compared with it
    for lr in (grid[middle], *grid[:middle], *grid[middle + 1 :]):
        if Candidate(lr, default) not in losses:
            return Candidate(lr, default)
    if len(losses) >= CANDIDATES or min(losses.values()) == math.inf:
        return None
    best = prefer(losses)
    if losses[best] <= SOLVED:
        return None
    tried = {candidate.value for candidate in losses} - {None}
    left = [value for value in values if value not in tried]
    beyond = beyond_edge(losses, best)
    if beyond in losses:  # between close rates, rounding leads to a rate that was tried
        beyond = None
    if beyond and CANDIDATES - len(losses) > len(left):
        return beyond
    if left:
        return Candidate(best.lr, left[0])
    return beyond or _between(losses, best)


def beyond_edge(losses: Mapping[Candidate, float], best: Candidate) -> Candidate | None:
    """Return the candidate beyond the edge of the grid if the best one is at an edge, else None."""
    rates = sorted({candidate.lr for candidate in losses})
    if best.lr == rates[0]:
        return Candidate(round_rate(rates[0] * rates[0] / rates[1]), best.value)
    if best.lr == rates[-1]:
        return Candidate(round_rate(rates[-1] * rates[-1] / rates[-2]), best.value)
    return None


def _between(losses: Mapping[Candidate, float], best: Candidate) -> Candidate | None:
    """Return an untried candidate between the best rate and a neighbour; first the farther one."""
    rates = sorted({candidate.lr for candidate in losses})
    index = rates.index(best.lr)
    neighbours = [rates[i] for i in (index - 1, index + 1) if 0 <= i < len(rates)]
    neighbours.sort(key=lambda lr: -round(abs(math.log(lr / best.lr)), 3))
    for neighbour in neighbours:
        mean = math.sqrt(best.lr * neighbour)
        found = Candidate(float(f"{mean:.1e}"), best.value)
        if found not in losses:
            return found
    return None


def worst_losses(trials: Trials) -> dict[Candidate, float]:
    """Return the largest held-out loss of each candidate over the seeds tried so far."""
    worst = {}
    for candidate, found in trials.items():
        worst[candidate] = max(trial.finite_loss for trial in found)
    return worst
