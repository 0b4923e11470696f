"""Baselines: scores of guessing, a constant answer and n-gram tables, and where they are stored."""

import json
from pathlib import Path

import pytest
import torch
from helpers import make_task

from pe_bench.api import IGNORE, Batch
from pe_bench.results.layout import baselines_path
from pe_bench.results.row_files import read_measurements
from pe_bench.runs.baselines import write_baselines
from pe_bench.runs.options import RunOptions
from pe_bench.runs.resolve import ResolvedTask, resolve
from pe_bench.sequences.baselines import Baselines
from pe_bench.sequences.scoring import Scores
from pe_bench.system.sealed import write_sealed
from pe_bench.tasks.flipflop import Flipflop


def test_a_reference_above_guessing_says_what_the_task_gives_away(tmp_path: Path) -> None:
    """After a write, a read finds its bit two tokens back, in the context of a trigram table."""
    found = make_task(Flipflop, tmp_path).baselines()
    values = {
        name: next(r.value for r in rows if r.subset == "dense" and r.metric == "accuracy")
        for name, rows in found.items()
    }
    assert values["trigram table"] > 90 and values["guessing"] == 50
    assert abs(values["bigram table"] - 50) < 10


def rows_of(*rows: list[int]) -> Batch:
    """Return rows whose tokens after a 9 are scored."""
    ids = torch.tensor(rows)
    after = (ids == 9).cumsum(1)[:, :-1] > 0
    return Batch(ids[:, :-1], torch.where(after, ids[:, 1:], IGNORE))


def test_tables_count_what_follows() -> None:
    batches = [rows_of([5, 9, 1, 2, 3], [6, 9, 1, 2, 4]), rows_of([5, 9, 1, 3, 3], [5, 9, 2, 2, 3])]
    baselines = Baselines(batches, 10, consecutive=True)
    assert baselines.symbols == 4 and baselines.most_frequent == 2  # the smaller one of 2 and 3
    test = rows_of([6, 9, 1, 2, 3], [7, 9, 2, 2, 2])
    found = baselines.scores(test)
    assert found["guessing"].exact == pytest.approx([1 / 64] * 2)
    assert found["guessing"].leading == pytest.approx([1 / 4 + 1 / 16 + 1 / 64] * 2)
    assert found["constant answer"].leading.tolist() == [3, 0]  # 1 2 3
    assert correct(found["constant answer"]) == [3, 1]
    # After 9 comes 1, after 1 comes 2, after 2 comes 3.
    assert correct(found["bigram table"]) == [3, 0]
    # After 6 9: 1; after 9 1: 2; after 1 2: 3, as often as 4; after 9 2: 2; after 2 2: 3.
    assert correct(found["trigram table"]) == [3, 1]
    assert found["trigram table"].exact.tolist() == [1, 0]
    one = Baselines(batches, 10, consecutive=False)
    assert correct(one.scores(test)["constant answer"]) == [1, 3]  # 2, at every place


def correct(scores: Scores) -> list[int]:
    assert scores.correct is not None
    return [int(number) for number in scores.correct]


def resolved(tmp_path: Path) -> ResolvedTask:
    return resolve(RunOptions(cache=tmp_path), "flipflop:samples=5")


@pytest.mark.slow
def test_the_runner_writes_them_once_for_each_settings(tmp_path: Path) -> None:
    task = resolved(tmp_path)
    write_baselines(task, tmp_path)
    path = baselines_path(tmp_path, task.label, task.digest())
    rows = read_measurements(path)
    assert len(rows) == sum(map(len, task.task.baselines().values()))
    written = path.stat().st_mtime_ns
    write_baselines(task, tmp_path)
    assert path.stat().st_mtime_ns == written
    record = path.with_suffix(".json")
    kept = json.loads(record.read_text())
    older = {"references": kept["references"][:4], "version": 1}
    write_sealed(record, older, owner=path.stem, files=[path])
    write_baselines(task, tmp_path)
    assert json.loads(record.read_text()) == kept
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    write_baselines(task, tmp_path)
    assert path.read_bytes() == whole


def test_a_failure_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise ValueError("no batches")

    task = resolved(tmp_path)
    monkeypatch.setattr(task.task, "baselines", fail)
    write_baselines(task, tmp_path)
    assert "no baselines of flipflop:samples=5: ValueError: no batches" in capsys.readouterr().err
    assert not list((tmp_path / "references").glob("*.csv"))
