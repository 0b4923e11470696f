"""One run, an encoding on a task under a seed: skip, train, evaluate, write, resume."""

import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from pe_bench.errors import InputError, SavingError
from pe_bench.registry.plugins import Plugin
from pe_bench.results.items import Items, average_draws, read_items, write_items
from pe_bench.results.journal import Journal
from pe_bench.results.reading import read_measurements, write_rows
from pe_bench.results.record import RunRecord, Status
from pe_bench.results.schema import CSV_COLUMNS, Measurement
from pe_bench.running.failures import Failures, FirstStepFailure, SharedFailure
from pe_bench.running.phases import Phases
from pe_bench.running.resolve import ResolvedTask
from pe_bench.running.training import read_trained
from pe_bench.system import environment
from pe_bench.system.console import info, warn
from pe_bench.system.files import read_json, slug, write_json
from pe_bench.task import Evaluation


@dataclass(frozen=True)
class Outcome:
    """How one run ended.

    Attributes:
        title: encoding, task and seed.
        status: "done" also where subsets are missing for a reason that the user knows.
        complaints: sentences about input that the user can mend.
        folder: of the run; None where it did not get that far.
        cause: first failure that is not bad input, in one line.
    """

    title: str
    status: Status
    complaints: tuple[str, ...] = ()
    folder: Path | None = None
    cause: str | None = None


class Busy(Exception):
    """Another process is working on the run."""


