import errno
import itertools
import math
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
from matplotlib import image
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend import Legend

from pe_bench.errors import InputError, SavingError
from pe_bench.reporting.report import summary, write_report
from pe_bench.results import reading
from pe_bench.results.journal import Journal
from pe_bench.results.reading import read_measurements
from pe_bench.results.schema import COLUMNS, Measurement
from pe_bench.system.files import slug, write_atomic, write_json

Rows = Sequence[Measurement]
LONG = ["rope", "rope:base=500000", "tape:base=500000,position_size=16", "alibi", "nope", "fire"]
CURVE = [Measurement("test", "bits", 2 + length / 64, 9, 0.25, length) for length in (8, 16, 32)]
SHOWN = {"near": "f1", "close": "em", "beyond": "rgm"}
PARTS = [Measurement(s, m, 23.451, 9, 1.256, len(s) ** 2 // 2) for s, m in SHOWN.items()]
SCORE = Measurement("all", "score", 1.0, 9)


def write_rows(path: Path, rows: Rows, **names: Any) -> None:
    reading.write_rows(path, [names | asdict(row) for row in rows], COLUMNS)


def put(root: Path, encoding: str, rows: Rows, seed: int = 0, **changed: Any) -> Path:
    """A run as the runner records it. Tables group by the digest alone."""
    run = {"status": "done", "task": "lm", "encoding": encoding, "seed": seed, "preset": "quick"}
    run |= {"protocol": "strict", "data": {"label": "builtin"}, "settings_digest": "5e77"}
    run |= {"headline": {"metric": "score", "subset": "all", "higher_is_better": False}}
    run |= {"shown": {row.subset: row.metric for row in rows if row.subset != "all"}}
    run |= {"axes": {"length": "tokens per window", "aux": ""}, "trained_to": 16, "missing": {}}
    run |= {"environment": {"device": "CPU", "git": {"commit": "c" * 40, "dirty": True}}}
    run |= {"settings": {}, "encoding_source": "0", "reason": None, "parameters": 1234} | changed
    digest = f"{run['settings_digest']}{run['encoding_source']}"
    folder = root / "runs" / "lm" / slug(encoding) / f"seed{seed}-{digest}"
    write_rows(folder / "rows.csv", rows, task="lm", encoding=encoding, seed=seed)
    write_json(folder / "run.json", run)
    return folder


def report(root: Path) -> tuple[str, pd.DataFrame]:
    write_report(root)
    text = (root / "leaderboard.md").read_text(encoding="utf-8")
    return text, pd.read_csv(root / "leaderboard.csv", dtype={"settings": str})


def cells(text: str) -> list[dict[str, str]]:
    """The lines of the tables in a text, by heading."""
    found: list[dict[str, str]] = []
    for line in re.findall(r"^\| (.*) \|$", text, re.MULTILINE):
        cells = re.split(r" *\| ", line.strip())
        if cells[0] == "encoding":
            head = cells
        elif cells[0] != "---":
            found.append(dict(zip(head, cells, strict=True)))
    return found


def test_mean_and_deviation_over_seeds(tmp_path: Path) -> None:
    for seed, value in enumerate((1.0, 2.0, 4.5)):
        score = replace(SCORE, value=value, stderr=0.25 * (seed + 1))
        put(tmp_path, "rope", [score], seed, shown={"all": "score"})
    text, csv = report(tmp_path)
    (row,) = csv.to_dict("records")
    assert (row["mean"], row["stderr"], row["seeds"], row["n"]) == (2.5, 0.5, 3, 27)
    assert row["sd"] == pytest.approx(math.sqrt((1.5**2 + 0.5**2 + 2**2) / 2), rel=1e-5)
    line = {"encoding": "rope", "score": "2.500 ± 1.803", "all (score)": "2.500 ± 1.803"}
    assert cells(text) == [line | {"seeds": "3", "parameters": "1,234"}]
    assert "## lm · quick · strict · data=builtin\n" in text
    assert ".png" not in text and not list((tmp_path / "plots").iterdir())  # there is no length
    assert "Settings 5e77; measured on CPU.\nCode at cccccccccc with changes.\n" in text
    assert list(row.values())[:5] == ["lm", "quick", "strict", "builtin", "5e77"]


def test_where_only_some_seeds_count_the_table_says_how_many(tmp_path: Path) -> None:
    for seed, metric in enumerate(("score", "score", "unsolved_score")):
        put(tmp_path, "rope", [replace(SCORE, value=seed + 1.0, metric=metric)], seed, shown={})
        put(tmp_path, "alibi", [replace(SCORE, value=9.0)], seed, shown={})
    put(tmp_path, "0", [replace(SCORE, metric="unsolved_score")], shown={})
    text, _ = report(tmp_path)
    assert cells(text) == [
        {"encoding": "rope", "score": "1.500 ± 0.707 (2 of 3)",
         "unsolved score": "3.000 (1 of 3)", "seeds": "3", "parameters": "1,234"},
        {"encoding": "alibi", "score": "9.000 ± 0.000", "unsolved score": "–",
         "seeds": "3", "parameters": "1,234"},
        {"encoding": "0", "score": "–", "unsolved score": "1.000",
         "seeds": "1", "parameters": "1,234"},
    ]  # fmt: skip
    assert [*cells(text)[0]][1:3] == ["score", "unsolved score"]  # whoever was read first
    assert "how many seeds a number is the mean of" in text


@pytest.mark.parametrize("higher", [False, True])
def test_best_comes_first(tmp_path: Path, higher: bool) -> None:
    headline = {"metric": "score", "subset": "all", "higher_is_better": higher}
    for encoding, value in {"b": 7.0, "a": 9.0, "c": 11.0}.items():
        put(tmp_path, encoding, [replace(SCORE, value=value)], headline=headline)
    put(tmp_path, "0", CURVE, headline=headline)
    order = [line["encoding"] for line in cells(report(tmp_path)[0])]
    assert order == [*(["c", "a", "b"] if higher else ["b", "a", "c"]), "0"]


@pytest.mark.parametrize("earlier", [0, 1])
def test_of_two_runs_of_one_cell_the_later_counts(tmp_path: Path, earlier: int) -> None:
    for i in (earlier, 1 - earlier):
        when = f"2026-01-0{1 if i == earlier else 2}T00:00:00"
        rows = [replace(SCORE, value=i)]
        put(tmp_path, "rope", rows, encoding_source=str(i), finished=when)
    _, csv = report(tmp_path)
    assert (csv["mean"].tolist(), csv["seeds"].tolist()) == ([1 - earlier], [1])


def test_tables_of_one_title_say_what_differs(tmp_path: Path) -> None:
    for digest, lr in (("d1", 0.1), ("d2", 0.2)):
        settings = {"train": {"lr": lr, "steps": 5}, "start": None}
        put(tmp_path, "rope", [SCORE], settings_digest=digest, settings=settings)
    text, _ = report(tmp_path)
    assert text.count("Here train.lr is 0.1\n") == text.count("Here train.lr is 0.2\n") == 1
    assert "steps is" not in text


@pytest.mark.parametrize("changed", [{"preset": "small"}, {"data": {"label": "b-1234"}}, {}])
def test_settings_are_never_mixed(tmp_path: Path, changed: dict[str, Any]) -> None:
    put(tmp_path, "rope", [*CURVE, SCORE])
    put(tmp_path, "rope", [*CURVE, replace(SCORE, value=3.0)], settings_digest="d1", **changed)
    text, csv = report(tmp_path)
    scores = csv[csv.metric == "score"].set_index("settings")["mean"]
    assert scores.to_dict() == {"5e77": 1.0, "d1": 3.0}
    assert text.count("\n## ") == 2
    assert sorted(line["score"] for line in cells(text)) == ["1.000", "3.000"]
    assert [line["test at 32"] for line in cells(text)] == ["2.500 ± 0.250"] * 2
    assert len(list((tmp_path / "plots").iterdir())) == 2


def test_unfinished_runs_are_listed_and_in_no_table(tmp_path: Path) -> None:
    rope = put(tmp_path, "rope", [SCORE])
    put(tmp_path, "nope", [SCORE])
    trace = "Traceback (most recent call last):\n  File x\nZeroDivisionError: division by zero\n"
    put(tmp_path, "fire", [SCORE], status="failed", reason=trace)
    skipped = put(tmp_path, "learned", [], 3, status="skipped", reason="it has 8 positions")
    text, csv = report(tmp_path)
    listed = [line["encoding"] for line in cells(text)]
    assert sorted(listed) == sorted(csv["encoding"]) == ["nope", "rope"]
    assert "- fire on lm, seed 0: failed, ZeroDivisionError: division by zero\n" in text
    assert "- learned on lm, seed 3: skipped, it has 8 positions\n" in text
    brief = summary(tmp_path, [rope, skipped])  # of these two alone
    assert [line["encoding"] for line in cells(brief)] == ["rope"]
    assert brief.startswith("lm · quick · strict · data=builtin\n")
    assert "learned" in brief and "fire" not in brief


def test_parts_that_are_missing(tmp_path: Path) -> None:
    about: dict[str, Any] = {"missing": {"beyond": "no file beyond.jsonl"}, "shown": SHOWN}
    put(tmp_path, "alibi", [*PARTS[:2], replace(SCORE, metric="partial_score")], **about)
    put(tmp_path, "rope", [*PARTS, SCORE], **about)
    text, _ = report(tmp_path)
    rope, alibi = cells(text)  # who has no score comes last
    columns = ("near (F1)", "beyond (RGM)", "score", "partial score")
    error = "23.45 ± 1.26"  # over items, there being one seed
    assert [rope[column] for column in columns] == [error, error, "1.000", "–"]
    assert [alibi[column] for column in columns] == [error, "–", "–", "1.000"]
    assert "Missing: beyond (no file beyond.jsonl)." in text


def draw(root: Path, monkeypatch: pytest.MonkeyPatch, rows: Rows) -> Axes:
    """Reports encodings with these rows; what is on the only plot, the picture itself checked."""
    for encoding in LONG:
        put(root, encoding, rows)
    put(root, "partly", rows[:1], shown={row.subset: row.metric for row in rows})
    figures: list[Figure] = []
    monkeypatch.setattr(plt, "close", figures.append)
    path = write_report(root)[-1]
    monkeypatch.undo()
    plt.close("all")
    assert f"](plots/{path.name})" in (root / "leaderboard.md").read_text(encoding="utf-8")
    pixels = image.imread(path)
    assert pixels.shape[0] > 300 and pixels.shape[1] > 400 and pixels[..., :3].std() > 0.01
    (figure,) = figures
    assert figure.get_suptitle() == "lm · quick · strict · data=builtin"
    (legend,) = figure.findobj(Legend)
    assert {text.get_text() for text in legend.get_texts()} == {*LONG, "partly"}
    assert "trained to 16" in [text.get_text() for text in figure.axes[0].texts]
    return figure.axes[0]


def test_curves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    axis = draw(tmp_path, monkeypatch, CURVE)
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("tokens per window", "bits")
    assert [label.get_text() for label in axis.get_xticklabels()] == ["8", "16", "32"]
    lines = [np.asarray(line.get_xdata()).tolist() for line in axis.lines]
    assert [16, 16] in lines and lines.count([8, 16, 32]) >= len(LONG)


def test_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    axis = draw(tmp_path, monkeypatch, PARTS)
    labels = [label for label in axis.get_xticklabels() if label.get_text()]
    expected = ("near F1 8", "close exact match 12", "beyond ROUGE geometric mean 18")
    for label, words in zip(labels, expected, strict=True):
        assert sorted(label.get_text().split()) == sorted(words.split())
    assert [1.5, 1.5] in [np.asarray(line.get_xdata()).tolist() for line in axis.lines]
    boxes = [label.get_window_extent() for label in labels]
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))


