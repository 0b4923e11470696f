"""Every reader of results names what it leaves out, in the same sentence."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers import some_slow
from made_runs import CURVE, SCORE, put, write_rows
from test_schema import change

import pe_bench
from pe_bench.cli import main
from pe_bench.reporting.frames import describe_unused_runs
from pe_bench.reporting.tables import read_tables
from pe_bench.results.item_files import write_items
from pe_bench.results.items import Items
from pe_bench.results.layout import baselines_path
from pe_bench.results.store import owner_of, read_record, read_records
from pe_bench.system.sealed import SCHEMA, write_sealed


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with two encodings, four seeds each, and a baseline."""
    monkeypatch.chdir(tmp_path)
    folder = Path("results")
    for seed, value in enumerate((1.0, 1.1, 1.2, 1.3)):
        for encoding, more in (("rope", 0.0), ("nope", 0.5)):
            run = put(folder, encoding, [replace(SCORE, value=value + more), *CURVE], seed)
            write_items(
                run / "items.parquet", [Items("test", "bits_per_byte", np.array([1.0, value]))]
            )
            files = [run / "rows.csv", run / "items.parquet"]
            write_sealed(
                run / "run.json", read_record(run).to_json(), owner=owner_of(run), files=files
            )
    rows = baselines_path(folder, "lm", "5e77")
    write_rows(rows, [SCORE], task="lm", encoding="guessing")
    write_sealed(rows.with_suffix(".json"), {}, owner=rows.stem, files=[rows])
    return folder


def append(path: Path) -> Path:
    path.write_text(path.read_text() + "x\n")
    return path


def of_another_run(path: Path) -> Path:
    run = path.parent
    record = read_record(run).to_json()
    shutil.copy(next(run.parent.glob("seed2-*/rows.csv")), path)
    files = [path, run / "items.parquet"]
    write_sealed(run / "run.json", record, owner=owner_of(run), files=files)
    return path


def later(path: Path) -> Path:
    change(path, schema=SCHEMA + 1)
    return path


RUN = "runs/lm/rope/seed3-*"
DAMAGES: dict[str, tuple[str, Callable[[Path], Path]]] = {
    "rows": (f"{RUN}/rows.csv", append),
    "rows of another run": (f"{RUN}/rows.csv", of_another_run),
    "later version": (f"{RUN}/run.json", later),
    "baselines": ("references/*.csv", append),
    "later baselines": ("references/*.json", later),
}
EVERYDAY = ("rows", "rows of another run")
READERS: dict[str, list[str]] = {
    "report": ["report"],
    "report with an export": ["report", "--export", "sent"],
    "compare": ["compare", "rope", "nope"],
    "compare --all": ["compare", "--all"],
    "compare with an encoding without runs": ["compare", "rope", "alibi"],
    "export to a table": ["export", "all.csv"],
    "export to a folder": ["export", "sent"],
}
EVERYDAY_READERS = ("compare", "export to a table")


@pytest.mark.parametrize("reader", some_slow(READERS, EVERYDAY_READERS))
def test_commands_say_nothing_of_intact_results(
    results: Path, capsys: pytest.CaptureFixture[str], reader: str
) -> None:
    code = main(READERS[reader])
    err = capsys.readouterr().err
    if "alibi" in READERS[reader]:
        assert code == 2 and len(err.splitlines()) == 1
    else:
        assert (code, err) == (0, "")


@pytest.mark.parametrize("reader", some_slow(READERS, EVERYDAY_READERS))
@pytest.mark.parametrize("how", some_slow(DAMAGES, EVERYDAY))
def test_commands_name_what_they_leave_out(
    results: Path, capsys: pytest.CaptureFixture[str], how: str, reader: str
) -> None:
    pattern, damage = DAMAGES[how]
    path = damage(next(results.glob(pattern)))
    assert main(READERS[reader]) == 2
    found = capsys.readouterr()
    *_, sentence = found.err.splitlines()
    assert sentence.startswith(f"pe-bench: {path} ")
    assert len(found.err.splitlines()) == (2 if "alibi" in READERS[reader] else 1)
    if "sent" in READERS[reader]:  # the export is intact
        assert main(["report", "sent"]) == 0
        assert ("guessing" in Path("sent/leaderboard.md").read_text()) == ("baselines" not in how)


@pytest.mark.parametrize("reader", ["compare", "compare --all", "export to a table"])
def test_commands_name_runs_without_a_result(
    results: Path, capsys: pytest.CaptureFixture[str], reader: str
) -> None:
    put(results, "rope", [SCORE], 8, status="failed", reason="ZeroDivisionError: 1 / 0")
    put(results, "nope", [SCORE, *CURVE], 0, encoding_version="1", finished="2027-01-01")
    assert main(READERS[reader]) == 0
    first, second = sorted(capsys.readouterr().err.splitlines())
    records = read_records(results)
    for tasks, count in ((["lm"], 2), (["lm:corpus=x"], 0), (["other"], 0)):
        assert len(describe_unused_runs(records, tasks=tasks)) == count
    with_options = [replace(record, task="lm:corpus=x") for record in records]
    for tasks, count in ((["lm"], 2), (["lm:corpus=x"], 2)):
        assert len(describe_unused_runs(with_options, tasks=tasks)) == count
    assert first.endswith("runs of nope on lm are left out: 4 of an earlier version of the code")
    assert second.endswith("runs of rope on lm are left out: 1 failed")


@pytest.mark.parametrize("how", some_slow(DAMAGES, ["rows"]))
def test_functions_warn_of_what_they_leave_out(
    results: Path, capsys: pytest.CaptureFixture[str], how: str
) -> None:
    pattern, damage = DAMAGES[how]
    path = damage(next(results.glob(pattern)))
    for read in (pe_bench.read_results, pe_bench.read_curves, pe_bench.draw_figures):
        read(results)
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"pe-bench: {path} ")
    with pytest.raises(pe_bench.InputError, match=path.name):
        read_tables(results)


@pytest.mark.slow
@pytest.mark.parametrize("option", [[], ["--no-report"]])
def test_the_table_after_a_run_says_what_it_leaves_out(
    results: Path, capsys: pytest.CaptureFixture[str], option: list[str]
) -> None:
    damaged = append(next(results.glob(f"{RUN}/rows.csv")))
    tiny = ["--train.steps", "1", "--model.layers", "1", "--model.width", "16", *option]
    assert main(["run", "--encoding", "nope", "--task", "flipflop:samples=2", *tiny]) == 2
    found = capsys.readouterr()
    sentences = [line for line in found.err.splitlines() if str(damaged) in line]
    assert sentences == [found.err.splitlines()[-1]]
    assert "next: " in found.out
    (run,) = [run for run in read_records(results) if run.task.startswith("flipflop")]
    assert run.status == "done"


@pytest.mark.slow
def test_scores_of_items_that_are_no_table_are_named(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = next(results.glob(f"{RUN}/items.parquet"))
    record = read_record(path.parent)
    path.write_text("no table")
    files = [path.with_name("rows.csv"), path]
    write_sealed(
        path.with_name("run.json"), record.to_json(), owner=owner_of(path.parent), files=files
    )
    assert main(["compare", "rope", "nope"]) == 2
    assert f"cannot read {path}" in capsys.readouterr().err


def test_an_export_that_is_damaged_is_named(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", "sent"]) == 0
    path = Path("sent/records.json")
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"sha256": "0"}))
    for command in (["compare", "--all"], ["export", "all.csv"], ["report"]):
        capsys.readouterr()
        assert main([*command, "--results", "sent"]) == 2
        assert str(path) in capsys.readouterr().err
