"""What a training phase is told, here and in the other ranks: nothing is trained."""

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pe_bench.config import TrainConfig
from pe_bench.errors import ChangedError
from pe_bench.results.merging_tuning import restore_tuning
from pe_bench.runs.adaptation import copy_shared_weights
from pe_bench.runs.candidates import Candidate, Trial
from pe_bench.runs.distributed import PhaseMessage
from pe_bench.runs.early_stopping import EarlyStopping
from pe_bench.runs.factory import RunFactory
from pe_bench.runs.failures import FirstStepFailure, SharedFailure
from pe_bench.runs.options import RunOptions
from pe_bench.runs.phases import Phases, Start
from pe_bench.runs.rate_search import Search
from pe_bench.runs.rerun import _write_choices
from pe_bench.runs.resolve import ResolvedTask
from pe_bench.runs.run import Run
from pe_bench.runs.run_record import find_pretraining, make_record
from pe_bench.runs.tuning import Tuning
from pe_bench.system.cache_entries import OF, START
from pe_bench.system.sealed import read_sealed
from pe_bench.system.time_limit import TimeLimit
from pe_bench.train.checkpoint_store import CheckpointStore
from pe_bench.train.process_group import ProcessGroup, Strategy
from pe_bench.train.training_result import TrainingResult
from pe_bench.train.training_setup import Training

TRAINED = TrainingResult(7, 8, 9.5, 0.25)
CHOICE = Candidate(0.5)


class Together:
    """The other ranks, which keep the phases that they are told to train."""

    devices = 2
    strategy: Strategy = "ddp"

    def __init__(self) -> None:
        self.told: list[PhaseMessage] = []

    def start(self, phase: PhaseMessage) -> AbstractContextManager[ProcessGroup]:
        @contextmanager
        def enter() -> Iterator[ProcessGroup]:
            yield ProcessGroup(0, 2)

        self.told.append(phase)
        return enter()


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> list[SimpleNamespace]:
    """Replace training; return its arguments. Lightning is not imported."""
    found: list[SimpleNamespace] = []

    def ensure(training: Training, store: Any, **more: Any) -> TrainingResult:
        start = more.pop("initial_weights")
        with more.pop("distributed")(True) as group:
            told = SimpleNamespace(**vars(training), store=store)
            vars(told).update(more, group=group, weights=None)
        found.append(told)
        if start:
            told.weights = start()
        return TRAINED

    def follow(training: Training, store: Any, **more: Any) -> None:
        found.append(SimpleNamespace(**vars(training), store=store, **more))

    module = SimpleNamespace(ensure_trained=ensure, join_training=follow)
    monkeypatch.setitem(sys.modules, "pe_bench.train.training", module)
    return found


def planned(folder: Path, spec: str = "copying", **given: Any) -> Run:
    options = RunOptions(cache=folder, model={"layers": 1}, **given)
    factory = RunFactory(options, folder / "results")
    return factory.make_from_specs("tape" if options.origin else "fire", spec, 3)


def same_weights(one: Any, other: Any) -> bool:
    pairs = zip(one.state_dict().items(), other.state_dict().items(), strict=True)
    return all(a[0] == b[0] and torch.equal(a[1], b[1]) for a, b in pairs)


