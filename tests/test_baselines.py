"""Baselines: what guessing, a constant answer and n-gram tables score, and where it is kept."""

import json
from pathlib import Path

import pytest
import torch
from helpers import Oracle, make_task, measure

from pe_bench.api import IGNORE, Batch, LengthGeneralizationTask
from pe_bench.registry import plugins
from pe_bench.results.measurement import Measurement
from pe_bench.results.store import read_measurements, references_path
from pe_bench.runs.baselines import write_baselines
from pe_bench.runs.options import RunOptions
from pe_bench.runs.resolve import ResolvedTask, resolve
from pe_bench.sequences.baselines import BASELINES, Baselines
from pe_bench.sequences.scoring import Scores
from pe_bench.system.sealed import write_sealed


def length_tasks() -> dict[str, type[LengthGeneralizationTask]]:
    classes = {name: plugins.load("task", name).cls for name in plugins.names("task")}
    return {n: cls for n, cls in classes.items() if issubclass(cls, LengthGeneralizationTask)}


TASKS = length_tasks()
# Tokens that answers consist of, in preset quick.
SYMBOLS = {
    "addition": 11,
    "chained-facts": 16,
    "copying": 21,
    "flipflop": 2,
    "indexing": 32,
    "mqar": 64,
    "multi-addition": 12,
    "multiplication": 11,
    "passkey": 10,
    "posgen": 11,
    "probes": 16,
    "recall": 128,
    "ruler": 32,
    "selective-copy": 17,
    "state-tracking": 2,
}


def place(row: Measurement) -> tuple[str, str, int | None, str]:
    return row.subset, row.metric, row.length, row.second_axis


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_every_task_has_baselines_with_the_rows_of_a_model(name: str, tmp_path: Path) -> None:
    task = make_task(TASKS[name], tmp_path, samples=2)
    found = task.baselines()
    assert tuple(found)[: len(BASELINES)] == BASELINES
    rows = measure(task, Oracle(lambda _: [], vocab_size=task.vocabulary.vocab_size), tmp_path)
    expected = {place(row) for row in [*rows, *task.summarize(rows)]}
    for reference, some in found.items():
        assert {place(row) for row in some} == expected, reference
        percent = [row.value for row in some if row.metric != "effective_length"]
        assert all(0 <= value <= 100 for value in percent)
        assert {row.status for row in some} == {"ranked"}
    assert {row.value for row in found["guessing"] if row.metric == "effective_length"} == {0}
    chance = 100 / SYMBOLS[name]
    for row in found["guessing"]:
        if row.metric in ("token_accuracy", "accuracy"):
            assert row.value == pytest.approx(chance)
        if row.metric == "exact_match":
            assert row.value <= chance + 1e-9
    assert [place(row) for row in found["guessing"]].count((*task_headline(task), None, "")) == 1


def task_headline(task: LengthGeneralizationTask) -> tuple[str, str]:
    return task.headline.subset, task.headline.metric


def test_a_reference_above_guessing_says_what_the_task_gives_away(tmp_path: Path) -> None:
    """A read right after a write has the bit two tokens back, which a trigram table sees."""
    found = make_task(TASKS["flipflop"], tmp_path).baselines()
    values = {
        name: next(r.value for r in rows if r.subset == "dense" and r.metric == "accuracy")
        for name, rows in found.items()
    }
    assert values["trigram table"] > 90 and values["guessing"] == 50
    assert abs(values["bigram table"] - 50) < 10


def rows_of(*rows: list[int]) -> Batch:
    """Rows whose tokens after a 9 are scored."""
    ids = torch.tensor(rows)
    after = (ids == 9).cumsum(1)[:, :-1] > 0
    return Batch(ids[:, :-1], torch.where(after, ids[:, 1:], IGNORE))


def test_tables_count_what_follows() -> None:
    batches = [rows_of([5, 9, 1, 2, 3], [6, 9, 1, 2, 4]), rows_of([5, 9, 1, 3, 3], [5, 9, 2, 2, 3])]
    baselines = Baselines(batches, 10, places=True)
    assert baselines.symbols == 4 and baselines.most_frequent == 2  # of 2 and 3 the smaller
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
    one = Baselines(batches, 10, places=False)
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
    path = references_path(tmp_path, task.label, task.digest())
    rows = read_measurements(path)
    assert len(rows) == sum(map(len, task.task.baselines().values()))
    written = path.stat().st_mtime_ns
    write_baselines(task, tmp_path)
    assert path.stat().st_mtime_ns == written
    record = path.with_suffix(".json")
    kept = json.loads(record.read_text())
    older = {"references": kept["references"][:4], "version": 1}
    write_sealed(record, older, of=path.stem, files=[path])
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
