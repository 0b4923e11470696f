"""The search for the learning rate of a phase, and for a constant of the encoding.

`candidates.py` contains the rule for the choice.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from pe_bench.config import show_rate
from pe_bench.registry.plugins import Plugin
from pe_bench.results import record_parts
from pe_bench.runs.candidates import (
    FINALISTS,
    SOLVED,
    Candidate,
    Trial,
    Trials,
    beyond_edge,
    prefer,
    propose,
    worst_losses,
)
from pe_bench.runs.resolve import ResolvedTask
from pe_bench.runs.tuning import Tuning
from pe_bench.system.console import info
from pe_bench.system.sealed import read_if_intact, read_sealed, write_sealed

TRAININGS = 6
"""Approximate cost of a search, in full trainings; most trials end early."""

EXTENSIONS = 2
"""Maximum number of rates beyond an edge of the grid, tried after all other candidates."""


@dataclass(frozen=True)
class Search:
    """Search among candidates for the phases of a task.

    Attributes:
        task: the task; `task.tuning` contains the first rates and the seeds.
        encoding: the encoding.
        path: file that stores trials and choices, from which a later call resumes.
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
        """Return the title of the search for a phase, for messages."""
        return f"{self.encoding.label} · {subset or self.task.label} · tune"

    def read(self) -> dict[str, Any]:
        """Return the content of the file; empty if there is no intact file."""
        kind = record_parts.SearchJson
        return read_if_intact(lambda: read_sealed(self.path, owner=self.path.stem, kind=kind)) or {}

    def find_choice(self, subset: str | None) -> Candidate | None:
        """Return the chosen candidate of a phase; None: none has been chosen yet."""
        content = self.read()
        rate = content.get("lr", {}).get(_subset_key(subset))
        value = content.get("values", {}).get(_subset_key(subset))
        return None if rate is None else Candidate(float(rate), value)

    def choose(
        self,
        subset: str | None,
        values: Sequence[str],
        attempt: Callable[[Candidate, int, float | None], Trial],
        *,
        default: str | None = None,
    ) -> Candidate:
        """Return the candidate that the rule in `candidates.py` chooses.

        Args:
            subset: subset that the phase trains for; None: all subsets.
            values: values of the encoding's tunable option, without its default.
            attempt: trains a candidate. Its arguments are the candidate, the seed, and the training
                loss of the best trial halfway; None: the trial must not end as hopeless. Called
                only for candidates and seeds that have no stored trial.
            default: option value of candidates without one of `values`; None: the encoding's
                default.

        Raises:
            FloatingPointError: no candidate is left.
        """

        def run(candidate: Candidate, seed: int, *, first: bool) -> Trial:
            trial = self._find_trial(subset, candidate, seed)
            if trial is None:
                info(f"{self.title(subset)}: {candidate}, seed {seed}")
                best = _best_halfway(trials.values()) if first else None
                trial = attempt(candidate, seed, best)
                self._store_trial(subset, candidate, seed, trial)
            return trial

        seeds = self.tuning.seeds
        trials: dict[Candidate, list[Trial]] = {}
        while True:
            candidate = propose(worst_losses(trials), self.tuning.lr, values, default)
            if candidate is None:
                break
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
            rates = sorted({candidate.lr for candidate in trials})
            of = ", ".join(map(show_rate, rates))
            raise FloatingPointError(f"the loss is not finite with any learning rate of {of}")
        self._store_choice(subset, best, trials, at_edge=beyond is not None)
        return best

    def _decide(
        self, trials: dict[Candidate, list[Trial]], run: Callable[[Candidate, int], Trial]
    ) -> Candidate | None:
        """Train promising candidates with further seeds, and return the choice; None: none is left.

        The choice is the same as if all finalists were trained with all seeds.
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
            smallest = min(losses, key=lambda c: (losses[c], c.lr))  # sets the tolerance
            unfinished = [c for c in (preferred, smallest) if len(trials[c]) < len(seeds)]
            if not unfinished:
                return preferred
            found = trials[unfinished[0]]
            found.append(run(unfinished[0], seeds[len(found)]))

    def tried(self, subset: str | None) -> list[tuple[Candidate, int]]:
        """Return the candidates and seeds of all trials of a phase."""
        found = [t for t in self.read().get("tried", []) if t["phase"] == _subset_key(subset)]
        return [(Candidate(trial["lr"], trial.get("value")), trial["seed"]) for trial in found]

    def _find_trial(self, subset: str | None, candidate: Candidate, seed: int) -> Trial | None:
        """Return the trial of an earlier call, if there is one."""
        wanted = (_subset_key(subset), candidate.lr, candidate.value, seed)
        names = [field.name for field in fields(Trial)]
        for found in self.read().get("tried", []):
            if (found["phase"], found["lr"], found.get("value"), found["seed"]) == wanted:
                return Trial(**{name: found[name] for name in names if name in found})
        return None

    def _store_trial(
        self, subset: str | None, candidate: Candidate, seed: int, trial: Trial
    ) -> None:
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
        entry = {"phase": _subset_key(subset), **asdict(candidate), "seed": seed, **asdict(trial)}
        content["tried"].append(entry)
        write_sealed(self.path, content, owner=self.path.stem)

    def _store_choice(
        self, subset: str | None, best: Candidate, trials: Trials, *, at_edge: bool
    ) -> None:
        planned = self.task.train.steps
        steps = sum(trial.steps or planned for found in trials.values() for trial in found)
        cost = round(steps / planned, 2)
        info(
            f"{self.title(subset)}: {best}, held-out loss {worst_losses(trials)[best]:.4g}"
            f"{', at the edge of the rates tried' if at_edge else ''} ({cost:g} trainings)"
        )
        phase = _subset_key(subset)
        content = self.read()
        content["lr"] = {**content.get("lr", {}), phase: best.lr}
        content["values"] = {**content.get("values", {}), phase: best.value}
        content["at_edge"] = {**content.get("at_edge", {}), phase: at_edge}
        content["trainings"] = {**content.get("trainings", {}), phase: cost}
        write_sealed(self.path, content, owner=self.path.stem)


def _best_halfway(trials: Iterable[Sequence[Trial]]) -> float | None:
    """Return the halfway training loss of the trial with the smallest loss, if there is one."""
    finished = [found[0] for found in trials if None not in (found[0].loss, found[0].halfway)]
    return min(finished, key=lambda trial: trial.finite_loss).halfway if finished else None


def _subset_key(subset: str | None) -> str:
    return subset or "all"