@pytest.mark.parametrize("subset", [None, "reverse"])
@pytest.mark.parametrize("origin", [None, "rope"])
def test_all_ranks_train_the_same_phases(
    tmp_path: Path, trainings: list[Any], subset: str | None, origin: str | None
) -> None:
    """An adapted encoding continues from its own subset's model, trained with the origin."""
    adapt: dict[str, Any] = {"adapt": {"steps": 4, "lr": 0.01}} if origin else {}
    run = planned(tmp_path, origin=origin, train={"lr": 0.125}, **adapt)
    ranks, limit = Together(), TimeLimit(5.0)
    phases = replace(run.phases, ranks=ranks, limit=limit)
    model, found = phases.train(run.resolved, subset, 3, choice=CHOICE)
    assert found == TRAINED
    first, *before = list(trainings)
    assert len(before) == (origin is not None)
    assert same_weights(first.model, model) and first.config.lr == CHOICE.lr
    places: list[tuple[Any, Phases, ResolvedTask, Candidate]]
    places = [(first, phases, run.resolved, CHOICE)]
    if origin:
        assert run.resolved.start is not None
        own = phases.start_phases
        assert own.encoding.label == "rope" and before[0].config.lr == 0.125
        places.append((before[0], own, run.resolved.start, Candidate(0.125)))
        taken = copy_shared_weights(first.model, before[0].model.state_dict(), phases.encoding)  # type: ignore[arg-type]
        assert all(torch.equal(first.weights[name], taken[name]) for name in taken)
        folder = own.checkpoint(run.resolved.start, subset, 3, Candidate(0.125))
        assert (folder / START).exists()
    for told, own, task, choice in places:
        assert told.title == f"{own.encoding.label} · {subset or task.label} · train"
        assert (told.seed, told.device, told.precision) == (3, "cpu", "fp32")
        assert (told.group, told.stop, told.limit) == (ProcessGroup(0, 2), None, limit)
        folder = own.checkpoint(task, subset, 3, choice)
        about = f"{own.encoding.label} · {task.label} · seed 3"
        assert (folder / OF).read_text() == about
        assert told.store.final.parent == folder and not told.store.trainable_only
        batches = told.batches
        assert (batches.task, batches.subset, batches.seed) == (task, subset, 3)
    environment = make_record("done", run.resolved, phases, 3, 0).environment
    assert (environment["devices"], environment["strategy"]) == (2, "ddp")
    followed: list[Any] = []
    for told, (first, own, task, choice) in zip(ranks.told, places, strict=True):
        identity = own.identity(task, subset, 3, choice)
        folder = first.store.final.parent
        assert told == PhaseMessage(identity, subset, 3, choice.lr, None, folder, resumes=True)
        phases.follow(run.resolved, told, ProcessGroup(1, 2))
        followed.append(trainings[-1])
    for here, there in zip((place[0] for place in places), followed, strict=True):
        assert same_weights(here.model, there.model) and here.config == there.config
        assert vars(here.store) == vars(there.store)
        assert vars(here.batches) == vars(there.batches)
        assert (there.seed, there.device, there.precision) == (3, "cpu", "fp32")
        assert there.group == ProcessGroup(1, 2) and there.resumes is True
    with pytest.raises(ChangedError):
        phases.follow(run.resolved, replace(ranks.told[0], seed=4), ProcessGroup(1, 2))


def test_a_phase_alone_can_be_stopped_and_has_its_own_folder(
    tmp_path: Path, trainings: list[Any]
) -> None:
    run = planned(tmp_path)
    stopping = EarlyStopping(TrainConfig(steps=9), lambda: 1.0, None)
    made = run.phases._make_model(run.resolved, 4, CHOICE)
    model, _ = run.phases.train(
        run.resolved, "copy", 4, folder=tmp_path / "own", model=made, stopping=stopping
    )
    (told,) = trainings
    assert (told.group, told.stop, told.limit) == (ProcessGroup(0, 1), stopping, None)
    assert told.model is model is made and told.weights is None
    assert told.store.final.parent == tmp_path / "own" and not (tmp_path / "own" / OF).exists()
    assert told.config == run.resolved.train and told.seed == 4


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (FloatingPointError("nan"), None),
        (SharedFailure(), FloatingPointError("nan")),
        (SharedFailure(), KeyError("x")),
        (KeyError("x"), None),
    ],
)
def test_a_trial_that_diverges_is_a_result_and_a_crash_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, cause: Exception | None
) -> None:
    def fail(self: Phases, *_: Any, **given: Any) -> Any:
        assert (given["choice"], given["stopping"].best) == (CHOICE, 0.75)
        raise error from cause

    monkeypatch.setattr(Phases, "train", fail)
    run = planned(tmp_path)
    arguments = (run.resolved, "copy", CHOICE, 1000, 0.75)
    if isinstance(cause or error, KeyError):
        with pytest.raises(type(error)):
            run.phases._try_candidate(*arguments)
    else:
        assert run.phases._try_candidate(*arguments) == Trial(loss=None, stopped="diverged")


@pytest.mark.parametrize("later", [False, True])
def test_a_later_phase_has_the_value_of_the_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later: bool
) -> None:
    def choose_before(self: Phases, task: ResolvedTask, subset: str | None) -> Candidate:
        return Candidate(0.25, f"of {task.label} {subset}")

    def choose(self: Search, subset: Any, values: Any, attempt: Any, *, default: Any) -> Candidate:
        asked.append((subset, default))
        return CHOICE

    asked: list[Any] = []
    monkeypatch.setattr(Phases, "choose", choose_before)
    monkeypatch.setattr(Search, "choose", choose)
    run = planned(tmp_path, "mqar", tune=Tuning((0.25, 0.5)))
    task = replace(run.resolved, start=run.resolved if later else None)
    assert run.phases._run_search(run.phases.search_of(task), "part") == CHOICE
    assert asked == [("part", "of mqar None" if later else None)]


