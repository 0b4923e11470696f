"""A run may be in a results folder and in exports inside it: which copy counts."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from made_runs import SCORE, put, write_record

from pe_bench.commands.inventory import find_runs
from pe_bench.reporting.frames import finished_runs, read_results, tidy_rows
from pe_bench.reporting.tables import read_tables
from pe_bench.results.export import write_export
from pe_bench.results.merging import merge_folder
from pe_bench.results.record import RunRecord
from pe_bench.results.run_data import read_run_rows
from pe_bench.results.store import (
    find_records,
    find_run,
    find_timed,
    latest_copies,
    read_record,
    read_records,
)

Reader = Callable[[Path], float]


def number(record: RunRecord) -> float:
    return float(read_run_rows(record)[0]["value"])


def by_name(results: Path) -> float:
    return number(find_run("rope/lm/0", results))


def by_tables(results: Path) -> float:
    (table,) = read_tables(results)
    return table.ranking.means["rope"]


def by_frames(results: Path) -> float:
    (value,) = read_results(results)["value"].to_list()
    return float(value)


def by_one_table(results: Path) -> float:
    (value,) = tidy_rows(read_records(results))["value"].to_list()
    return float(value)


def by_finished(results: Path) -> float:
    (record,) = finished_runs(read_records(results))
    return number(record)


def by_estimates(results: Path) -> float:
    folders = [results, *(path.parent for path in sorted(results.glob("*/records.json")))]
    (record,) = find_records(*folders)
    return number(record)


def by_times(results: Path) -> float:
    own = [record for record in read_records(results) if not record.exported]
    (record,) = find_timed(own, results)
    return number(record)


READERS = [by_name, by_tables, by_frames, by_one_table, by_finished, by_estimates, by_times]


def put_copies(root: Path, orders: dict[str, int]) -> None:
    """Write copies of one run with different numbers; "" is the results folder, others exports."""
    for number, (name, order) in enumerate(orders.items()):
        value = replace(SCORE, value=float(number))
        put(root.parent / name if name else root, "rope", [value], order=order)
        if name:
            write_export(root / name, read_records(root.parent / name))


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize(
    ("orders", "latest"),
    [
        ({"": 1, "a": 3, "b": 2}, 1.0),
        ({"": 1, "a": 2, "b": 3}, 2.0),
        ({"": 3, "a": 2, "b": 1}, 0.0),
        ({"": 1, "a": 1, "b": 1}, 0.0),
    ],
)
def test_every_reader_takes_the_later_copy(
    tmp_path: Path, read: Reader, orders: dict[str, int], latest: float
) -> None:
    put_copies(tmp_path / "results", orders)
    assert read(tmp_path / "results") == latest


@pytest.mark.parametrize("read", READERS)
def test_a_copy_with_results_comes_before_a_later_one_without(tmp_path: Path, read: Reader) -> None:
    put_copies(tmp_path / "results", {"": 2, "a": 1})
    (folder,) = (tmp_path / "results").glob("runs/*/*/*")
    write_record(folder, replace(read_record(folder), status="failed"))
    assert read(tmp_path / "results") == 1.0


def test_runs_stay_in_order() -> None:
    first = RunRecord(
        status="done", task="lm", encoding="rope", seed=0, settings_digest="d", name="0"
    )
    other = replace(first, seed=1, name="1")
    later = replace(first, order=1)
    assert latest_copies([first, other, later]) == [later, other]


def test_a_merge_compares_with_the_copy_of_the_folder_itself(tmp_path: Path) -> None:
    put_copies(tmp_path / "results", {"": 1, "a": 2})
    found = merge_folder(tmp_path / "a", tmp_path / "results")
    assert (found.copied, found.same, len(found.complaints)) == (0, 0, 1)
    (run,) = find_runs(tmp_path / "results")
    assert number(read_record(run.folder)) == 0.0