@dataclass(frozen=True)
class Run:
    """One encoding on one task under one seed."""

    resolved: ResolvedTask
    encoding: Plugin
    seed: int
    results: Path
    device: str
    precision: str

    @property
    def title(self) -> str:
        """Encoding, task and seed, for people."""
        return f"{self.encoding.label} · {self.resolved.label} · seed {self.seed}"

    @property
    def phases(self) -> Phases:
        """The training of its encoding."""
        return Phases(self.encoding, self.results, self.device, self.precision)

    @property
    def folder(self) -> Path:
        """Run directory, whose digest has every setting and version that decides a number."""
        identity = self.resolved.digest(self.encoding.label, self.encoding.version)
        place = self.results / "runs" / slug(self.resolved.label) / slug(self.encoding.label)
        return place / f"seed{self.seed}-{identity}"

    def execute(self, *, wait: bool = False) -> Outcome:
        """Do what is not done yet, under a lock: two processes never share a run.

        Args:
            wait: until another process that is working on this run has ended.

        Raises:
            Busy: another process is working on this run.
            InputError: something that the user can mend.
            SavingError: a result could not be written.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(self.folder / "lock", timeout=-1 if wait else 0):
                return self._execute()
        except Timeout:
            raise Busy from None
        except (InputError, SavingError):
            raise
        except Exception as error:
            failures = Failures(self.title)
            failures.add("", error)
            return self._failed(failures)

    def _execute(self) -> Outcome:
        if self._is_done():
            info(f"done already, in {self.folder}")
            return Outcome(self.title, "done", (), self.folder)
        started = time.monotonic()
        environment.reset_peak_memory(self.device)
        failures = Failures(self.title)
        self._measure_all(failures)
        measured = self._measured()
        self._summarize(measured, failures)
        seconds = round(time.monotonic() - started, 3)
        if failures.errors:
            return self._failed(failures, subsets=tuple(measured), seconds=seconds)
        return self._done(tuple(measured), seconds)

    def skip(self, reason: str, *, complain: bool = True) -> Outcome:
        """Record that the task cannot be run with the encoding.

        Args:
            reason: in one sentence.
            complain: whether that counts as bad input.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self._record("skipped", reason=reason)
        sentence = f"{self.title}: skipped, {reason}"
        if complain:
            warn(sentence)
        else:
            info(sentence)
        return Outcome(self.title, "skipped", (sentence,) if complain else (), self.folder)

    def _measure_all(self, failures: Failures) -> None:
        """Train and measure every subset that is not measured yet."""
        for subset in self.resolved.task.subsets:
            rows = self.folder / "subsets" / f"{slug(subset)}.csv"
            if rows.exists():
                info(f"{subset}: done already")
                continue
            try:
                evaluation = self._measure(subset)
                write_items(rows.with_suffix(".parquet"), evaluation.items)
                self._write(rows, evaluation.rows)
            except SavingError:
                raise
            except (SharedFailure, FirstStepFailure) as failure:
                assert failure.__cause__ is not None
                stop = failures.will_recur(failure)
                shared = isinstance(failure, SharedFailure)
                failures.add("" if shared else subset, failure.__cause__)
                if stop:
                    break
            except Exception as error:
                failures.add(subset, error)

    def _summarize(self, by_subset: dict[str, list[Measurement]], failures: Failures) -> None:
        """Write the rows of all subsets and their summary."""
        measured = [row for rows in by_subset.values() for row in rows]
        summary: list[Measurement] = []
        if measured:
            try:
                summary = self.resolved.task.summarize(measured)
            except Exception as error:
                failures.add("summary", error)
        items: list[Items] = []
        for name in by_subset:
            path = self.folder / "subsets" / f"{slug(name)}.parquet"
            items += read_items(path) if path.exists() else []
        write_items(self.folder / "items.parquet", items)
        self._write(self.folder / "rows.csv", [*measured, *summary])

    def _done(self, subsets: tuple[str, ...], seconds: float) -> Outcome:
        shutil.rmtree(self.folder / "work", ignore_errors=True)
        model = self.resolved.make_model(self.encoding, self.seed)
        files = {name: self.folder / "subsets" / f"{slug(name)}.json" for name in subsets}
        costs = {name: read_json(file) for name, file in files.items()}
        notes = [note for cost in costs.values() for note in cost.pop("notes", ())]
        self._record(
            "done",
            subsets=subsets,
            parameters=sum(p.numel() for p in model.parameters()),
            encoding_parameters=sum(p.numel() for p in model.encodings.parameters()),
            seconds=seconds,
            peak_memory_bytes=environment.peak_memory(self.device),
            pretraining=self._pretraining(),
            notes=tuple(dict.fromkeys(notes)),
            costs=costs,
        )
        return Outcome(self.title, "done", (), self.folder)

    def _failed(self, failures: Failures, **more: Any) -> Outcome:
        reason = "\n".join(failures.causes)
        self._record("failed", reason=reason, traceback=failures.traceback, **more)
        return Outcome(self.title, "failed", failures.complaints, self.folder, failures.cause)

    def _is_done(self) -> bool:
        record = read_json(self.folder / "run.json")
        done = set(record.get("subsets", ()))
        return record.get("status") == "done" and done >= set(self.resolved.task.subsets)

    def _measured(self) -> dict[str, list[Measurement]]:
        """Return the rows of every subset that has been measured, now or in an earlier call."""
        folder = self.folder / "subsets"
        paths = {name: folder / f"{slug(name)}.csv" for name in self.resolved.task.subsets}
        return {name: read_measurements(path) for name, path in paths.items() if path.exists()}

    def _measure(self, subset: str) -> Evaluation:
        """Return the numbers of one subset, its model trained before where it is not yet."""
        task = self.resolved.task
        phase = subset if task.trains_each_subset else None
        folder = self.folder / "work" / slug(subset) if phase else None
        model, trained = self.phases.trained(self.resolved, phase, self.seed, folder=folder)
        started = time.monotonic()
        model.eval()
        autocast = torch.autocast(self.device, torch.bfloat16, enabled=self.precision == "bf16")
        evaluations: list[Evaluation] = []
        for sample in range(model.encoding.eval_samples):
            model.use_eval_sample(sample)
            name = f"{slug(subset)}-{sample}" if sample else slug(subset)
            journal = Journal(self.folder / "journal" / f"{name}.jsonl")
            with torch.inference_mode(), autocast:
                evaluations.append(task.evaluate(model, subset, self.seed, journal))
        seconds = round(time.monotonic() - started, 3)
        notes = evaluations[0].notes
        for note in notes:
            info(note)
        write_json(
            self.folder / "subsets" / f"{slug(subset)}.json",
            {"training": asdict(trained), "evaluation_seconds": seconds, "notes": notes},
        )
        averaged, items = average_draws(
            [evaluation.rows for evaluation in evaluations],
            [evaluation.items for evaluation in evaluations],
        )
        return Evaluation(averaged, items=items)

    def _pretraining(self) -> dict[str, Any] | None:
        """Return the cost of the phase that the task starts from."""
        start = self.resolved.start
        if start is None:
            return None
        identity = self.phases.identity(start, None, self.seed)
        trained = read_trained(self.phases.checkpoint(start, None, self.seed), identity)
        return asdict(trained) if trained else None

    def _tuning(self) -> dict[str, Any] | None:
        """Return the chosen learning rates, and those of the phase that the task starts from."""
        found = {}
        for name, task in (("task", self.resolved), ("start", self.resolved.start)):
            choices = self.phases.choices(task) if task else None
            if choices:
                found[name] = choices
        return found or None

    def _write(self, path: Path, measured: Sequence[Measurement]) -> None:
        context = self.resolved.task.context
        identity = {
            "task": self.resolved.label,
            "encoding": self.encoding.label,
            "seed": self.seed,
            "preset": context.preset,
            "protocol": context.protocol,
            "data": self.resolved.task.data_label,
            "run": self.folder.name,
        }
        write_rows(path, [identity | asdict(row) for row in measured], CSV_COLUMNS)

    def _record(self, status: Status, **more: Any) -> None:
        task = self.resolved.task
        record = RunRecord(
            status=status,
            task=self.resolved.label,
            encoding=self.encoding.label,
            encoding_version=self.encoding.version,
            seed=self.seed,
            preset=task.context.preset,
            protocol=task.context.protocol,
            data=task.provenance(),
            settings_digest=self.resolved.digest(),
            settings=self.resolved.settings,
            tuning=self._tuning(),
            headline=task.headline,
            views=task.views,
            metrics=dict(task.metrics),
            axes=dict(task.axes),
            gate=task.gate,
            max_train_axis=task.max_train_axis,
            train_length=self.resolved.model.train_length,
            fine_tune_length=self.resolved.train.length if self.resolved.start else None,
            unavailable=dict(task.unavailable),
            environment=environment.describe(self.device),
            finished=datetime.now(UTC).isoformat(timespec="milliseconds"),
            **more,
        )
        write_json(self.folder / "run.json", record.to_json())
