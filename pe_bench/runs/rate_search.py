"""The search for the learning rate of a phase, and for a constant of the encoding.

A candidate is a learning rate and a value of the option that the encoding declares as `tunable`.
Every encoding may try CANDIDATES of them with the first tuning seed, see `propose`. The best get
the other seeds too, FINALISTS at most, and are judged by the worst of them:

    a candidate is as good as the best one if its worst loss is at most SOLVED, or at most FACTOR
    times and at most MARGIN nats above the smallest worst loss; of these the smallest rate is
    chosen, and at one rate the encoding's default value

A loss close to zero says nothing about which rate is better, and a smaller rate is more stable. A
seed more can only raise the worst loss of a candidate, so those that cannot be chosen any more get
no further seeds.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from pe_bench.config import show_rate
from pe_bench.decoder.model import Decoder
from pe_bench.registry.plugins import Plugin
from pe_bench.runs.resolve import ResolvedTask
from pe_bench.runs.tuning import Tuning, round_rate
from pe_bench.system.console import info
from pe_bench.system.sealed import read_if_intact, read_sealed, write_sealed

SOLVED = 0.01  # nats per target
FACTOR = 3.0
MARGIN = 0.02  # nats per target
FAR = 0.2  # nats per target
CANDIDATES = 6
FINALISTS = 3
TRAININGS = 6
"""What a search costs, about, in full trainings; most trials end early."""

EXTENSIONS = 2
"""Rates beyond an edge of the grid that are tried after the other candidates, at most."""


@dataclass(frozen=True)
class Candidate:
    """What a trial trains with.

    Attributes:
        lr: learning rate.
        value: of the encoding's tunable option, as in a spec; None: its default.
    """

    lr: float
    value: str | None = None

    def __str__(self) -> str:
        return f"lr {show_rate(self.lr)}" + (f", value {self.value}" if self.value else "")


@dataclass(frozen=True)
class Trial:
    """What a training of a candidate has led to.

    Attributes:
        loss: on held-out batches, nats per target; None: it diverged.
        training_loss: at the end of the training, nats per target.
        seconds: of the training.
        steps: that were trained.
        halfway: training loss in the middle of the planned steps, or at the end before it;
            unknown where the training was resumed after the middle.
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
        """The loss; infinite where the training diverged."""
        return math.inf if self.loss is None else self.loss


Trials = Mapping[Candidate, Sequence[Trial]]  # of each candidate, in the order of the seeds