@pytest.mark.parametrize("content", [b'{"status": "do', b"", b"\xff\xfe"])
def test_nothing_to_report_and_a_broken_record(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(InputError, match=r"no runs in .*: use pe-bench run first"):
        write_report(tmp_path)
    path = put(tmp_path, "rope", [SCORE]) / "run.json"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        write_report(tmp_path)
    assert str(caught.value).startswith(f"{path} is not the record of a run")


def test_no_torch_needed(tmp_path: Path) -> None:
    put(tmp_path, "rope", [*CURVE, SCORE])
    code = "import sys, pathlib; from pe_bench.reporting.report import write_report as write; "
    code += "write(pathlib.Path(sys.argv[1])); sys.exit('torch' in sys.modules)"
    command = [sys.executable, "-c", code, str(tmp_path)]
    subprocess.run(command, cwd=Path(__file__).parents[1], timeout=60, check=True)


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


def test_measurements_come_back_and_labels_name_folders(tmp_path: Path) -> None:
    full = Measurement("a,b", "f1", 0.1 + 0.2, 3, 1e-30, 7, 'right "3"')
    rows = [full, Measurement("ü", "m", math.nan, 1), Measurement("", "m", math.inf, 1, length=0)]
    write_rows(tmp_path / "rows.csv", rows)
    assert str(read_measurements(tmp_path / "rows.csv")) == str(rows)  # nan is not nan
    assert "nan" not in (tmp_path / "rows.csv").read_text(encoding="utf-8")  # but empty
    assert slug("rope:base=5e+05,x=-1.5") == "rope_base=5e+05,x=-1.5"
    assert slug("a/b\\c d|e") == "a_b_c_d_e"


def test_a_mean_over_lengths_stands_in_the_table_not_the_first_length(tmp_path: Path) -> None:
    put(tmp_path, "rope", [*CURVE, Measurement("test", "bits", 42.0, 27)])
    (line,) = cells(report(tmp_path)[0])
    assert line["test (bits)"] == "42.00"


def test_many_subsets_wrap_and_many_lengths_keep_their_labels_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"part{i}" for i in range(6)]
    rows = [Measurement(n, "bits", 1.0, 9, 0.1, length) for n in names for length in range(4, 41)]
    put(tmp_path, "rope", rows)
    figures: list[Figure] = []
    monkeypatch.setattr(plt, "close", figures.append)
    write_report(tmp_path)
    monkeypatch.undo()
    plt.close("all")
    (figure,) = figures
    panels = [axis for axis in figure.axes if axis.get_visible()]
    assert len(panels) == 6 and figure.get_size_inches()[0] < 25
    for axis in panels:
        boxes = [label.get_window_extent() for label in axis.get_xticklabels() if label.get_text()]
        assert len(boxes) > 5
        assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))


def test_heatmaps(tmp_path: Path) -> None:
    """One picture of all encodings and one of each; a mean among the cells is no cell."""
    figure = {"kind": "heatmap", "subset": "cells", "metric": "em", "title": "A map"}
    figure |= {"value": "exact match, %", "trained": (2, None)}
    cells = [
        Measurement("cells", "em", 10.0 * i * j, 9, length=i, aux=str(j))
        for i in range(1, 4)
        for j in range(1, 4)
    ]
    for encoding in ("rope", "nope"):
        rows = [*cells, Measurement("cells", "em", 40.0, 81), SCORE]
        put(tmp_path, encoding, rows, figures=[figure], shown={"all": "score"})
    paths = [path for path in write_report(tmp_path) if path.suffix == ".png"]
    assert [path.name for path in paths[1:]] == ["nope.png", "rope.png"]
    assert f"](plots/{paths[0].name})" in (tmp_path / "leaderboard.md").read_text(encoding="utf-8")
    for path in paths:
        pixels = image.imread(path)
        assert min(pixels.shape[:2]) > 200 and pixels[..., :3].std() > 0.01
