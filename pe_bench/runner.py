"""One cell of the grid after the other: plan, skip, train, evaluate, write, resume."""

import contextlib
import shutil
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from filelock import FileLock, Timeout

from pe_bench import environment, plugins
from pe_bench.errors import InputError
from pe_bench.model import Decoder
from pe_bench.plugins import Plugin
from pe_bench.results import (
    COLUMNS,
    Journal,
    Measurement,
    read_measurements,
    slug,
    write_json,
    write_rows,
)
from pe_bench.stage import Request, Stage, resolve
from pe_bench.training import Trained, train

Status = Literal["done", "skipped", "failed"]


@dataclass(frozen=True)
class Outcome:
    """How one cell ended.

    Attributes:
        complaints: sentences about input that the user can mend.
        folder: of the run; None where it did not get that far.
    """

    title: str
    status: Status
    complaints: tuple[str, ...] = ()
    folder: Path | None = None


def run_grid(
    request: Request,
    encodings: list[str],
    tasks: list[str],
    seeds: list[int],
    *,
    results: Path,
    device: str,
) -> list[Outcome]:
    """Runs every combination; what fails is recorded and the rest goes on.

    Args:
        request: settings common to all.
        encodings, tasks: specs.
        seeds: of weights, batches and draws.
        results: folder to write to.
        device: "cpu" or "cuda".

    Returns:
        One outcome per cell that could be named, and one per spec that could not be loaded.
    """
    outcomes: list[Outcome] = []
    loaded: list[Plugin] = []
    for spec in encodings:
        with _complaining(spec, outcomes):
            loaded.append(plugins.load("encoding", spec))
    for spec in tasks:
        with _complaining(spec, outcomes):
            stage = resolve(request, spec)
            for seed in seeds:
                for encoding in loaded:
                    title = f"{encoding.label} · {stage.label} · seed {seed}"
                    with _complaining(title, outcomes):
                        cell = _Cell(stage, encoding, seed, results, device, request.precision)
                        outcomes.append(cell.run(title))
    return outcomes


@contextlib.contextmanager
def _complaining(title: str, outcomes: list[Outcome]) -> Iterator[None]:
    try:
        yield
    except InputError as error:
        say(f"{title}: {error}")
        outcomes.append(Outcome(title, "failed", (f"{title}: {error}",)))


def say(line: str) -> None:
    """A line for the person who is watching."""
    print(line, flush=True)