class Watch:
    """Ends a trial as soon as its outcome is known.

    It is solved once its loss in training and then on held-out batches is below half of SOLVED
    (batches in training may be easier ones at first). It is hopeless if its training loss halfway
    is more than twice that of the best trial there, or more than FAR nats above it.

    Args:
        steps: planned.
        held_out: measures the loss on held-out batches.
        best: training loss of the best trial halfway; None: no trial is hopeless.
    """

    def __init__(self, steps: int, held_out: Callable[[], float], best: float | None) -> None:
        self.every = max(1, steps // 20)
        self.steps = steps
        self.held_out = held_out
        self.best = best
        self.halfway: float | None = None
        self.reason = ""
        self.model: Decoder | None = None  # that is being trained

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


def tolerance(best: float) -> float:
    """Return the largest worst loss that is as good as the smallest one."""
    return max(SOLVED, min(FACTOR * best, best + MARGIN))


def prefer(losses: Mapping[Candidate, float]) -> Candidate:
    """Return the candidate to choose, given worst losses of which one is finite."""
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

    First come the rates of the grid. Then one beyond the grid, as long as the best one is at its
    edge and there is room for the values; the values, at the best rate; rates between the best one
    and its neighbours.

    Args:
        losses: of the candidates that were tried; infinite where one has diverged.
        grid: learning rates to begin with, in ascending order.
        values: of the encoding's tunable option, without its default.
        default: value of the candidates of the grid.
    """
    middle = len(grid) // 2  # first, as others are compared with it
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
    if beyond and CANDIDATES - len(losses) > len(left):
        return beyond
    if left:
        return Candidate(best.lr, left[0])
    return beyond or _between(losses, best)


def beyond_edge(losses: Mapping[Candidate, float], best: Candidate) -> Candidate | None:
    """Return the candidate beyond the edge of the grid at which the best one lies, if it does."""
    rates = sorted({candidate.lr for candidate in losses})
    if best.lr == rates[0]:
        return Candidate(round_rate(rates[0] * rates[0] / rates[1]), best.value)
    if best.lr == rates[-1]:
        return Candidate(round_rate(rates[-1] * rates[-1] / rates[-2]), best.value)
    return None


def _between(losses: Mapping[Candidate, float], best: Candidate) -> Candidate | None:
    """Return an untried candidate between the best rate and a neighbour, the farther one first."""
    rates = sorted({candidate.lr for candidate in losses})
    place = rates.index(best.lr)
    neighbours = [rates[i] for i in (place - 1, place + 1) if 0 <= i < len(rates)]
    neighbours.sort(key=lambda lr: -round(abs(math.log(lr / best.lr)), 3))
    for neighbour in neighbours:
        mean = math.sqrt(best.lr * neighbour)
        found = Candidate(float(f"{mean:.1e}"), best.value)
        if found not in losses:
            return found
    return None


@dataclass(frozen=True)
class Search:
    """Tries candidates for the phases of a task.

    Attributes:
        task: has the first rates and the seeds in `task.tuning`.
        encoding: the encoding.
        path: file that keeps trials and choices, so that a later call goes on from there.
    """

    task: ResolvedTask
    encoding: Plugin
    path: Path

    @property
    def tuning(self) -> Tuning:
        """Rates, seeds and held-out batches."""
        assert self.task.tuning is not None
        return self.task.tuning

    def title(self, subset: str | None) -> str:
        """Return what messages call the search for a phase."""
        return f"{self.encoding.label} · {subset or self.task.label} · tune"

    def read(self) -> dict[str, Any]:
        """Return all that the file keeps; empty: nothing."""
        return read_if_intact(lambda: read_sealed(self.path, of=self.path.stem)) or {}

    def chosen(self, subset: str | None) -> Candidate | None:
        """Return the chosen candidate of a phase; None before the choice."""
        content = self.read()
        rate = content.get("lr", {}).get(_phase(subset))
        value = content.get("values", {}).get(_phase(subset))
        return None if rate is None else Candidate(float(rate), value)

    def choose(
        self,
        subset: str | None,
        values: Sequence[str],
        attempt: Callable[[Candidate, int, float | None], Trial],
        *,
        default: str | None = None,
    ) -> Candidate:
        """Return the candidate that the rule above chooses.

        Args:
            subset: of the phase; None: it serves all of them.
            values: of the encoding's tunable option, without its default.
            attempt: called with a candidate and a seed that were not tried before, and the training
                loss of the best trial halfway, None where no trial is hopeless.
            default: value that candidates have otherwise; None: the encoding's default.

        Raises:
            FloatingPointError: no candidate is left.
        """

        def run(candidate: Candidate, seed: int, *, first: bool) -> Trial:
            trial = self._kept(subset, candidate, seed)
            if trial is None:
                info(f"{self.title(subset)}: {candidate}, seed {seed}")
                best = _best_halfway(trials.values()) if first else None
                trial = attempt(candidate, seed, best)
                self._keep(subset, candidate, seed, trial)
            return trial

        seeds = self.tuning.seeds
        trials: dict[Candidate, list[Trial]] = {}
        while candidate := propose(worst_losses(trials), self.tuning.lr, values, default):
            trials[candidate] = [run(candidate, seeds[0], first=True)]
        extensions = 0
        while True:
            best = self._decide(trials, lambda c, seed: run(c, seed, first=False))
            losses = worst_losses(trials)
            beyond = None
            if best is None:
                beyond = beyond_edge(losses, min(losses, key=lambda c: c.lr))
            elif losses[best] > SOLVED:
                beyond = beyond_edge(losses, best)
            if beyond is None or extensions == EXTENSIONS or beyond in trials:
                break
            extensions += 1
            trials[beyond] = [run(beyond, seeds[0], first=True)]
        if best is None:
            of = ", ".join(show_rate(lr) for lr in sorted({c.lr for c in trials}))
            raise FloatingPointError(f"the loss is not finite under any learning rate of {of}")
        self._keep_choice(subset, best, trials, at_edge=beyond is not None)
        return best

    def _decide(
        self, trials: dict[Candidate, list[Trial]], run: Callable[[Candidate, int], Trial]
    ) -> Candidate | None:
        """Give further seeds to the candidates that need them; return the choice, if any is left.

        The choice is that of all finalists with all of their seeds.
        """
        seeds = self.tuning.seeds
        while True:
            finalists = sum(len(found) > 1 for found in trials.values())
            losses = worst_losses(trials)
            if len(seeds) > 1 and finalists >= FINALISTS:
                losses = {c: loss for c, loss in losses.items() if len(trials[c]) > 1}
            losses = {c: loss for c, loss in losses.items() if loss < math.inf}
            if not losses:
                return None
            preferred = prefer(losses)
            smallest = min(losses, key=lambda c: (losses[c], c.lr))  # it sets the tolerance
            for candidate in (preferred, smallest):
                if len(trials[candidate]) < len(seeds):
                    seed = seeds[len(trials[candidate])]
                    trials[candidate].append(run(candidate, seed))
                    break
            else:
                return preferred

    def tried(self, subset: str | None) -> list[tuple[Candidate, int]]:
        """Return the candidates and seeds of all trials of a phase."""
        found = [t for t in self.read().get("tried", []) if t["phase"] == _phase(subset)]
        return [(Candidate(trial["lr"], trial.get("value")), trial["seed"]) for trial in found]

    def _kept(self, subset: str | None, candidate: Candidate, seed: int) -> Trial | None:
        """Return what an earlier call has found, if one did."""
        wanted = (_phase(subset), candidate.lr, candidate.value, seed)
        names = [field.name for field in fields(Trial)]
        for found in self.read().get("tried", []):
            if (found["phase"], found["lr"], found.get("value"), found["seed"]) == wanted:
                return Trial(**{name: found[name] for name in names if name in found})
        return None

    def _keep(self, subset: str | None, candidate: Candidate, seed: int, trial: Trial) -> None:
        content = self.read() or {
            "task": self.task.label,
            "encoding": self.encoding.label,
            "encoding_version": self.encoding.version,
            "settings_digest": self.task.digest(),
            "rates": self.tuning.lr,
            "seeds": self.tuning.seeds,
            "held_out_batches": self.tuning.batches,
            "option": self.encoding.cls.tunable.option if self.encoding.cls.tunable else None,
            "tried": [],
        }
        entry = {"phase": _phase(subset), **asdict(candidate), "seed": seed, **asdict(trial)}
        content["tried"].append(entry)
        write_sealed(self.path, content, of=self.path.stem)

    def _keep_choice(
        self, subset: str | None, best: Candidate, trials: Trials, *, at_edge: bool
    ) -> None:
        planned = self.task.train.steps
        steps = sum(trial.steps or planned for found in trials.values() for trial in found)
        cost = round(steps / planned, 2)
        info(
            f"{self.title(subset)}: {best}, held-out loss {worst_losses(trials)[best]:.4g}"
            f"{', at the edge of the rates tried' if at_edge else ''} ({cost:g} trainings)"
        )
        phase = _phase(subset)
        content = self.read()
        content["lr"] = {**content.get("lr", {}), phase: best.lr}
        content["values"] = {**content.get("values", {}), phase: best.value}
        content["at_edge"] = {**content.get("at_edge", {}), phase: at_edge}
        content["trainings"] = {**content.get("trainings", {}), phase: cost}
        write_sealed(self.path, content, of=self.path.stem)


def worst_losses(trials: Trials) -> dict[Candidate, float]:
    """Return the largest held-out loss of each candidate, over the seeds that it was tried with."""
    return {c: max(trial.finite_loss for trial in found) for c, found in trials.items()}


def _best_halfway(trials: Sequence[Sequence[Trial]] | Any) -> float | None:
    """Return the training loss halfway of the trial with the smallest loss, if there is one."""
    finished = [found[0] for found in trials if None not in (found[0].loss, found[0].halfway)]
    return min(finished, key=lambda trial: trial.finite_loss).halfway if finished else None


def _phase(subset: str | None) -> str:
    return subset or "all"
