"""Parts of exports and merges: comparison of runs, learning rates, shared values, rounding."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_runs import CURVE, SCORE, put, write_record, write_rows

from pe_bench.errors import InputErrors
from pe_bench.results.export import write_export
from pe_bench.results.item_files import write_items
from pe_bench.results.items import Items
from pe_bench.results.layout import CURVES, baselines_path
from pe_bench.results.learning_curves import OF_A_RUN, LearningCurve, write_curve_file
from pe_bench.results.merging import Merger, merge_folder
from pe_bench.results.merging_tuning import add_choices
from pe_bench.results.reading import reading
from pe_bench.results.record import RunRecord
from pe_bench.results.rounding import shorten
from pe_bench.results.run_comparison import describe_difference
from pe_bench.results.run_data import read_run_curves, read_run_items, read_run_rows
from pe_bench.results.store import key_of, read_record, read_records, results_of
from pe_bench.system.sealed import read_sealed, write_sealed

ITEMS = [
    Items("test", "bits_per_byte", np.array([1.0, 2.5, 4.0]), np.array([2.0, 3, 4]), 8),
    Items("test", "bits_per_byte", np.array([0.1, 0.2]), length=16, clusters=np.array([4, 7])),
]
PHASES: dict[tuple[str, ...], LearningCurve] = {
    ("train", ""): LearningCurve((1, 5), (2.5, 1.25), (0.125, 0.0625), (3.0, 0.75), (640.0, 512.0)),
    ("adapt", "a"): LearningCurve((2,), (0.5,), (0.25,), (0.125,), (96.0,)),
}


def put_whole(root: Path, encoding: str, seed: int = 0, value: float = 1.0, **changed: Any) -> Path:
    """Write a run with rows, items and learning curves."""
    folder = put(root, encoding, [replace(SCORE, value=value), *CURVE], seed, **changed)
    write_items(folder / "items.parquet", ITEMS)
    write_curve_file(folder / CURVES, PHASES, OF_A_RUN)
    return folder


# Comparison of two runs.


def lacks(folder: Path) -> None:
    write_rows(folder / "rows.csv", [SCORE, *CURVE[1:]], task="lm", encoding="rope", seed=0)


def differs(folder: Path) -> None:
    rows = [SCORE, CURVE[0], replace(CURVE[1], value=9.5), replace(CURVE[2], n=10)]
    write_rows(folder / "rows.csv", rows, task="lm", encoding="rope", seed=0)


def other_items(folder: Path) -> None:
    write_items(folder / "items.parquet", [ITEMS[0], replace(ITEMS[1], clusters=None)])


def no_items(folder: Path) -> None:
    (folder / "items.parquet").unlink()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda folder: None, ""),
        (no_items, ""),
        (lacks, "only one of them has 1 of 4 rows"),
        (differs, "2 of 4 rows differ, the first is test 16 bits_per_byte: 2.25 and 9.5"),
        (other_items, "scores of items differ"),
    ],
)
def test_runs_are_compared(tmp_path: Path, change: Callable[[Path], None], says: str) -> None:
    one = read_record(put_whole(tmp_path / "a", "rope"))
    folder = put_whole(tmp_path / "b", "rope")
    change(folder)
    write_record(folder, one)
    assert describe_difference(one, read_record(folder)) == says


# Learning rates.


def trial(lr: float, **more: Any) -> dict[str, Any]:
    return {"phase": "all", "lr": lr, "seed": 1000, "loss": 1.0, **more}


THERE: dict[str, Any] = {
    "task": "lm",
    "encoding": "rope",
    "encoding_version": "1",
    "lr": {"a": 0.01},
    "edge": {"a": "low"},
    "tried": [trial(0.01, seconds=3)],
}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {}),
        ({"tried": [trial(0.01, seconds=9), trial(0.03)]}, {"tried": [0.01, 0.03]}),
        ({"tried": [trial(0.01, seed=1001)]}, {"tried": [0.01, 0.01]}),
        ({"tried": [trial(0.01, loss=1.5)]}, {}),  # repeated on another machine
        ({"lr": {"b": 0.1}}, {"lr": {"a": 0.01, "b": 0.1}}),
        ({"lr": {"a": 0.01, "b": 0.1}, "edge": {"b": "high"}},
         {"lr": {"a": 0.01, "b": 0.1}, "edge": {"a": "low", "b": "high"}}),
    ],
)  # fmt: skip
def test_learning_rates_are_joined(
    tmp_path: Path, given: dict[str, Any], expected: dict[str, Any]
) -> None:
    copy = tmp_path / "rope-1.json"
    write_sealed(copy, THERE, owner=copy.stem)
    before = copy.read_bytes()
    assert add_choices({**THERE, **given}, tmp_path / "source", copy) == ""
    content = read_sealed(copy, owner=copy.stem)
    rates = expected.pop("tried", [0.01])
    assert content == {**THERE, **expected, "tried": content["tried"]}
    assert [each["lr"] for each in content["tried"]] == rates
    assert (copy.read_bytes() == before) == (not expected and len(rates) == 1)


def test_a_search_in_progress_adds_its_trials_to_a_finished_one(tmp_path: Path) -> None:
    begun = {name: THERE[name] for name in ("task", "encoding", "encoding_version")}
    begun["tried"] = [trial(0.03)]
    one, other = tmp_path / "rope-1.json", tmp_path / "rope-2.json"
    for copy, first, second in ((one, THERE, begun), (other, begun, THERE)):
        write_sealed(copy, first, owner=copy.stem)
        assert add_choices(second, tmp_path / "source", copy) == ""
        content = read_sealed(copy, owner=copy.stem)
        assert sorted(each["lr"] for each in content.pop("tried")) == [0.01, 0.03]
        assert content == {name: THERE[name] for name in THERE if name != "tried"}


def test_other_learning_rates_are_named_once(tmp_path: Path) -> None:
    source, copy = tmp_path / "source" / "rope-1.json", tmp_path / "rope-1.json"
    source.parent.mkdir()
    other = {**THERE, "lr": {"a": 0.02, "b": 0.1}, "tried": [trial(0.02)]}
    for path, content in ((source, other), (copy, THERE)):
        write_sealed(path, content, owner=path.stem)
    before = copy.read_bytes()
    merger = Merger(tmp_path)
    for _ in range(2):
        merger.merge_tuning(source, copy)
    (complaint,) = merger.found.complaints
    assert "rope · lm: other learning rates were chosen in" in complaint
    assert "(a: 2e-2, b: 1e-1)" in complaint and "(a: 1e-2)" in complaint
    assert copy.read_bytes() == before
    copy.write_text("{")
    merger.merge_tuning(source, copy)
    assert "run it again, or remove it" in merger.found.complaints[1]


def test_damaged_learning_rates_and_baselines_are_left_out(tmp_path: Path) -> None:
    put_whole(tmp_path / "a", "rope")
    tuning = tmp_path / "a" / "tuning" / "lm" / "rope-1.json"
    tuning.parent.mkdir(parents=True)
    tuning.write_text("{")
    rows = baselines_path(tmp_path / "a", "lm", "5e77")
    write_rows(rows, [SCORE], task="lm", encoding="guessing")
    rows.with_suffix(".json").write_text("{")
    found = merge_folder(tmp_path / "a", tmp_path / "b")
    assert (found.copied, found.same, found.without_results.total()) == (1, 0, 0)
    first, second = found.complaints
    assert first.startswith(f"{rows.with_suffix('.json')} ") and first.endswith(": left out")
    assert second.startswith(f"{tuning} ") and second.endswith(": left out")
    assert sorted(path.name for path in (tmp_path / "b").iterdir()) == ["runs"]


# Exports.


def test_an_export_has_all_that_a_run_has(tmp_path: Path) -> None:
    """Values that runs of equal settings share are stored once; others come back to their run."""
    root = tmp_path / "results"
    put_whole(root, "rope", 0, 1.0, notes=("n",), parameters=7, described={"task": {"text": "t"}})
    put_whole(root, "rope", 1, 1.25, parameters=8, subsets=("a",))
    put_whole(root, "nope", 0, 1.5, described={"encoding": {"summary": "none"}})
    put_whole(root, "nope", 0, 1.75, settings_digest="6f88", gate=3.0)
    kept = {key_of(record): record for record in read_records(root)}
    write_export(tmp_path / "export", [*kept.values()])
    found = {key_of(record): record for record in read_records(tmp_path / "export")}
    assert found.keys() == kept.keys() and len(found) == 4
    for key, record in kept.items():
        again = found[key]
        assert read_run_rows(again) == read_run_rows(record)
        assert read_run_items(again) == [
            replace(items, values=shorten(items.values.astype(np.float32))) for items in ITEMS
        ]
        assert read_run_curves(again) == read_run_curves(record) == PHASES
        own = {"folder", "exported", "notes", "described"}
        assert {n: v for n, v in vars(again).items() if n not in own} == {
            n: v for n, v in vars(record).items() if n not in own
        }
        assert (again.folder, again.exported, again.notes) == (tmp_path / "export", True, ())
        assert results_of(again) == tmp_path / "export" and results_of(record) == root
    shown = {key: record.described for key, record in found.items()}
    assert sum(bool(each) for each in shown.values()) == 3  # of the encoding: both of rope
    content = json.loads((tmp_path / "export" / "records.json").read_text())
    assert sorted(len(table["runs"]) for table in content["tables"]) == [1, 3]
    for table in content["tables"]:
        assert "run" not in table["shared"] and table["shared"]["task"] == "lm"


def test_a_loss_keeps_twelve_bits() -> None:
    given = np.array([0.0, 100.0, 50.0, 1 / 3, -1 / 3, 1e-9, 12345.678, 0.5 + 2.0**-13])
    short = shorten(given)
    assert short[:3].tolist() == [0.0, 100.0, 50.0]
    assert np.abs(short[3:] / given[3:] - 1).max() <= 2.0**-12
    mantissa, _ = np.frexp(short)
    assert (mantissa * 2**12 == np.round(mantissa * 2**12)).all()
    assert short[3] != given[3] and short[3] == -short[4]


# Several folders.


def test_several_folders_are_read_in_their_order(tmp_path: Path) -> None:
    put_whole(tmp_path / "b", "rope", 1)
    put_whole(tmp_path / "a", "nope", 2)
    put_whole(tmp_path / "a", "nope", 0)

    def seeds(records: list[RunRecord]) -> list[tuple[str, int]]:
        return [(record.encoding, record.seed) for record in records]

    with reading(tmp_path / "b", tmp_path / "a") as records:
        assert seeds(records) == [("rope", 1), ("nope", 0), ("nope", 2)]
    (next((tmp_path / "b").glob("runs/*/*/*")) / "rows.csv").write_text("x\n")
    with pytest.raises(InputErrors) as caught, reading(tmp_path / "a", tmp_path / "b") as records:
        assert [record.status for record in records] == ["done", "done", "damaged"]
    assert str(tmp_path / "b") in str(caught.value)
