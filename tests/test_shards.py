"""`--shard I/N`: every run is in one shard, and shards take about equally long."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from test_runner import Toy
from test_runner import toy as toy  # a fixture

from pe_bench.errors import InputError
from pe_bench.grid.division import Division, divide, find_division, shared_training
from pe_bench.grid.estimate import Estimates, Parts
from pe_bench.grid.execution import ExecutionOptions
from pe_bench.grid.planned_run import PlannedRun
from pe_bench.grid.shard import Shard
from pe_bench.system.sealed import write_sealed


def cells(tune: bool = False, start: bool = False) -> list[PlannedRun]:
    """Return the runs of a grid of two tasks, five encodings and five seeds."""
    found = []
    for task in ("one", "two"):
        shared = SimpleNamespace(digest=lambda: "start") if start else None
        resolved = SimpleNamespace(label=task, tuning=tune, start=shared, digest=lambda t=task: t)
        for seed in range(5):
            for name in "abcde":
                encoding = SimpleNamespace(label=name)
                title = f"{name} {task} {seed}"
                phases = SimpleNamespace(start_phases=SimpleNamespace(encoding=encoding))
                run: Any = SimpleNamespace(
                    resolved=resolved,
                    encoding=encoding,
                    phases=phases,
                    seed=seed,
                    title=title,
                )
                found.append(
                    PlannedRun(run, "too long" if (task, name) == ("two", "e") else None, True)
                )
    return found


class Known:
    """Estimates with given seconds per encoding; search and start take ten times as long."""

    def __init__(self, **seconds: float) -> None:
        self.known = seconds

    def parts(self, run: Any) -> Parts | None:
        alone = self.known.get(run.encoding.label)
        if alone is None:
            return None
        shared = 10 * alone
        start = shared if run.resolved.start else 0.0
        return Parts(alone, start, shared if run.resolved.tuning else 0.0)


NONE = cast(Estimates, Known())
UNEQUAL = cast(Estimates, Known(a=1, b=1.5, c=2, d=30))


def shares_of(
    runs: Sequence[PlannedRun], count: int, estimates: Estimates = NONE
) -> list[list[PlannedRun]]:
    division = divide(runs, count, estimates)
    return [division.runs_of(Shard(number, count), runs) for number in range(1, count + 1)]


@pytest.mark.parametrize("count", [1, 2, 3, 8, 45, 60])
@pytest.mark.parametrize("tune", [False, True])
@pytest.mark.parametrize("estimates", [NONE, UNEQUAL])
def test_every_run_is_in_one_shard(count: int, tune: bool, estimates: Estimates) -> None:
    every = cells(tune)
    shares = shares_of(every, count, estimates)
    titles = sorted(cell.run.title for share in shares for cell in share)
    assert titles == sorted(cell.run.title for cell in every)
    assert shares == shares_of(every, count, estimates)


@pytest.mark.parametrize("count", [1, 2, 3, 8, 45, 60])
@pytest.mark.parametrize("tune", [False, True])
def test_without_times_shards_have_equally_many_runs(count: int, tune: bool) -> None:
    sizes = [sum(cell.skip is None for cell in share) for share in shares_of(cells(tune), count)]
    assert max(sizes) <= 1.1 * 45 / count + 1


@pytest.mark.parametrize("count", [2, 4, 5])
def test_no_shard_has_all_runs_of_an_encoding(count: int) -> None:
    for share in shares_of(cells(), count):
        for name in "abcd":
            own = [cell for cell in share if cell.run.encoding.label == name]
            assert 10 // count <= len(own) <= -(-10 // count)  # for 2 tasks and 5 seeds


@pytest.mark.parametrize("count", [2, 3, 8])
def test_shards_take_equally_long(count: int) -> None:
    """Encoding d takes 15 to 30 times as long. Without an estimate, e counts as the mean."""
    seconds = {"a": 1.0, "b": 1.5, "c": 2.0, "d": 30.0, "e": 34.5 / 4}
    times = []
    for share in shares_of(cells(), count, UNEQUAL):
        times.append(sum(seconds[cell.run.encoding.label] for cell in share if not cell.skip))
    assert max(times) - min(times) <= 30
    assert max(times) <= sum(times) / count + 30
    if count == 2:
        assert max(times) / min(times) < 1.02


@pytest.mark.parametrize("estimates", [NONE, cast(Estimates, Known(a=1, b=1, c=1, d=1, e=1))])
def test_runs_that_share_a_training_stay_together(estimates: Estimates) -> None:
    for share in shares_of(cells(tune=True), 3, estimates):
        own = [cell.run for cell in share if cell.skip is None]
        of_search: dict[tuple[str, str], int] = {}
        for run in own:
            search = (run.encoding.label, run.resolved.label)
            of_search[search] = of_search.get(search, 0) + 1
        assert set(of_search.values()) == {5}  # all seeds
    for share in shares_of(cells(start=True), 5, estimates):
        titles = {other.run.title for other in share}
        for cell in share:
            encoding, task, seed = cell.run.title.split()
            partner = f"{encoding} {'two' if task == 'one' else 'one'} {seed}"
            assert cell.skip or encoding == "e" or partner in titles


def test_a_stored_division_stays_when_times_change(tmp_path: Path) -> None:
    runs = cells()

    def find(estimates: Estimates, *, store: bool = True) -> Division:
        return find_division(runs, 4, estimates, tmp_path, store=store)

    assert find(NONE, store=False) == divide(runs, 4, NONE)
    assert not list(tmp_path.iterdir())
    first = find(UNEQUAL)
    assert first == divide(runs, 4, UNEQUAL) != divide(runs, 4, NONE)
    assert find(NONE) == find(NONE, store=False) == first
    assert find_division(runs, 5, NONE, tmp_path, store=True) == divide(runs, 5, NONE)
    assert find_division(runs[1:], 4, NONE, tmp_path, store=True) == divide(runs[1:], 4, NONE)
    shard = Shard(2, 4)
    own = len(first.runs_of(shard, runs))
    line = first.describe(shard, runs)
    assert line.startswith(
        f"shard 2/4: {own} of 50 runs, divided by the times of earlier runs (known for 40);"
    )
    assert line.rpartition(" ")[2] == first.describe(Shard(1, 4), runs).rpartition(" ")[2]


def test_a_damaged_division_is_made_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = find_division(cells(), 4, NONE, tmp_path, store=True)
    (path,) = tmp_path.glob("shards/*.json")
    path.write_text(path.read_text().replace('"a one 0": 1', '"a one 0": 2'))
    assert find_division(cells(), 4, NONE, tmp_path, store=False) == first
    assert find_division(cells(), 4, NONE, tmp_path, store=True) == first
    assert "checksum" in capsys.readouterr().err


@pytest.mark.parametrize("change", ["another title", "a missing run", "no number", 0, 5])
def test_a_division_of_other_runs_is_made_again(change: str | int, tmp_path: Path) -> None:
    first = find_division(cells(), 4, NONE, tmp_path, store=True)
    (path,) = tmp_path.glob("shards/*.json")
    shard_of = dict(first.shard_of)
    content: dict[str, Any] = {"shard_of": shard_of, "known": 0}
    if change == "no number":
        del content["known"]
    elif isinstance(change, int):
        shard_of["a one 0"] = change
    else:
        number = shard_of.pop("a one 0")
        if change == "another title":
            shard_of["z one 0"] = number
    write_sealed(path, content, owner=path.stem)
    assert find_division(cells(), 4, NONE, tmp_path, store=True) == first
    assert len(list(tmp_path.glob("shards/*.damaged1"))) == 1


@pytest.mark.slow
def test_a_shard_runs_its_runs(
    toy: Toy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = ("--seeds", "0-1")
    both = ("nope", "rope")
    toy(encodings=("nope",))
    assert toy("--shard", "1/2", *grid, encodings=both)[0] == 0
    assert "divided by the times of earlier runs (known for 4);" in capsys.readouterr().out
    done = set((tmp_path / "results").glob("runs/*/*/*/rows.csv"))
    assert toy("--shard", "2/2", *grid, encodings=both)[0] == 0
    every = set((tmp_path / "results").glob("runs/*/*/*/rows.csv"))
    assert len(every) == 4 and len(done) in (2, 3)
    for shard in ("1/2", "2/2"):
        assert toy("--shard", shard, *grid, encodings=both)[1] == []


def test_a_share_that_does_not_exist() -> None:
    with pytest.raises(InputError, match="shard 0/2: of 8, they are 1/8"):
        Shard(0, 2)
    with pytest.raises(InputError, match="jobs must be at least 1, not 0"):
        ExecutionOptions(jobs=0)


def test_runs_stay_together_if_one_run_is_longer_than_what_would_be_gained() -> None:
    class Long:
        def parts(self, run: Any) -> Parts:
            return Parts(alone=20.0, start=0.0, search=2.0)

    every = [cell for cell in cells(tune=True) if cell.run.seed < 2]
    runs = [cell for cell in every if cell.run.title[:5] in ("a one", "b one", "c one")]
    shares = shares_of(runs, 2, cast(Estimates, Long()))
    assert sorted(map(len, shares)) == [2, 4]  # 42 and 84 seconds; the mean is 63


def test_adapted_encodings_share_the_training_of_their_origin() -> None:
    def key(encoding: str, origin: str, seed: int, tune: bool = False) -> Any:
        planned = cells(tune, start=True)[0]
        run = cast(Any, planned.run)
        run.encoding = SimpleNamespace(label=encoding)
        run.phases = SimpleNamespace(
            start_phases=SimpleNamespace(encoding=SimpleNamespace(label=origin))
        )
        run.seed = seed
        return shared_training(planned)

    assert key("tape", "rope", 1) == key("alibi", "rope", 1)
    assert len({key("tape", "rope", 1), key("tape", "nope", 1), key("tape", "rope", 2)}) == 3
    searches = [key("tape", "rope", 1, True), key("tape", "rope", 2, True)]
    assert len({*searches, key("alibi", "rope", 1, True)}) == 2
