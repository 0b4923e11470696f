"""Training phases of an encoding, with learning rates from the search if there is one."""

import contextlib
import math
import shutil
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from pe_bench.decoder.model import Decoder
from pe_bench.errors import CRASHES, ChangedError
from pe_bench.registry.plugins import Plugin
from pe_bench.results.identity import model_identity, tuning_path, with_chosen_rate
from pe_bench.results.labels import run_title
from pe_bench.runs.adaptation import copy_shared_weights
from pe_bench.runs.batch_stream import BatchStream
from pe_bench.runs.candidates import Candidate, Trial
from pe_bench.runs.distributed import PhaseMessage, Ranks
from pe_bench.runs.early_stopping import EarlyStopping
from pe_bench.runs.failures import SharedFailure, classified
from pe_bench.runs.held_out_loss import held_out_loss
from pe_bench.runs.initial_weights import Adapted
from pe_bench.runs.rate_search import Search
from pe_bench.runs.resolve import ResolvedTask
from pe_bench.runs.tunable import values_to_try, with_value
from pe_bench.system.cache_entries import CHECKPOINTS, OF, START
from pe_bench.system.files import saving, slug
from pe_bench.system.locks import locked
from pe_bench.system.time_limit import TimeLimit
from pe_bench.train.adaptation_methods import trains_all
from pe_bench.train.checkpoint_store import CheckpointStore
from pe_bench.train.loggers import FOLDER, LoggerName, open_logger
from pe_bench.train.process_group import SINGLE_PROCESS, ProcessGroup
from pe_bench.train.training_result import TrainingResult
from pe_bench.train.training_setup import Training


@dataclass(frozen=True)
class Start:
    """What a phase starts from: the last model of an earlier phase.

    Attributes:
        phases: training phases of the encoding of that model.
        task: task of the earlier phase.
        subset: subset that the earlier phase trains for; None: all subsets.
    """

    phases: "Phases"
    task: ResolvedTask
    subset: str | None

    def train(self, seed: int) -> Decoder:
        """Return the model, trained or loaded from its checkpoint; see `Phases.train`."""
        model, _ = self.phases.train(self.task, self.subset, seed)
        return model

    def choose(self) -> Candidate:
        """Return learning rate and option value of the earlier phase; see `Phases.choose`."""
        return self.phases.choose(self.task, self.subset)

    def find_choice(self) -> Candidate | None:
        """Return the same as `choose`; None: its search has not finished."""
        return self.phases.find_choice(self.task, self.subset)

    def checkpoint(self, seed: int, choice: Candidate) -> Path:
        """Return the folder in which runs find the model."""
        return self.phases.checkpoint(self.task, self.subset, seed, choice)