def test_an_adapted_encoding_starts_from_the_search_for_its_own_subset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search, the cost and the record of the origin are those of the model for the subset."""
    searched: list[tuple[str, Any]] = []

    def choose(self: Search, subset: Any, *_: Any, **__: Any) -> Candidate:
        searched.append((self.encoding.label, subset))
        return CHOICE

    monkeypatch.setattr(Search, "choose", choose)
    tuning = Tuning((0.25, 0.5))
    run = planned(tmp_path, origin="rope", tune=tuning, adapt={"steps": 4, "lr": 0.01})
    phases, origin = run.phases, run.phases.start_phases
    phases._run_search(phases.search_of(run.resolved), "reverse")
    label = phases.encoding.label
    assert searched == [("rope", "reverse"), (label, "reverse")] and label != "rope"
    assert run.resolved.start is not None
    tuning_of = {}
    for part, one in (("task", phases), ("start", origin)):
        rates = dict.fromkeys(("copy", "reverse"), CHOICE.lr)
        about = {"encoding": one.encoding.label, "encoding_version": one.encoding.version}
        tuning_of[part] = {"task": "copying", **about, "lr": rates, "tried": []}
    _write_choices(replace(make_record("done", run.resolved, phases, 3, 0), tuning=tuning_of), run)
    for number, subset in enumerate(("copy", "reverse"), 1):
        start = phases.find_start(run.resolved, subset)
        assert start == Start(origin, run.resolved.start, subset)
        rate = Candidate(CHOICE.lr)
        folder = origin.checkpoint(run.resolved.start, subset, 3, rate)
        trained = replace(TRAINED, steps=number, seconds=10.0 * number)
        store = CheckpointStore(folder, origin.identity(run.resolved.start, subset, 3, rate))
        store.save_final(torch.nn.Linear(1, 1), trained)
    found = make_record("done", run.resolved, phases, 3, 0).tuning
    assert found is not None
    assert [found[part]["encoding"] for part in tuning_of] == [label, "rope"]
    cost = find_pretraining(run.resolved, phases, 3)
    assert cost is not None and (cost["steps"], cost["seconds"], "loss" in cost) == (3, 30, False)
    assert restore_tuning(make_record("done", run.resolved, phases, 3, 0), tmp_path / "there") == []
    for one, task in ((phases, run.resolved), (origin, run.resolved.start)):
        path = one.search_of(task).path
        copy = tmp_path / "there" / path.relative_to(run.results)
        assert read_sealed(copy, owner=copy.stem) == read_sealed(path, owner=path.stem)
    store.final.unlink()  # the cost of one of them is lost
    assert find_pretraining(run.resolved, phases, 3) is None


def test_each_subset_has_its_own_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = {None: CHOICE, "part": Candidate(0.125)}
    monkeypatch.setattr(Search, "find_choice", lambda self, subset: chosen.get(subset))
    monkeypatch.setattr(Phases, "_run_search", lambda self, search, subset: f"searched {subset}")
    phases = (run := planned(tmp_path, "mqar", tune=Tuning((0.25, 0.5)))).phases
    found = [phases.choose(run.resolved, subset) for subset in (None, "part", "other")]
    assert found == [*chosen.values(), "searched other"]


@pytest.mark.parametrize(
    ("subset", "started", "error", "raised"),
    [
        (None, False, KeyError("x"), SharedFailure),
        (None, True, FloatingPointError("nan"), SharedFailure),
        ("copy", False, KeyError("x"), FirstStepFailure),
        ("copy", True, KeyError("x"), KeyError),
        ("copy", False, FloatingPointError("nan"), FloatingPointError),
    ],
)
def test_a_failure_says_what_it_concerns(
    tmp_path: Path,
    trainings: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    subset: str | None,
    started: bool,
    error: Exception,
    raised: type[Exception],
) -> None:
    def fail(training: Any, *_: Any, **__: Any) -> TrainingResult:
        training.batches.requested = 2 if started else 1
        raise error

    monkeypatch.setattr(sys.modules["pe_bench.train.training"], "ensure_trained", fail)
    run = planned(tmp_path)
    with pytest.raises(raised) as found:
        run.phases.train(run.resolved, subset, 3)
    assert error in (found.value, found.value.__cause__)
