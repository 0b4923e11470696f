"""The search for a learning rate and a constant: its choices, given tables of losses."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from pe_bench.config import IGNORE, ModelConfig, TrainConfig
from pe_bench.decoder.model import Decoder
from pe_bench.encoding import Encoding, Tunable
from pe_bench.errors import InputError
from pe_bench.registry import catalogue, plugins
from pe_bench.registry.options import plugin_options, show, with_option
from pe_bench.runs.candidates import (
    CANDIDATES,
    FINALISTS,
    SOLVED,
    Candidate,
    Trial,
    beyond_edge,
    prefer,
    propose,
    tolerance,
)
from pe_bench.runs.early_stopping import EarlyStopping
from pe_bench.runs.held_out_loss import held_out_loss
from pe_bench.runs.options import RunOptions
from pe_bench.runs.phases import Phases
from pe_bench.runs.rate_search import EXTENSIONS, Search
from pe_bench.runs.resolve import ResolvedTask, resolve
from pe_bench.runs.tunable import values_to_try
from pe_bench.runs.tuning import Tuning
from pe_bench.system.sealed import write_sealed
from pe_bench.task import Batch
from pe_bench.train.training_result import TrainingResult

GRID = (1e-3, 3e-3, 1e-2)
SEEDS = (1000, 1001, 1002)
LOW, MIDDLE, HIGH = map(Candidate, GRID)

Losses = Callable[[Candidate, int], float | None]


def search(folder: Path, seeds: tuple[int, ...] = SEEDS) -> Search:
    """Return a search with given trials, for a task of 100 training steps."""
    task = SimpleNamespace(
        label="task",
        tuning=Tuning(GRID, seeds),
        train=SimpleNamespace(steps=100),
        digest=lambda *more: "0",
    )
    encoding = SimpleNamespace(label="own", version="1", cls=Encoding)
    return Search(cast(Any, task), cast(Any, encoding), folder / "own.json")


def choose(
    folder: Path, losses: Losses, values: tuple[str, ...] = (), seeds: tuple[int, ...] = SEEDS
) -> tuple[Candidate, list[tuple[Candidate, int]]]:
    """Return the choice, and the trials in their order."""
    tried: list[tuple[Candidate, int]] = []

    def attempt(candidate: Candidate, seed: int, best: float | None) -> Trial:
        tried.append((candidate, seed))
        return Trial(losses(candidate, seed), steps=100, halfway=1.0)

    return search(folder, seeds).choose(None, values, attempt), tried


def test_of_equally_good_rates_the_smallest_is_preferred() -> None:
    assert prefer({LOW: 7e-5, MIDDLE: 5e-5, HIGH: 1e-9}) == LOW  # all are solved
    assert prefer({LOW: 0.2, MIDDLE: SOLVED, HIGH: 1e-9}) == MIDDLE
    assert prefer({LOW: 0.014, MIDDLE: 0.005, HIGH: 0.02}) == LOW  # within three times
    assert prefer({LOW: 0.016, MIDDLE: 0.005, HIGH: 0.02}) == MIDDLE
    assert prefer({LOW: 1.5, MIDDLE: 1.4, HIGH: 1.41}) == MIDDLE  # as for text: no factor of three
    assert prefer({LOW: 1.42, MIDDLE: 1.4, HIGH: 1.41}) == LOW
    assert prefer({LOW: math.inf, MIDDLE: 9.0, HIGH: math.inf}) == MIDDLE


def test_of_equally_good_values_the_default_is_preferred() -> None:
    other, another = Candidate(3e-3, "100"), Candidate(3e-3, "1000")
    assert prefer({MIDDLE: 0.005, other: 0.001, another: 0.0}) == MIDDLE
    assert prefer({MIDDLE: 0.5, other: 0.002, another: 0.001}) == another


def test_tolerance_grows_with_the_loss() -> None:
    losses = np.linspace(0, 3, 301)
    assert (np.diff([tolerance(loss) for loss in losses]) >= 0).all()


def all_proposed(
    losses: Callable[[Candidate], float], values: tuple[str, ...], grid: Sequence[float] = GRID
) -> list[Candidate]:
    tried: dict[Candidate, float] = {}
    while candidate := propose(tried, grid, values):
        assert candidate not in tried
        tried[candidate] = losses(candidate)
    return list(tried)


def far_from(best: float) -> Callable[[Candidate], float]:
    """Return losses that grow with the distance from a rate."""
    return lambda candidate: 1 + abs(math.log(candidate.lr / best))


@pytest.mark.parametrize("values", [(), ("100",), ("100", "1000")])
def test_every_encoding_has_the_same_number_of_candidates(values: tuple[str, ...]) -> None:
    """This holds for any losses, unless a rate solves the task."""
    for best in np.geomspace(1e-5, 1.0, 20).tolist():
        found = all_proposed(far_from(best), values)
        assert len(found) == CANDIDATES
        assert found[:3] == [MIDDLE, LOW, HIGH]
        assert {c.value for c in found} == {None, *values}
    assert all_proposed(lambda candidate: 0.0, values) == [MIDDLE, LOW, HIGH]
    assert all_proposed(lambda candidate: math.inf, values) == [MIDDLE, LOW, HIGH]


@pytest.mark.parametrize("values", [(), ("100",)])
@pytest.mark.parametrize(
    "grid", [(8e-4, 1e-3, 1.2e-3), (1e-3, 1.1e-3), (2e-3, 2.5e-3, 3e-3), (1e-4, 3e-4, 3.2e-4)]
)
def test_a_search_with_close_rates_ends(grid: Sequence[float], values: tuple[str, ...]) -> None:
    """The rate beyond an edge may round to one that was tried."""
    for best in (1e-5, *grid, 1.0):
        found = all_proposed(far_from(best), values, grid)
        assert len(grid) <= len(found) <= CANDIDATES and len({*found}) == len(found)


def test_what_is_proposed() -> None:
    def rates(best: float, *values: str) -> list[tuple[float, str | None]]:
        found = all_proposed(far_from(best), values)
        return [(c.lr, c.value) for c in found[3:]]

    assert rates(3e-3) == [(5.5e-3, None), (1.7e-3, None), (4.1e-3, None)]  # finer
    assert rates(1.0) == [(3e-2, None), (1e-1, None), (3e-1, None)]  # beyond its edge
    assert rates(1e-9, "a", "b") == [(3e-4, None), (3e-4, "a"), (3e-4, "b")]
    assert rates(3e-3, "a", "b")[:2] == [(3e-3, "a"), (3e-3, "b")]


def test_an_edge_is_left_in_steps_of_the_grid() -> None:
    losses = {Candidate(lr): 1.0 for lr in (2e-4, 5e-4, 1e-3)}
    assert beyond_edge(losses, Candidate(2e-4)) == Candidate(8e-5)
    assert beyond_edge(losses, Candidate(1e-3, "a")) == Candidate(2e-3, "a")
    assert beyond_edge(losses, Candidate(5e-4)) is None


def test_the_worst_seed_decides(tmp_path: Path) -> None:
    """A rate that is best with the first seed but fails with another one is not chosen."""
    table = {LOW: [0.5, 0.5, 0.5], MIDDLE: [0.2, 0.2, 0.2], HIGH: [0.0, 0.0, 0.9]}
    best, tried = choose(tmp_path, lambda c, seed: table.get(c, [1.0] * 3)[seed - 1000])
    assert best == MIDDLE
    assert {seed for c, seed in tried if c == HIGH} == {*SEEDS}


@pytest.mark.parametrize("bad", SEEDS)
def test_a_candidate_is_out_with_any_seed_that_diverges(tmp_path: Path, bad: int) -> None:
    def losses(candidate: Candidate, seed: int) -> float | None:
        if candidate == MIDDLE:
            return None if seed == bad else 0.001
        return {LOW: 0.8, HIGH: 0.9}.get(candidate, 2.0)

    assert choose(tmp_path, losses)[0] == LOW


def test_where_all_diverge_smaller_rates_are_tried(tmp_path: Path) -> None:
    def losses(candidate: Candidate, seed: int) -> float | None:
        return None if candidate.lr > 2e-4 else 1.0

    assert choose(tmp_path, losses)[0] == Candidate(1e-4)
    with pytest.raises(FloatingPointError, match="with any learning rate of 1e-4, 3e-4, 1e-3"):
        choose(tmp_path / "other", lambda candidate, seed: None)


def test_solved_rates_end_the_search(tmp_path: Path) -> None:
    best, tried = choose(tmp_path, lambda candidate, seed: 0.001, ("100", "1000"))
    assert best == LOW
    assert tried == [(MIDDLE, 1000), (LOW, 1000), (HIGH, 1000), (LOW, 1001), (LOW, 1002)]


def test_a_value_of_the_encoding_is_chosen(tmp_path: Path) -> None:
    def losses(candidate: Candidate, seed: int) -> float:
        return {"100": 0.3, "1000": 0.6}.get(candidate.value or "", 0.9) + candidate.lr

    best, _ = choose(tmp_path, losses, ("100", "1000"))
    assert best.value == "100"
    kept = search(tmp_path).read()
    assert kept["values"] == {"all": "100"} and kept["lr"] == {"all": best.lr}
    assert search(tmp_path).find_choice(None) == best


def test_what_is_left_out_cannot_be_chosen(tmp_path: Path) -> None:
    """The choice is the same as with all seeds of all candidates, if three finalists are enough."""
    rng = np.random.default_rng(0)
    for case in range(300):
        scale = 10 ** rng.uniform(-4, 0.5)
        table = {c: (scale * np.exp(rng.normal(0, 1.5, 3))).tolist() for c in (LOW, MIDDLE, HIGH)}
        trials = {c: [Trial(losses[0])] for c, losses in table.items()}

        def run(candidate: Candidate, seed: int, table: Any = table) -> Trial:
            return Trial(table[candidate][seed - 1000])

        found = search(tmp_path / str(case))._decide(trials, run)
        assert found == prefer({c: max(losses) for c, losses in table.items()})
        assert len(table) == FINALISTS


def test_at_most_three_get_all_seeds(tmp_path: Path) -> None:
    def losses(candidate: Candidate, seed: int) -> float:
        return 1.0 + (seed != 1000) * 5 + candidate.lr

    _, tried = choose(tmp_path, losses)
    extended = {candidate for candidate, seed in tried if seed != 1000}
    firsts = [candidate for candidate, seed in tried if seed == 1000]
    assert len(extended) <= FINALISTS and len(firsts) <= CANDIDATES + EXTENSIONS


def test_trials_are_kept_by_rate_value_and_seed(tmp_path: Path) -> None:
    """A repeated search trains nothing, and another seed is another trial."""
    numbers = itertools.count()
    losses: dict[tuple[Candidate, int], float] = {}

    def loss(candidate: Candidate, seed: int) -> float:
        return losses.setdefault((candidate, seed), 1.0 + 0.01 * next(numbers))

    first = choose(tmp_path, loss, ("100",))
    assert choose(tmp_path, loss, ("100",)) == (first[0], [])
    kept = search(tmp_path).read()["tried"]
    assert len({(t["lr"], t["value"], t["seed"]) for t in kept}) == len(kept) == len(losses)
    for trial in kept:
        assert trial["loss"] == losses[Candidate(trial["lr"], trial["value"]), trial["seed"]]
    content = search(tmp_path).read()
    for trial in content["tried"]:
        del trial["training_loss"], trial["halfway"]  # as in an earlier version
    write_sealed(tmp_path / "own.json", content, owner="own")
    assert choose(tmp_path, loss, ("100",)) == (first[0], [])
    _, more = choose(tmp_path, loss, ("100",), seeds=(1000, 7))
    assert more and {seed for _, seed in more} == {7}


def test_the_cost_is_counted_in_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def attempt(candidate: Candidate, seed: int, best: float | None) -> Trial:
        return Trial(0.001, steps=50)

    search(tmp_path).choose(None, (), attempt)
    kept = search(tmp_path).read()
    assert kept["trainings"] == {"all": 0.5 * len(kept["tried"])}
    assert kept["at_edge"] == {"all": False}
    trial, *_, choice = capsys.readouterr().out.splitlines()
    assert trial == "own · task · tune: lr 3e-3, seed 1000"
    found = f"lr 1e-3, held-out loss 0.001 ({kept['trainings']['all']:g} trainings)"
    assert choice == f"own · task · tune: {found}"


def test_an_edge_that_is_not_left_is_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    best, tried = choose(tmp_path, lambda candidate, seed: 1 / candidate.lr)
    assert best.lr == max(c.lr for c, _ in tried)
    assert search(tmp_path).read()["at_edge"] == {"all": True}
    assert ", at the edge of the rates tried (" in capsys.readouterr().out


def test_a_trial_ends_when_it_is_solved() -> None:
    held_out = iter([1.0, SOLVED / 3])  # the first stages are easier than the held-out batches
    stopping = EarlyStopping(TrainConfig(steps=100), lambda: next(held_out), None)
    assert not stopping(5, 1.0)
    assert not stopping(10, SOLVED / 3)
    assert stopping(15, SOLVED / 3) and stopping.reason == "solved"
    assert stopping.halfway == SOLVED / 3


@pytest.mark.parametrize(("loss", "ends"), [(0.39, False), (0.41, True)])
def test_a_trial_ends_halfway_when_it_is_hopeless(loss: float, ends: bool) -> None:
    stopping = EarlyStopping(TrainConfig(steps=100), lambda: 1.0, 0.2)
    assert not stopping(45, 9.0) and stopping.halfway == 9.0
    assert stopping(50, loss) == ends and stopping.halfway == loss
    assert stopping.reason == ("hopeless" if ends else "")
    assert stopping(55, 9.0) == ends  # only once


def test_a_trial_that_is_resumed_late_has_no_loss_halfway(tmp_path: Path) -> None:
    stopping = EarlyStopping(TrainConfig(steps=100), lambda: 1.0, None)
    assert not stopping(90, 0.02) and stopping.halfway is None
    known = []  # later trials are compared with it

    def attempt(candidate: Candidate, seed: int, best: float | None) -> Trial:
        known.append(best)
        return Trial(0.5, halfway=None if len(known) == 1 else 0.7)

    search(tmp_path).choose(None, (), attempt)
    assert known[:3] == [None, None, 0.7]


def test_only_trials_of_the_first_seed_may_end_as_hopeless(tmp_path: Path) -> None:
    """A finalist needs the loss of its whole training with each seed."""
    best: dict[tuple[Candidate, int], float | None] = {}

    def attempt(candidate: Candidate, seed: int, halfway: float | None) -> Trial:
        best[candidate, seed] = halfway
        return Trial(0.5, halfway=0.7)

    search(tmp_path).choose(None, (), attempt)
    first = [halfway for (_, seed), halfway in best.items() if seed == SEEDS[0]]
    further = [halfway for (_, seed), halfway in best.items() if seed != SEEDS[0]]
    assert first[0] is None and first[1:] == [0.7] * (len(first) - 1) != []
    assert further == [None] * len(further) != []


@pytest.mark.parametrize(("loss", "ends"), [(1.59, False), (1.61, True)])
def test_a_trial_of_text_is_hopeless_before_it_has_twice_the_loss(loss: float, ends: bool) -> None:
    assert EarlyStopping(TrainConfig(steps=100), lambda: 1.0, 1.4)(50, loss) == ends


def test_nothing_is_hopeless_without_another_trial_or_when_it_is_solved() -> None:
    assert not EarlyStopping(TrainConfig(steps=100), lambda: 1.0, None)(50, 9.0)
    assert not EarlyStopping(TrainConfig(steps=100), lambda: 1.0, 1e-6)(50, SOLVED)


def test_the_held_out_loss_is_a_mean_over_targets() -> None:
    """Batches have different numbers of targets, and tokens without a target do not count."""
    torch.manual_seed(0)
    config = ModelConfig(layers=1, heads=2, width=8, mlp_width=8, vocab_size=9, init_std=0.5)
    model = Decoder(config, Encoding).eval()
    batches = []
    for kept in (1, 5):
        tokens = torch.randint(9, (2, 6))
        targets = torch.randint(9, (2, 6))
        targets[:, kept:] = IGNORE
        batches.append(Batch(tokens, targets))
    task = SimpleNamespace(
        tuning=SimpleNamespace(batches=2),
        batches=SimpleNamespace(held_out_batch=lambda subset, step: batches[step], train_length=6),
        model=config,
        train=SimpleNamespace(micro_batch=None),
    )
    nats = 0.0
    for batch in batches:
        log = model(batch.tokens).log_softmax(-1).detach()
        for row, column in (batch.targets != IGNORE).nonzero().tolist():
            nats -= float(log[row, column, batch.targets[row, column]])
    loss = held_out_loss(model, cast(ResolvedTask, task), None, "cpu", "fp32")
    assert loss == pytest.approx(nats / (2 * 1 + 2 * 5), rel=1e-5)
    batches[1].targets[0, 0] = 9
    with pytest.raises(InputError, match="the held-out batch 1 has targets from 0 to 9, but"):
        held_out_loss(model, cast(ResolvedTask, task), None, "cpu", "fp32")


def test_every_choice_has_a_checkpoint_of_its_own(tmp_path: Path) -> None:
    task = resolve(RunOptions(cache=tmp_path, tune=Tuning()), "copying")
    phases = Phases(plugins.load("encoding", "rope"), tmp_path, "cpu", "fp32")
    found = set()
    for lr, value in itertools.product((1e-3, 3e-3), (None, "100", "1000")):
        for subset, seed in itertools.product(("copy", "reverse"), (1000, 1001)):
            found.add(phases.checkpoint(task, subset, seed, Candidate(lr, value)))
    assert len(found) == 2 * 3 * 2 * 2


def test_only_a_later_phase_depends_on_the_search(tmp_path: Path) -> None:
    """Another search may choose another model to start from."""
    phases = Phases(plugins.load("encoding", "rope"), tmp_path, "cpu", "fp32")
    first = []
    second = []
    for rates in (GRID, GRID[:2]):
        task = resolve(RunOptions(cache=tmp_path, tune=Tuning(rates)), "copying")
        first.append(phases.identity(task, None, 0, LOW))
        second.append(phases.identity(replace(task, start=task), None, 0, LOW))
    assert first[0] == first[1]
    assert second[0] != second[1]


def test_training_goes_on_after_a_look_at_held_out_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = Decoder(ModelConfig(layers=1, heads=1, width=4, mlp_width=4, vocab_size=5), Encoding)
    looks = []

    def train(*_: Any, stopping: EarlyStopping, **given: Any) -> tuple[Decoder, TrainingResult]:
        assert given["model"] is model.train()
        assert not stopping(5, SOLVED / 3)  # solved in training, not on held-out batches
        looks.append(model.training)
        return model, TrainingResult(10, 0, 1.5, 0.25)

    def held_out(*_: Any) -> float:
        model.eval()
        return 0.75

    monkeypatch.setattr(Phases, "_make_model", lambda *_: model)
    monkeypatch.setattr(Phases, "train", train)
    monkeypatch.setattr("pe_bench.runs.phases.held_out_loss", held_out)
    task = cast(ResolvedTask, SimpleNamespace(train=TrainConfig(steps=10)))
    phases = Phases(cast(Any, None), Path(), "cpu", "fp32")
    trial = phases._try_candidate(task, None, LOW, 1000, None)
    assert looks == [True]
    assert trial == Trial(0.75, 0.25, 1.5, 10, SOLVED / 3, "")


def is_tunable(name: str) -> bool:
    cls: type[Encoding] = plugins.load("encoding", name).cls
    return bool(cls.tunable and cls.tunable.option in {o.name for o in plugin_options(cls)})


@pytest.mark.parametrize("length", [14, 33, 128, 4096])
@pytest.mark.parametrize("name", [name for name in catalogue.names("encoding") if is_tunable(name)])
def test_tunable_options(name: str, length: int) -> None:
    """There are at most two values, and each makes an encoding for rows of any length."""
    tunable = cast(Tunable, plugins.load("encoding", name).cls.tunable)
    model = ModelConfig(layers=2, heads=4, width=64, mlp_width=8, train_length=length)
    values = tunable.values(model)
    assert 1 <= len(values) <= 2
    for value in values:
        other = plugins.load("encoding", with_option(name, tunable.option, show(value)))
        if length >= 128:  # for shorter rows, values that do not fit are left out
            other.make(model, 0)


@pytest.mark.parametrize(
    ("spec", "changed", "values"),
    [
        ("own", {}, ["2", "5"]),
        ("own:size=2", {}, []),  # the user's choice
        ("own", {"start": object()}, []),
        ("own", {"tuning": Tuning(GRID, values=False)}, []),
        ("nope", {}, []),
    ],
)
def test_values_that_fit_are_tried(
    spec: str, changed: dict[str, Any], values: list[str], tmp_path: Path
) -> None:
    """The default, 3, what the encoding refuses, 4, and what the task refuses, 6, are left out."""
    (tmp_path / "own.py").write_text("""
