"""The search for the learning rate of a phase: what was tried is kept, the best is chosen."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

from pe_bench.config import show_rate
from pe_bench.registry.plugins import Plugin
from pe_bench.running.resolve import ResolvedTask
from pe_bench.running.tuning import Tuning
from pe_bench.system.console import info
from pe_bench.system.sealed import read_sealed, recall, write_sealed


@dataclass(frozen=True)
class Trial:
    """What a training under one learning rate has led to.

    Attributes:
        loss: on held-out batches, nats; None: it diverged.
        training_loss: at the end of the training, nats.
        seconds: of the training.
    """

    loss: float | None
    training_loss: float | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class RateSearch:
    """Tries the learning rates of an encoding for the phases of a task.

    Attributes:
        task: has the rates and seeds in `task.tuning`.
        encoding: the encoding.
        path: file that keeps losses and choices, so that a later call goes on from there.
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
        return recall(lambda: read_sealed(self.path, of=self.path.stem, old=True)) or {}

    def chosen(self, subset: str | None) -> float | None:
        """Return the rate that was chosen for a phase, None before it is."""
        rate = self.read().get("lr", {}).get(_phase(subset))
        return None if rate is None else float(rate)

    def trials(self) -> Iterator[tuple[float, int]]:
        """Return all pairs of a rate and a seed."""
        return product(self.tuning.lr, self.tuning.seeds)

    def choose(self, subset: str | None, try_rate: Callable[[float, int], Trial]) -> float:
        """Return the rate with the smallest mean held-out loss, over the tuning seeds.

        A rate under which a model diverges is out.

        Args:
            subset: of the phase; None: it serves all of them.
            try_rate: called with a rate and a seed where these were not tried before.

        Raises:
            FloatingPointError: no rate is left.
        """
        losses: dict[float, list[float | None]] = {lr: [] for lr in self.tuning.lr}
        for lr, seed in self.trials():
            trial = self._kept(subset, lr, seed)
            if trial is None:
                info(f"{self.title(subset)}: lr {show_rate(lr)}, seed {seed}")
                trial = try_rate(lr, seed)
                self._keep(subset, lr, seed, trial)
            losses[lr].append(trial.loss)
        of = ", ".join(map(show_rate, self.tuning.lr))
        means = {}
        for lr, of_seeds in losses.items():
            finite = [loss for loss in of_seeds if loss is not None]
            if len(finite) == len(of_seeds):
                means[lr] = sum(finite) / len(finite)
        if not means:
            raise FloatingPointError(f"the loss is not finite under any learning rate of {of}")
        best = min(means, key=lambda lr: (means[lr], lr))
        chosen = f"lr {show_rate(best)} of {of}, held-out loss {means[best]:.4g}"
        info(f"{self.title(subset)}: {chosen}")
        content = self.read()
        content["lr"] = {**content.get("lr", {}), _phase(subset): best}
        write_sealed(self.path, content, of=self.path.stem)
        return best

    def _kept(self, subset: str | None, lr: float, seed: int) -> Trial | None:
        """Return what an earlier call has found, if one did."""
        for found in self.read().get("tried", []):
            if (found["phase"], found["lr"], found["seed"]) == (_phase(subset), lr, seed):
                return Trial(found["loss"])
        return None

    def _keep(self, subset: str | None, lr: float, seed: int, trial: Trial) -> None:
        content = self.read() or {
            "task": self.task.label,
            "encoding": self.encoding.label,
            "encoding_version": self.encoding.version,
            "settings_digest": self.task.digest(),
            "rates": self.tuning.lr,
            "seeds": self.tuning.seeds,
            "held_out_batches": self.tuning.batches,
            "tried": [],
        }
        entry = {"phase": _phase(subset), "lr": lr, "seed": seed, **asdict(trial)}
        content["tried"].append(entry)
        write_sealed(self.path, content, of=self.path.stem)


def _phase(subset: str | None) -> str:
    return subset or "all"
