"""One run of an encoding on a task with a seed: skip, train, evaluate, write, resume."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from filelock import Timeout

from pe_bench.checks.before_run import find_fault
from pe_bench.decoder.model import Decoder
from pe_bench.errors import CRASHES, InputError, SavingError, TimedOut, as_exception
from pe_bench.registry.plugins import Plugin
from pe_bench.results.labels import run_title
from pe_bench.results.layout import RUN_LOCK, run_path
from pe_bench.results.measurement import Measurement
from pe_bench.results.record import RunRecord, RunStatus
from pe_bench.results.row_checks import check_rows
from pe_bench.runs.distributed import Ranks
from pe_bench.runs.evaluation import evaluate
from pe_bench.runs.failures import Failures, FirstStepFailure, SharedFailure
from pe_bench.runs.initial_weights import Adapted
from pe_bench.runs.outcome import Busy, Outcome, ProcessDied
from pe_bench.runs.phases import Phases
from pe_bench.runs.resolve import ResolvedTask, others_start_from
from pe_bench.runs.reuse import find_same, identify_models, with_numbers_of
from pe_bench.runs.run_folder import RunFolder
from pe_bench.runs.run_record import (
    as_text,
    find_curves,
    find_pretraining,
    make_record,
    total_costs,
)
from pe_bench.runs.timing_context import code_of
from pe_bench.runs.trained_models import is_damaged, is_kept, model_folder, save_model
from pe_bench.runs.tunable import with_value
from pe_bench.system import environment
from pe_bench.system.cache_entries import CHECKPOINTS, drop_weights, limit_weights
from pe_bench.system.console import info, warn
from pe_bench.system.locks import hold
from pe_bench.system.time_limit import TimeLimit
from pe_bench.task import Evaluation
from pe_bench.train.loggers import LoggerName


@dataclass(frozen=True)
class Run:
    """One encoding on one task with one seed.

    Attributes:
        resolved: the task.
        encoding: the encoding.
        seed: seed of weights, batches and evaluation.
        results: folder to write to.
        device: "cpu" or "cuda".
        precision: "fp32" or "bf16".
        keep: whether to leave the trained models in the folder of the run.
        ranks: the other processes that train with this one, if any.
        logger: gets the learning curves; None: no logger.
        limit: limit of the time of `execute`; None: no limit. A run that exceeds it has failed, and
            the next call continues it.
    """

    resolved: ResolvedTask
    encoding: Plugin
    seed: int
    results: Path
    device: str
    precision: str
    keep: bool = False
    ranks: Ranks | None = None
    logger: LoggerName | None = None
    limit: TimeLimit | None = None

    @property
    def title(self) -> str:
        """Encoding, task and seed, for people."""
        return run_title(self.encoding.label, self.resolved.label, self.seed)

    @cached_property
    def phases(self) -> Phases:
        """Training phases of the encoding."""
        return Phases(
            self.encoding,
            self.results,
            self.device,
            self.precision,
            self.ranks,
            self.logger,
            self.limit,
        )

    @property
    def folder(self) -> Path:
        """Folder of the run; its digest covers every setting and version that affects a number."""
        code = (code_of(self.encoding),) if self.resolved.task.measures_time else ()
        identity = self.resolved.digest(self.encoding.label, self.encoding.version, *code)
        name = f"seed{self.seed}-{identity}"
        return run_path(self.results, self.resolved.label, self.encoding.label, name)

    @cached_property
    def files(self) -> RunFolder:
        """The files of the run."""
        context = self.resolved.task.context
        labels = {
            "task": self.resolved.label,
            "encoding": self.encoding.label,
            "seed": self.seed,
            "preset": context.preset,
            "protocol": context.protocol,
            "data": self.resolved.task.data_label,
        }
        return RunFolder(self.folder, labels)

    def execute(
        self, *, on_begin: Callable[[], None] | None = None, since: datetime | None = None
    ) -> Outcome:
        """Execute the missing parts, under a lock: only one process works on a run.

        Args:
            on_begin: called before the work begins; not called for a finished run.
            since: if the run failed in another process after this time, it is not tried again.

        Raises:
            Busy: another process is working on this run.
            InputError: an error of the user.
            SavingError: a result could not be written.
        """
        self.files.make()
        try:
            with hold(self.folder / RUN_LOCK, timeout=0):
                run = self._with_measured_subsets()
                outcome = run._complete_finished(on_begin) or run._find_recent_failure(since)
                if outcome is not None:
                    return outcome
                with self.files.executing(), as_exception():
                    return run._execute(on_begin)
        except Timeout:
            raise Busy from None
        except (InputError, SavingError):
            raise
        except CRASHES as error:
            failures = Failures(self.title)
            failures.add("", error)
            return self._record_failure(failures)

    def _with_measured_subsets(self) -> "Run":
        """Return the run with the subsets that an earlier call has measured, so that they stay.

        With a model for each subset, another choice of subsets is another run.
        """
        record = self.files.find_finished()
        if record is None or {*record.subsets} <= {*self.resolved.task.subsets}:
            return self
        subsets = (*self.resolved.task.subsets, *record.subsets)
        return replace(self, resolved=self.resolved.with_subsets(subsets))

    def find_fault(self) -> str | None:
        """Return a sentence on the first fault of the encoding, or None."""
        task, model = self.resolved.task, self.resolved.model
        longest = max(task.train_length, task.max_eval_tokens)
        return find_fault(self.encoding, longest, model.layers)

    def record_death(self, reason: str) -> Outcome:
        """Record that the process of the run has died."""
        failures = Failures(self.title)
        failures.add("", ProcessDied(reason))
        held = hold(self.folder / RUN_LOCK, timeout=5)
        with contextlib.suppress(Timeout), held, self.files.executing():  # removes the mark
            return self._record_failure(failures)
        return Outcome(self.title, "failed", (), self.folder, failures.cause)

    def _complete_finished(self, on_begin: Callable[[], None] | None) -> Outcome | None:
        """Save missing models and remove work files; None: subsets are still to be measured."""
        if not self.files.is_finished(self.resolved.task.subsets):
            return None
        if self.missing_models():
            if on_begin:
                on_begin()
            self._save_missing_models()
        self.files.remove_work()
        self.files.come_last()
        record = self.files.read()
        self._drop_weights(record.models if record else {})
        return Outcome(self.title, "done", (), self.folder)

    def _find_recent_failure(self, since: datetime | None) -> Outcome | None:
        """Return the failure of the run in another process after `since`, if there is one."""
        record = self.files.read() if since else None
        if since and record and record.status == "failed" and record.finished > as_text(since):
            cause = (record.reason or "").partition("\n")[0]
            info(f"{self.title}: failed in another process, {cause}")
            return Outcome(self.title, "failed", (), self.folder, cause)
        return None

    def _execute(self, on_begin: Callable[[], None] | None) -> Outcome:
        """Reuse the numbers of a run with the same models, or measure the missing subsets."""
        if on_begin:
            on_begin()
        if self.limit:
            self.limit.start()
        environment.reset_peak_memory(self.device)
        same = find_same(self.files.siblings(), self.resolved, self.phases, self.seed)
        if same is not None:
            return self._reuse(same)
        failures = Failures(self.title)
        task = self.resolved.task
        fault = self.find_fault()
        if fault:
            failures.add("", InputError(fault))
            return self._record_failure(failures)
        costs = self._measure_all(failures)
        evaluation = self._summarize(tuple(costs), failures)
        if failures.errors:
            each_subset = task.trains_each_subset
            fields = total_costs(costs, each_subset=each_subset)
            return self._record_failure(failures, evaluation, **fields)
        return self._finish(costs, evaluation)

    def _reuse(self, same: RunRecord) -> Outcome:
        """Record the numbers of a run that has the same models under another search."""
        info(f"{self.title}: has the same models as {same.name} and takes over its numbers")
        self._save_missing_models()
        self.files.remove_work()
        record = make_record(
            "done", self.resolved, self.phases, self.seed, self.files.next_order(),
            models=identify_models(self.resolved, self.phases, self.seed),
        )  # fmt: skip
        self.files.copy_numbers_of(with_numbers_of(record, same), same)
        return Outcome(self.title, "done", (), self.folder)

    def skip(self, reason: str, *, complain: bool = True) -> Outcome:
        """Record that the encoding does not support the task, unless the run has finished before.

        Args:
            reason: one sentence.
            complain: whether this counts as a user error.
        """
        if self.files.find_finished():
            return Outcome(self.title, "done", (), self.folder)
        self.files.make()
        self._record("skipped", reason=reason)
        sentence = f"{self.title}: skipped, {reason}"
        if complain:
            warn(sentence)
        else:
            info(sentence)
        return Outcome(self.title, "skipped", (sentence,) if complain else (), self.folder)

    def _measure_all(self, failures: Failures) -> dict[str, dict[str, Any]]:
        """Train and measure the missing subsets; return the cost of each subset."""
        costs: dict[str, dict[str, Any]] = {}
        for subset in self.resolved.task.subsets:
            kept = self.files.recall_cost(subset)
            if kept is not None:
                info(f"{subset}: done already")
                costs[subset] = kept
                continue
            try:
                costs[subset] = self._measure(subset)
            except SavingError:
                raise
            except TimedOut as error:
                failures.add("", error)
                break
            except (SharedFailure, FirstStepFailure) as failure:
                stop = failures.will_recur(failure)
                failures.add("" if isinstance(failure, SharedFailure) else subset, failure)
                if stop:
                    break
            except CRASHES as error:
                failures.add(subset, error)
        return costs

    def _summarize(self, subsets: Sequence[str], failures: Failures) -> Evaluation:
        """Return rows, items and summary of the measured subsets."""
        measured = self.files.read_subsets(subsets)
        summary: list[Measurement] = []
        if measured.rows:
            try:
                summary = self.resolved.task.summarize(measured.rows)
                check_rows([*measured.rows, *summary], self.resolved.task.metrics)
            except CRASHES as error:
                summary = []
                failures.add("summary", error)
        return Evaluation([*measured.rows, *summary], items=measured.items)

    def _finish(self, costs: Mapping[str, Mapping[str, Any]], evaluation: Evaluation) -> Outcome:
        """Record the numbers of all subsets, and remove files that served only to measure them."""
        self._save_missing_models()
        self.files.remove_work()
        model = self.resolved.make_empty(self.encoding)
        parameters = sum(p.numel() for p in model.parameters())
        encoding_parameters = sum(p.numel() for p in model.encodings.parameters())
        models = identify_models(self.resolved, self.phases, self.seed)
        self._record(
            "done",
            evaluation,
            parameters=parameters,
            encoding_parameters=encoding_parameters,
            pretraining=find_pretraining(self.resolved, self.phases, self.seed),
            models=models,
            **total_costs(costs, each_subset=self.resolved.task.trains_each_subset),
        )
        self._drop_weights(models)
        return Outcome(self.title, "done", (), self.folder)

    def missing_models(self) -> list[str | None]:
        """Return the subsets whose models are still to be kept; None stands for all subsets."""
        if not self.keep or not (self.resolved.train.steps or self.resolved.start):
            return []
        missing = []
        for subset in self.resolved.model_subsets:
            folder = model_folder(self.folder, subset)
            if not is_kept(folder) or is_damaged(folder):
                missing.append(subset)
        return missing

    def _save_missing_models(self) -> None:
        """Save the trained models in the run's folder, if the user asks for them."""
        for subset in self.missing_models():
            folder = self.files.work(subset) if subset else None
            model, _ = self.phases.train(self.resolved, subset, self.seed, folder=folder)
            self._save_model(model, subset)

    def _save_model(self, model: Decoder, subset: str | None) -> None:
        folder = model_folder(self.folder, subset)
        choice = self.phases.choose(self.resolved, subset)
        encoding = with_value(self.encoding, choice.value)
        if isinstance(encoding, Adapted):
            encoding = encoding.encoding
        save_model(model, folder, encoding, self.resolved.task.vocabulary)

    def _drop_weights(self, models: Mapping[str, str]) -> None:
        """Remove the weights of the finished run from the cache, if nothing needs them.

        Other tasks may start from them, or further subsets may be measured with them.

        Args:
            models: digests of the models, by subset.
        """
        task = self.resolved.task
        cache = task.context.cache
        all_measured = task.trains_each_subset or set(task.all_subsets) <= set(task.subsets)
        if all_measured and not others_start_from(self.resolved):
            for identity in models.values():
                drop_weights(cache / CHECKPOINTS / identity)
        limit_weights(cache)

    def _record_failure(
        self, failures: Failures, evaluation: Evaluation | None = None, **fields: Any
    ) -> Outcome:
        """Record a failure, with the results so far; `fields` are further ones of the record.

        A finished run keeps its record, for example if only its models could not be saved.
        """
        if not self.files.find_finished():
            reason = "\n".join(failures.causes)
            traceback = failures.traceback
            self._record("failed", evaluation, reason=reason, traceback=traceback, **fields)
        return Outcome(self.title, "failed", failures.complaints, self.folder, failures.cause)

    def _measure(self, subset: str) -> dict[str, Any]:
        """Train the model of a subset if needed, measure the subset, and return the cost."""
        task = self.resolved.task
        phase = subset if task.trains_each_subset else None
        folder = self.files.work(subset) if phase else None
        model, trained = self.phases.train(self.resolved, phase, self.seed, folder=folder)
        if phase in self.missing_models():  # kept now: reading a large model again takes long
            self._save_model(model, phase)
        evaluation, seconds = evaluate(
            model, task, subset, self.seed, self.files, self.precision, self.limit
        )
        check_rows(evaluation.rows, task.metrics)
        cost = {
            "training": trained.cost(),
            "evaluation_seconds": round(seconds, 3),
            "peak_memory_bytes": environment.peak_memory(self.device),
            "notes": evaluation.notes,
        }
        for note in evaluation.notes:
            info(note)
        curves = find_curves(self.resolved, self.phases, phase, self.seed, trained)
        self.files.write_subset(subset, evaluation.rows, evaluation.items, cost, curves)
        return cost

    def _record(
        self, status: RunStatus, evaluation: Evaluation | None = None, **fields: Any
    ) -> None:
        """Write rows and items, and then the record of the run, with further fields."""
        record = make_record(
            status, self.resolved, self.phases, self.seed, self.files.next_order(), **fields
        )
        self.files.write(record, evaluation)


def pending_search_key(run: Run) -> tuple[str, str] | None:
    """Return the key of a search that is left to do, which all seeds share; None: none is left."""
    resolved = run.resolved
    if all(run.phases.find_choice(resolved, subset) for subset in resolved.model_subsets):
        return None
    return run.encoding.label, resolved.digest()
