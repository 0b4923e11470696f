"""Files are written completely or not at all, and reading returns the written values."""

import errno
import math
import os
import re
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import NoReturn
from unittest.mock import Mock

import pytest
from made_runs import CURVE, write_rows

from pe_bench.errors import InputError, SavingError
from pe_bench.results import row_files
from pe_bench.results.journal import Journal
from pe_bench.results.measurement import CSV_COLUMNS, Measurement
from pe_bench.results.row_files import read_lines, read_measurements
from pe_bench.system.files import (
    LONGEST,
    cache_folder,
    follow_umask,
    replacing,
    slug,
    write_atomic,
)


def test_journal_survives_and_drops_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "journal" / "part.jsonl"
    items = {"1": {"text": "naïve\n한\u2028\x85\r"}, "é\n": [math.inf, None]}
    journal = Journal(path)
    journal.add({"1": "old"})
    journal.add(items)
    whole = path.read_bytes()
    path.write_bytes(whole + '["torn", "é'.encode()[:-1])
    again = Journal(path)
    assert again.items == journal.items == items
    assert path.read_bytes() == whole
    again.add({"2": 2})
    assert Journal(path).items == items | {"2": 2}


@pytest.mark.parametrize("reason", [OSError(errno.ENOSPC, "no space left"), KeyboardInterrupt()])
def test_a_failed_write_keeps_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: BaseException
) -> None:
    path = tmp_path / "new" / "rows.csv"
    write_atomic(path, "old")
    monkeypatch.setattr(os, "fsync", Mock(side_effect=reason))
    with pytest.raises((SavingError, KeyboardInterrupt)) as caught:
        write_atomic(path, "new")
    assert path.read_text() == "old" and list(path.parent.iterdir()) == [path]
    if isinstance(reason, OSError):
        assert str(caught.value).startswith(f"cannot save {path} (no space left): ")
    with pytest.raises(SavingError, match=r"cannot save .*/rows.csv/items"):
        Journal(path / "items").add({"1": 1})  # below a file


KILLED = """
import os, signal, sys
from pathlib import Path
from pe_bench.system.files import write_atomic

os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)
write_atomic(Path(sys.argv[1]), "new")
"""


@pytest.mark.slow
def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    (left,) = tmp_path.iterdir()
    assert done.returncode == -9 and left.name.startswith(".rows.csv.")
    living = left.with_name(re.sub(r"-\d+-", f"-{os.getpid()}-", left.name))
    living.touch()
    write_atomic(path, "new")
    assert sorted(tmp_path.iterdir()) == sorted([path, living])


def test_measurements_come_back_and_labels_name_folders(tmp_path: Path) -> None:
    full = Measurement("a,b", "f1", 0.1 + 0.2, 3, 1e-30, 7, 'right "3"', 0.1, 0.5, "partial")
    rows = [full, Measurement("ü", "m", math.nan, 1), Measurement("", "m", math.inf, 1, length=0)]
    write_rows(tmp_path / "rows.csv", rows)
    assert str(read_measurements(tmp_path / "rows.csv")) == str(rows)  # nan is not nan
    assert "nan" not in (tmp_path / "rows.csv").read_text(encoding="utf-8")  # but empty
    assert slug("rope:base=5e+05,x=-1.5") == "rope_base=5e+05,x=-1.5"
    assert slug("a/b\\c d|e") == "a_b_c_d_e"


@pytest.mark.parametrize("letter", ["x", "ü", "漢"])
def test_no_name_is_too_long_for_a_file_system(tmp_path: Path, letter: str) -> None:
    label = letter * 300
    assert slug(label) != slug(f"{label}x") and len(slug(label).encode()) <= LONGEST
    assert slug(letter * 60) == letter * 60
    # An earlier version wrote folders under these names.
    assert slug("x" * 300) == f"{'x' * (LONGEST - 9)}-0d4e2ca9"
    for name in (slug(label), "x" * 255):
        write_atomic(tmp_path / slug(label) / name, "content")
        assert (tmp_path / slug(label) / name).read_text() == "content"