@dataclass(frozen=True)
class Phases:
    """Training of an encoding on a task or its subsets, and of the model that it starts from.

    Attributes:
        encoding: the encoding.
        results: folder to write to; its folder `tuning/` stores chosen learning rates.
        device: "cpu" or "cuda".
        precision: "fp32" or "bf16".
        ranks: the other processes that train with this one, if any.
        logger: gets the learning curves; None: no logger.
        limit: time limit of the run; None: no limit.
    """

    encoding: Plugin
    results: Path
    device: str
    precision: str
    ranks: Ranks | None = None
    logger: LoggerName | None = None
    limit: TimeLimit | None = None

    def train(
        self,
        task: ResolvedTask,
        subset: str | None,
        seed: int,
        *,
        folder: Path | None = None,
        choice: Candidate | None = None,
        model: Decoder | None = None,
        stopping: EarlyStopping | None = None,
    ) -> tuple[Decoder, TrainingResult]:
        """Train the model of a phase and return it, or load it from its checkpoint.

        Args:
            task: the phase's task.
            subset: the subset that the phase trains for; None: all subsets.
            seed: seed of weights and batches.
            folder: folder for the checkpoints; None: the one that `checkpoint` returns.
            choice: learning rate and option value; None: the choice of the search.
            model: the initial model of the phase; None: a new one.
            stopping: ends a trial early.

        Raises:
            SharedFailure: the model cannot be built, or a phase for all subsets failed.
            FirstStepFailure: the phase of one subset failed before its first step.
            TimedOut: the time limit of the run is over.
        """
        from pe_bench.train.training import ensure_trained  # late: Lightning takes seconds

        choice = choice or self.choose(task, subset)
        batches = BatchStream(task, subset, seed)
        if model is None:
            model = self._make_model(task, seed, choice)
        identity = self.identity(task, subset, seed, choice)
        if folder is None:
            folder = self.checkpoint(task, subset, seed, choice)
            self._label_checkpoint(folder, task, seed)
        phase = PhaseMessage(identity, subset, seed, choice.lr, choice.value, folder)

        def distributed(resumes: bool) -> AbstractContextManager[ProcessGroup]:
            if self.ranks is None:
                return nullcontext(SINGLE_PROCESS)
            return self.ranks.start(replace(phase, resumes=resumes))

        title = f"{self.encoding.label} · {subset or task.label} · train"
        config = replace(task.train, lr=choice.lr)
        training = Training(model, batches, config, seed, self.device, self.precision, title)
        parent = f"{slug(task.label)}/{slug(self.encoding.label)}"
        log = f"{parent}/seed{seed}-lr{choice.lr:.3g}-{identity}"
        with saving(folder):
            folder.mkdir(parents=True, exist_ok=True)
        with locked(folder / "lock", title), classified(subset, batches):
            self._mark_start(task, subset, seed)
            result = ensure_trained(
                training,
                self._store(folder, identity, task),
                initial_weights=self._initial_weights(task, subset, seed, model),
                distributed=distributed,
                logged=partial(open_logger, self.logger, self.results / FOLDER, log),
                stop=stopping if self.ranks is None else None,
                limit=self.limit,
            )
        return model.to(self.device), result

    def _make_model(self, task: ResolvedTask, seed: int, choice: Candidate) -> Decoder:
        """Return the initial model of a phase.

        Raises:
            SharedFailure: the model cannot be built.
        """
        try:
            return task.make_model(with_value(self.encoding, choice.value), seed)
        except CRASHES as error:
            raise SharedFailure from error

    def follow(self, task: ResolvedTask, phase: PhaseMessage, group: ProcessGroup) -> None:
        """Train a phase together with the first rank.

        Args:
            task: task of the run.
            phase: phase of the task, or of the task that it starts from.
            group: the process group; this process is not its first rank.

        Raises:
            InputError: the run has no such phase in this process.
        """
        from pe_bench.train.training import join_training

        subset, seed = phase.subset, phase.seed
        choice = Candidate(phase.lr, phase.value)
        phases, task = self._find_phase(task, phase)
        model = task.make_model(with_value(phases.encoding, choice.value), seed)
        batches = BatchStream(task, subset, seed)
        config = replace(task.train, lr=choice.lr)
        store = phases._store(phase.folder, phase.identity, task)
        training = Training(model, batches, config, seed, self.device, self.precision)
        join_training(training, store, group=group, resumes=phase.resumes)

    def _find_phase(self, task: ResolvedTask, phase: PhaseMessage) -> "tuple[Phases, ResolvedTask]":
        """Return the `Phases` and the task that a phase belongs to.

        Raises:
            InputError: it belongs to neither the task nor a task that this one starts from.
        """
        found: ResolvedTask | None = task
        while found is not None:
            for phases in (self, self.start_phases):
                choice = Candidate(phase.lr, phase.value)
                identity = phases.identity(found, phase.subset, phase.seed, choice)
                if identity == phase.identity:
                    return phases, found
            found = found.start
        raise ChangedError

    @property
    def start_phases(self) -> "Phases":
        """Phases of the model to start from, with the origin instead of an adapted encoding."""
        if isinstance(self.encoding, Adapted):
            return replace(self, encoding=self.encoding.origin)
        return self

    def find_start(self, task: ResolvedTask, subset: str | None) -> Start | None:
        """Return what a phase starts from; None: it has no earlier phase, or starts from a file.

        An adapted encoding starts from the origin's model for the same subset. Any other encoding
        starts from a model for all subsets.
        """
        if task.start is None or self.encoding.starts_from_checkpoint:
            return None
        if isinstance(self.encoding, Adapted):
            return Start(self.start_phases, task.start, subset)
        return Start(self, task.start, None)

    def _store(self, folder: Path, identity: str, task: ResolvedTask) -> CheckpointStore:
        """Return the checkpoint files of a phase."""
        config = task.train
        trains_some = bool(config.steps) and not trains_all(config)
        trainable_only = self.encoding.starts_from_checkpoint and trains_some
        return CheckpointStore(folder, identity, trainable_only=trainable_only)

    def _initial_weights(
        self, task: ResolvedTask, subset: str | None, seed: int, model: Decoder
    ) -> Callable[[], Mapping[str, Tensor]] | None:
        """Return a function that trains the earlier phase and returns the weights it leads to.

        None: no earlier phase is trained.
        """
        start = self.find_start(task, subset)
        if start is None:
            return None

        def weights() -> Mapping[str, Tensor]:
            trained = start.train(seed).state_dict()
            if not isinstance(self.encoding, Adapted):
                return trained
            return copy_shared_weights(model, trained, self.encoding)

        return weights

    def _mark_start(self, task: ResolvedTask, subset: str | None, seed: int) -> None:
        """Mark the checkpoint that a phase starts from: records of runs name it, so it is kept."""
        start = self.find_start(task, subset)
        if start is None:
            return
        folder = start.checkpoint(seed, start.choose())
        with contextlib.suppress(OSError):  # the cache may be read-only
            folder.mkdir(parents=True, exist_ok=True)
            (folder / START).touch()

    def _label_checkpoint(self, folder: Path, task: ResolvedTask, seed: int) -> None:
        """Write what a checkpoint of the cache belongs to, for people who look at the cache."""
        label = run_title(self.encoding.label, task.label, seed)
        with saving(folder):
            folder.mkdir(parents=True, exist_ok=True)
            if not (folder / OF).exists():
                (folder / OF).write_text(label, encoding="utf-8")

    def checkpoint(
        self, task: ResolvedTask, subset: str | None, seed: int, choice: Candidate
    ) -> Path:
        """Return the folder in which this run and later ones find the model of a phase."""
        folder = task.task.context.cache / CHECKPOINTS
        return folder / self.identity(task, subset, seed, choice)

    def identity(self, task: ResolvedTask, subset: str | None, seed: int, choice: Candidate) -> str:
        """Return a digest of every setting that determines the weights, and of the subset if any.

        It depends on the choice, but not on the search that led to it, so that another search finds
        the trained model. If a phase starts from another one, it depends on the search of the
        earlier phase too.
        """
        settings, value = task.settings, None
        if task.tuning:
            settings = with_chosen_rate(settings, choice.lr, from_scratch=task.start is None)
            value = choice.value
        label, version = self.encoding.label, self.encoding.version
        return model_identity(settings, label, version, seed, subset, value)

    def choose(self, task: ResolvedTask, subset: str | None) -> Candidate:
        """Return learning rate and option value of a phase: the task's, or the search's choice.

        Trials are stored, so a later call resumes the search.

        Raises:
            SharedFailure: no candidate is left for a phase for all subsets, or it failed.
            FirstStepFailure: the phase of one subset failed before its first step.
            FloatingPointError: no candidate is left for the phase of one subset.
        """
        known = self.find_choice(task, subset)
        if known is not None:
            return known
        search = self.search_of(task)
        name = slug(f"{search.path.stem}-{subset or ''}")
        lock = task.task.context.cache / "tuning" / f"{name}.lock"
        with saving(lock.parent):
            lock.parent.mkdir(parents=True, exist_ok=True)
        with locked(lock, search.title(subset)):
            return search.find_choice(subset) or self._run_search(search, subset)

    def find_choice(self, task: ResolvedTask, subset: str | None) -> Candidate | None:
        """Return learning rate and option value of a phase; None: the search has not finished."""
        if task.tuning is None:
            return Candidate(task.train.lr)
        return self.search_of(task).find_choice(subset)

    def read_search(self, task: ResolvedTask) -> dict[str, Any] | None:
        """Return the trials and the choices for a task; None without tuning."""
        content = self.search_of(task).read() if task.tuning else {}
        return content or None

    def search_of(self, task: ResolvedTask) -> Search:
        """Return the search for a task, with `task.tuning` as its options."""
        identity = task.digest(self.encoding.label, self.encoding.version)
        path = tuning_path(self.results, task.label, self.encoding.label, identity)
        return Search(task, self.encoding, path)

    def _run_search(self, search: Search, subset: str | None) -> Candidate:
        """Return the choice of a search after its trials; the caller holds the lock."""
        start = self.find_start(search.task, subset)
        value = None
        if start is not None:  # a later phase keeps the option value of the earlier one
            value = start.choose().value
        values = values_to_try(self.encoding, search.task)

        def attempt(candidate: Candidate, seed: int, best: float | None) -> Trial:
            return self._try_candidate(search.task, subset, candidate, seed, best)

        try:
            best = search.choose(subset, values, attempt, default=value)
        except FloatingPointError as error:
            if subset is None:
                raise SharedFailure from error
            raise
        for candidate, seed in search.tried(subset):
            if subset is not None or candidate != best:  # later phases start from the best one
                folder = self.checkpoint(search.task, subset, seed, candidate)
                shutil.rmtree(folder, ignore_errors=True)
        return best

    def _try_candidate(
        self,
        task: ResolvedTask,
        subset: str | None,
        candidate: Candidate,
        seed: int,
        best: float | None,
    ) -> Trial:
        """Train a candidate and measure the model's loss on held-out batches."""

        def held_out() -> float:
            loss = held_out_loss(model, task, subset, self.device, self.precision)
            model.train()
            return loss

        stopping = EarlyStopping(task.train, held_out, best)
        try:
            model = self._make_model(task, seed, candidate)
            _, trained = self.train(
                task, subset, seed, choice=candidate, model=model, stopping=stopping
            )
        except (FloatingPointError, SharedFailure) as error:
            cause = error.__cause__ if isinstance(error, SharedFailure) else error
            if not isinstance(cause, FloatingPointError):
                raise
            return Trial(loss=None, stopped="diverged")
        loss = held_out_loss(model, task, subset, self.device, self.precision)
        return Trial(
            loss if math.isfinite(loss) else None,
            trained.loss,
            trained.seconds,
            trained.steps,
            stopping.halfway,
            stopping.reason,
        )