@dataclass(frozen=True)
class _Cell:
    """One encoding on one task under one seed."""

    stage: Stage
    encoding: Plugin
    seed: int
    results: Path
    device: str
    precision: str

    @property
    def folder(self) -> Path:
        identity = self.stage.digest(self.encoding.label, self.encoding.source_digest())
        place = self.results / "runs" / slug(self.stage.label) / slug(self.encoding.label)
        return place / f"seed{self.seed}-{identity}"

    def run(self, title: str) -> Outcome:
        """Runs what is not done yet, under a lock: two processes never share a run."""
        task = self.stage.task
        reason = task.skip(self.stage.make_encoding(self.encoding))
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(self.folder / "lock", timeout=0):
                missing = tuple(f"{title}: {part}: {why}" for part, why in task.missing.items())
                if reason is not None:
                    say(f"{title}: skipped, {reason}")
                    self._record("skipped", reason=reason)
                    return Outcome(title, "skipped", (), self.folder)
                if self._is_done():
                    say(f"{title}: done already, in {self.folder}")
                    return Outcome(title, "done", missing, self.folder)
                say(f"{title} ({task.setup.preset}, {task.setup.protocol}, data={task.data_label})")
                for line in missing:
                    say(line)
                return self._run(title, missing)
        except Timeout:
            raise InputError(
                f"another process is working on {self.folder}: wait for it or stop it"
            ) from None

    def _is_done(self) -> bool:
        record = environment.read_json(self.folder / "run.json")
        done = set(record.get("subsets", ()))
        return record.get("status") == "done" and done >= set(self.stage.task.subsets)

    def _run(self, title: str, missing: tuple[str, ...]) -> Outcome:
        started = time.monotonic()
        environment.reset_peak_memory(self.device)
        complaints, errors = list(missing), []
        for subset in self.stage.task.subsets:
            rows = self.folder / "subsets" / f"{slug(subset)}.csv"
            if rows.exists():
                continue
            try:
                measured = self._measure(subset)
                self._write(rows, measured)
                shutil.rmtree(self.folder / "work" / slug(subset), ignore_errors=True)
            except InputError as error:
                complaints.append(f"{title}: {subset}: {error}")
                say(complaints[-1])
            except OSError:
                raise  # a result that cannot be saved must stop everything, loudly
            except Exception:
                errors.append(f"{subset}: {traceback.format_exc()}")
                say(f"{title}: {subset} failed: {errors[-1].strip().splitlines()[-1]}")
        parts = self._parts()
        measured = [row for rows in parts.values() for row in rows]
        self._write(self.folder / "rows.csv", [*measured, *self.stage.task.summarize(measured)])
        unfinished = set(self.stage.task.subsets) - set(parts)
        status: Status = "failed" if errors or unfinished else "done"
        self._record(
            status,
            subsets=list(parts),
            reason="\n".join([*complaints, *errors]) or None,
            seconds=round(time.monotonic() - started, 3),
            peak_memory_bytes=environment.peak_memory(self.device),
            costs={
                name: environment.read_json(self.folder / "subsets" / f"{slug(name)}.json")
                for name in parts
            },
        )
        return Outcome(title, status, tuple(complaints), self.folder)

    def _parts(self) -> dict[str, list[Measurement]]:
        """Rows of every part that has been measured, now or in an earlier call."""
        names = [*self.stage.task.subsets]
        paths = {name: self.folder / "subsets" / f"{slug(name)}.csv" for name in names}
        return {name: read_measurements(path) for name, path in paths.items() if path.exists()}

    def _measure(self, subset: str) -> list[Measurement]:
        task = self.stage.task
        part = subset if task.trains_each_subset else None
        model, trained = self._trained(self.stage, part)
        started = time.monotonic()
        journal = Journal(self.folder / "journal" / f"{slug(subset)}.jsonl")
        model.eval()
        autocast = torch.autocast(self.device, torch.bfloat16, enabled=self.precision == "bf16")
        with torch.inference_mode(), autocast:
            measured = task.evaluate(model, subset, self.seed, journal)
        seconds = round(time.monotonic() - started, 3)
        write_json(
            self.folder / "subsets" / f"{slug(subset)}.json",
            {"training": asdict(trained), "evaluation_seconds": seconds},
        )
        return measured

    def _trained(self, stage: Stage, subset: str | None) -> tuple[Decoder, Trained]:
        """A model after a phase: trained now, or read from where it was trained before."""
        model = stage.make_model(self.encoding, self.seed)
        if subset is None:
            # Shared by everything that starts here, in this run and in later ones.
            key = stage.digest(self.encoding.label, self.encoding.source_digest(), self.seed)
            folder = stage.task.setup.cache / "checkpoints" / key
        else:
            folder = self.folder / "work" / slug(subset)
        if stage.start is not None and not (folder / "final.json").exists():
            start, _ = self._trained(stage.start, None)
            model.load_state_dict(start.state_dict())
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / "lock"):
            trained = train(
                model,
                lambda step: stage.task.batch(subset, self.seed, step),
                stage.train,
                folder=folder,
                title=f"{self.encoding.label} · {subset or stage.label} · train",
                seed=self.seed,
                device=self.device,
                precision=self.precision,
            )
        return model.to(self.device), trained

    def _write(self, path: Path, measured: list[Measurement]) -> None:
        setup = self.stage.task.setup
        identity = {
            "task": self.stage.label,
            "encoding": self.encoding.label,
            "seed": self.seed,
            "preset": setup.preset,
            "protocol": setup.protocol,
            "data": self.stage.task.data_label,
            "run": self.folder.name,
        }
        write_rows(path, [identity | asdict(row) for row in measured], COLUMNS)

    def _record(self, status: Status, **more: Any) -> None:
        stage, task = self.stage, self.stage.task
        model = stage.make_model(self.encoding, self.seed)
        write_json(
            self.folder / "run.json",
            {
                "status": status,
                "task": stage.label,
                "encoding": self.encoding.label,
                "encoding_source": self.encoding.source_digest(),
                "seed": self.seed,
                "preset": task.setup.preset,
                "protocol": task.setup.protocol,
                "data": task.provenance(),
                "settings_digest": stage.digest(),
                "settings": stage.settings,
                "headline": asdict(task.headline),
                "shown": dict(task.shown),
                "axes": dict(task.axes),
                "train_length": stage.model.train_length,
                "missing": dict(task.missing),
                "parameters": sum(p.numel() for p in model.parameters()),
                "encoding_parameters": sum(p.numel() for p in model.encodings.parameters()),
                "environment": environment.describe(self.device),
                **more,
            },
        )