def test_variables_name_the_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PE_BENCH_CACHE", "mine")
    monkeypatch.setenv("XDG_CACHE_HOME", "all")
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert cache_folder() == Path("mine")
    monkeypatch.delenv("PE_BENCH_CACHE")
    assert cache_folder() == Path("all/pe-bench")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert cache_folder() == tmp_path / ".cache" / "pe-bench"


def test_without_a_home_folder_the_cache_has_to_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def home() -> NoReturn:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("PE_BENCH_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", home)
    with pytest.raises(InputError, match="PE_BENCH_CACHE"):
        cache_folder()


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [("status", "stratus", "'status' is not in list"), (",9,", ",9,9,", "18 cells under 17")],
)
def test_rows_of_another_form_are_refused(tmp_path: Path, old: str, new: str, why: str) -> None:
    path = tmp_path / "rows.csv"
    write_rows(path, CURVE)
    path.write_text(path.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
    with pytest.raises(InputError, match=f"cannot read .*rows.csv .*{why}.*: remove"):
        read_measurements(path)


CELLS = [
    ("value", ["-1.5e-05", "inf", ""], ["1.2.3", "nan", "one", "0x1"]),
    ("ci_high", ["-inf", "7"], ["1e"]),
    ("n", ["1" * 15, "0", ""], ["1" * 16, "1.0", "-1", "١"]),
    ("seed", ["3", "12"], ["3a", "2" * 20]),
    ("length", ["", "64"], ["64.5"]),
    ("status", ["partial", "not_learned"], ["best", ""]),
    ("metric", ["Maß, in %"], ["a\x1b[2J", "two\nlines"]),
    ("second_axis", ["+1", ""], ["a\x9b"]),
]


@pytest.mark.parametrize(("column", "cells", "wrong"), CELLS)
def test_every_cell_of_a_column_is_checked(
    tmp_path: Path, column: str, cells: list[str], wrong: list[str]
) -> None:
    path = tmp_path / "rows.csv.gz"
    one = asdict(CURVE[0]) | {"seed": 1}
    row_files.write_rows(path, [one | {column: cell} for cell in cells], CSV_COLUMNS)
    place = CSV_COLUMNS.index(column)
    assert [line[place] for line in read_lines(path)] == cells
    for cell in wrong:
        others = [one | {column: each} for each in (cells[0], cell, cells[-1])]
        row_files.write_rows(path, others, CSV_COLUMNS)
        with pytest.raises(InputError, match="cannot read"):
            read_lines(path)


def test_equal_rows_have_equal_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compressed files contain no time, and columns may come in any order."""
    path = tmp_path / "rows.csv.gz"
    rows = [asdict(row) for row in CURVE]
    row_files.write_rows(path, rows, CSV_COLUMNS)
    first = path.read_bytes()
    lines = read_lines(path)
    monkeypatch.setattr(time, "time", lambda: 1e9)
    row_files.write_rows(path, rows, CSV_COLUMNS)
    assert path.read_bytes() == first
    row_files.write_rows(path, rows, ["more", *reversed(CSV_COLUMNS)])
    assert read_lines(path) == lines


def test_new_files_have_the_usual_mode(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    path = tmp_path / "rows.csv"
    path.touch()
    usual = path.stat().st_mode
    path.chmod(0o600)
    before = (tmp_path / "folder").stat().st_mode
    follow_umask(tmp_path)
    assert path.stat().st_mode == usual
    assert (tmp_path / "folder").stat().st_mode == before
    assert sorted(each.name for each in tmp_path.iterdir()) == ["folder", "rows.csv"]
    with replacing(path) as aside:
        aside.write_text("new")
        aside.chmod(0o600)
    assert path.read_text() == "new" and path.stat().st_mode == usual
