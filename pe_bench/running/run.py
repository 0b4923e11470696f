"""One run, an encoding on a task under a seed: skip, train, evaluate, write, resume."""

import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from pe_bench.errors import CRASHES, InputError, SavingError
from pe_bench.registry.plugins import Plugin
from pe_bench.results.items import Items, average_draws, read_items, write_items
from pe_bench.results.journal import Journal
from pe_bench.results.reading import place_of, read_measurements, read_record, write_rows
from pe_bench.results.record import RunRecord, Status
from pe_bench.results.schema import CSV_COLUMNS, Measurement
from pe_bench.running.conditions import code_of
from pe_bench.running.failures import Failures, FirstStepFailure, SharedFailure
from pe_bench.running.phases import Phases
from pe_bench.running.resolve import ResolvedTask
from pe_bench.running.training import read_trained
from pe_bench.system import environment
from pe_bench.system.console import info, warn
from pe_bench.system.files import saving, slug
from pe_bench.system.sealed import DamagedError, read_sealed, recall, set_aside, write_sealed
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
        code = (code_of(self.encoding),) if self.resolved.task.measures_time else ()
        identity = self.resolved.digest(self.encoding.label, self.encoding.version, *code)
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
        self._make_folder()
        try:
            with FileLock(self.folder / "lock", timeout=-1 if wait else 0):
                return self._execute()
        except Timeout:
            raise Busy from None
        except (InputError, SavingError):
            raise
        except CRASHES as error:
            failures = Failures(self.title)
            failures.add("", error)
            return self._failed(failures)

    def _execute(self) -> Outcome:
        if self._is_done():
            self._come_last()
            info(f"done already, in {self.folder}")
            return Outcome(self.title, "done", (), self.folder)
        environment.reset_peak_memory(self.device)
        failures = Failures(self.title)
        costs = self._measure_all(failures)
        found = self._summarize(tuple(costs), failures)
        if failures.errors:
            return self._failed(failures, found, **self._describe(costs))
        return self._done(costs, found)

    def skip(self, reason: str, *, complain: bool = True) -> Outcome:
        """Record that the task cannot be run with the encoding.

        Args:
            reason: in one sentence.
            complain: whether that counts as bad input.
        """
        self._make_folder()
        self._record("skipped", reason=reason)
        sentence = f"{self.title}: skipped, {reason}"
        if complain:
            warn(sentence)
        else:
            info(sentence)
        return Outcome(self.title, "skipped", (sentence,) if complain else (), self.folder)

    def _make_folder(self) -> None:
        if self.folder.exists() and not self.folder.is_dir():
            set_aside(DamagedError(self.folder, "is not the folder of a run"))
        with saving(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)

    def _measure_all(self, failures: Failures) -> dict[str, dict[str, Any]]:
        """Train and measure every subset that is not measured yet; return the cost of each."""
        costs: dict[str, dict[str, Any]] = {}
        for subset in self.resolved.task.subsets:
            kept = self._recall(subset)
            if kept is not None:
                info(f"{subset}: done already")
                costs[subset] = kept
                continue
            try:
                costs[subset] = self._measure(subset)
            except SavingError:
                raise
            except (SharedFailure, FirstStepFailure) as failure:
                assert failure.__cause__ is not None
                stop = failures.will_recur(failure)
                shared = isinstance(failure, SharedFailure)
                failures.add("" if shared else subset, failure.__cause__)
                if stop:
                    break
            except CRASHES as error:
                failures.add(subset, error)
        return costs

    def _summarize(self, subsets: Sequence[str], failures: Failures) -> Evaluation:
        """Return the rows of the subsets that are measured with their summary, and the items."""
        measured: list[Measurement] = []
        items: list[Items] = []
        for subset in subsets:
            measured += read_measurements(self._file(subset, ".csv"))
            items += read_items(self._file(subset, ".parquet"))
        summary: list[Measurement] = []
        if measured:
            try:
                summary = self.resolved.task.summarize(measured)
            except CRASHES as error:
                failures.add("summary", error)
        return Evaluation([*measured, *summary], items=items)

    def _done(self, costs: Mapping[str, Mapping[str, Any]], found: Evaluation) -> Outcome:
        shutil.rmtree(self.folder / "work", ignore_errors=True)
        model = self.resolved.make_model(self.encoding, self.seed)
        self._record(
            "done",
            found,
            parameters=sum(p.numel() for p in model.parameters()),
            encoding_parameters=sum(p.numel() for p in model.encodings.parameters()),
            pretraining=self._pretraining(),
            **self._describe(costs),
        )
        return Outcome(self.title, "done", (), self.folder)

    def _describe(self, costs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """Return what the subsets that are measured have cost, in all calls together."""
        trainings = [cost["training"] for cost in costs.values()]
        if not self.resolved.task.trains_each_subset:
            trainings = trainings[:1]  # one for all
        seconds = [training["seconds"] for training in trainings]
        seconds += [cost["evaluation_seconds"] for cost in costs.values()]
        peaks = [part["peak_memory_bytes"] for part in (*trainings, *costs.values())]
        notes = [note for cost in costs.values() for note in cost["notes"]]
        return {
            "subsets": tuple(costs),
            "seconds": round(sum(seconds), 3),
            "peak_memory_bytes": max(peaks, default=None),
            "notes": tuple(dict.fromkeys(notes)),
            "costs": {name: _without_notes(cost) for name, cost in costs.items()},
        }

    def _failed(self, failures: Failures, found: Evaluation | None = None, **more: Any) -> Outcome:
        reason = "\n".join(failures.causes)
        self._record("failed", found, reason=reason, traceback=failures.traceback, **more)
        return Outcome(self.title, "failed", failures.complaints, self.folder, failures.cause)

    def _is_done(self) -> bool:
        path = self.folder / "run.json"
        if recall(lambda: read_sealed(path, of=place_of(self.folder), old=True)) is None:
            return False
        record = read_record(self.folder)
        return record.status == "done" and {*record.subsets} >= {*self.resolved.task.subsets}

    def _come_last(self) -> None:
        """Make the finished run the one that reports show, where its code was edited meanwhile."""
        own = read_record(self.folder)
        others = [read_record(path.parent) for path in self.folder.parent.glob("*/run.json")]
        for other in others:
            edited = other.encoding_version != own.encoding_version
            if edited and other.settings_digest == own.settings_digest and other.age > own.age:
                self._write_record(replace(own, order=1 + max(one.order for one in others)))
                return

    def _file(self, subset: str, suffix: str) -> Path:
        return self.folder / "subsets" / f"{slug(subset)}{suffix}"

    def _recall(self, subset: str) -> dict[str, Any] | None:
        """Return the cost of a subset that is measured, its rows and items whole."""
        path = self._file(subset, ".json")
        return recall(lambda: read_sealed(path, of=f"{place_of(self.folder)}/{subset}"))

    def _measure(self, subset: str) -> dict[str, Any]:
        """Measure a subset, its model trained before where it is not yet; return the cost."""
        task = self.resolved.task
        phase = subset if task.trains_each_subset else None
        folder = self.folder / "work" / slug(subset) if phase else None
        model, trained = self.phases.trained(self.resolved, phase, self.seed, folder=folder)
        started = time.monotonic()
        earlier = 0.0
        model.eval()
        autocast = torch.autocast(self.device, torch.bfloat16, enabled=self.precision == "bf16")
        evaluations: list[Evaluation] = []
        samples = 1 if task.measures_time else model.encoding.eval_samples
        for sample in range(samples):
            model.use_eval_sample(sample)
            name = f"{slug(subset)}-{sample}" if sample else slug(subset)
            path = self.folder / "journal" / f"{name}.jsonl"
            journal = Journal(path, of=f"{place_of(self.folder)}/{name}")
            earlier += journal.seconds
            with torch.inference_mode(), autocast:
                evaluations.append(task.evaluate(model, subset, self.seed, journal))
        cost = {
            "training": asdict(trained),
            "evaluation_seconds": round(earlier + time.monotonic() - started, 3),
            "peak_memory_bytes": environment.peak_memory(self.device),
            "notes": evaluations[0].notes,
        }
        for note in evaluations[0].notes:
            info(note)
        averaged, items = average_draws(
            [evaluation.rows for evaluation in evaluations],
            [evaluation.items for evaluation in evaluations],
        )
        files = [self._file(subset, ".csv"), self._file(subset, ".parquet")]
        self._write(files[0], averaged)
        write_items(files[1], items)
        of = f"{place_of(self.folder)}/{subset}"
        write_sealed(self._file(subset, ".json"), cost, of=of, files=files)
        return cost

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

    def _record(self, status: Status, found: Evaluation | None = None, **more: Any) -> None:
        """Write the rows and items that were found, and right after them how they came about."""
        task = self.resolved.task
        others = [read_record(path.parent) for path in self.folder.parent.glob("*/run.json")]
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
            measures_time=task.measures_time,
            gate=task.gate,
            max_train_axis=task.max_train_axis,
            train_length=self.resolved.model.train_length,
            fine_tune_length=self.resolved.train.length if self.resolved.start else None,
            unavailable=dict(task.unavailable),
            environment=environment.describe(self.device),
            order=1 + max((other.order for other in others), default=0),
            finished=datetime.now(UTC).isoformat(timespec="milliseconds"),
            **more,
        )
        if found:
            write_items(self.folder / "items.parquet", found.items)
            self._write(self.folder / "rows.csv", found.rows)
        self._write_record(record)

    def _write_record(self, record: RunRecord) -> None:
        files = [self.folder / name for name in ("rows.csv", "items.parquet")]
        write_sealed(
            self.folder / "run.json",
            record.to_json(),
            of=place_of(self.folder),
            files=[file for file in files if file.exists()],
        )


def _without_notes(cost: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in cost.items() if key != "notes"}