from pe_bench.api import Encoding, InputError, Tunable

class Own(Encoding):
    tunable = Tunable("size", lambda model: [2, 3, 4, model.layers, 6])

    def __init__(self, model, layer=0, *, size: int = 3):
        super().__init__(model, layer)
        self.size = size
        if size == 4:
            raise InputError("no")
""")

    def skip(encoding: Any) -> str | None:
        return "too large" if encoding.size == 6 else None

    model = ModelConfig(layers=5)
    given = {"start": None, "tuning": Tuning(GRID), "model": model, **changed}
    made = SimpleNamespace(
        **given,
        task=SimpleNamespace(skip=skip),
        make_encoding=lambda plugin: plugin.make(model, 0),
    )
    encoding = plugins.load("encoding", spec.replace("own", f"{tmp_path}/own.py"))
    assert list(values_to_try(encoding, cast(ResolvedTask, made))) == values


def test_each_phase_has_its_own_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = {"lr": {"near": 1e-3, "far": 2e-3, "all": 3e-3}, "values": {"near": "1", "far": "2"}}
    monkeypatch.setattr(Search, "read", lambda self: kept)
    nothing: Any = None
    search = Search(nothing, nothing, Path())
    assert search.find_choice("near") == Candidate(1e-3, "1")
    assert search.find_choice("far") == Candidate(2e-3, "2")
    assert search.find_choice(None) == Candidate(3e-3, None)
    assert search.find_choice("absent") is None
