"""`pe-bench export FILE.tex`: numbers, marks and names of a table for a paper."""

import math
import re
import shutil
import subprocess
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from made_runs import PART_COLUMNS, PARTS, SCORE, put, put_seeds, read_table

from pe_bench.cli import main
from pe_bench.reporting.columns import list_columns
from pe_bench.reporting.display_names import display_name, display_names
from pe_bench.reporting.latex import escape
from pe_bench.reporting.paper_table import MOST_SCORES, _show, write_tables
from pe_bench.reporting.tables import read_tables
from pe_bench.results.layout import baselines_path
from pe_bench.results.measurement import CSV_COLUMNS, Measurement, Status
from pe_bench.results.row_files import write_rows
from pe_bench.results.store import read_records
from pe_bench.results.views import Headline

HARD = r"50%_of & more #1 {x} $y$ a\b ~^ <>|"
GOOD, NEAR, POOR = [50, 51, 49, 50.5, 52], [49.9, 51.2, 48.8, 50.6, 51.9], [20, 22, 19, 20.5, 22]


def export(root: Path, *options: str) -> str:
    assert main(["export", str(root / "t.tex"), "--results", str(root), *options]) == 0
    return (root / "t.tex").read_text(encoding="utf-8")


def test_the_size_of_a_table_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for encoding in ("rope", "nope"):
        put(tmp_path, encoding, [SCORE])
        put(tmp_path, encoding, [SCORE], task="other", settings_digest="07e4")
    export(tmp_path)
    assert "1 table, 2 encodings, 2 tasks" in capsys.readouterr().out


def lines_of(source: str) -> dict[str, list[str]]:
    """Return the cells of each row of a table, by its first cell."""
    rows = re.findall(r"^(?!%|\\)(.*) \\\\$", source, re.MULTILINE)
    cells = [re.split(r"(?<!\\) & ", row) for row in rows]
    return {first: rest for first, *rest in cells}


@pytest.mark.slow
def test_only_the_best_is_bold_beside_its_interval(tmp_path: Path) -> None:
    put_seeds(tmp_path, "rope", GOOD)
    put_seeds(tmp_path, "tape", NEAR)
    put_seeds(tmp_path, "alibi", POOR)
    path = baselines_path(tmp_path, "lm", "5e77")
    path.parent.mkdir(parents=True)
    floor = asdict(replace(SCORE, metric="f1"))
    names = {"guessing": 1.0, "bigram table": 3.0}
    rows = [{**floor, "task": "lm", "encoding": name, "value": names[name]} for name in names]
    write_rows(path, rows, CSV_COLUMNS)
    source = export(tmp_path)
    lines = lines_of(source)
    assert [*lines] == ["Encoding", "RoPE", "TAPE", "ALiBi", "guessing", "bigram table"]
    # Student's t with four degrees of freedom: 2.776 sd / sqrt(5)
    rope, tape = r"\textbf{50.5}\,{\scriptsize $\pm$1.4}", r"50.5\,{\scriptsize $\pm$1.5}"
    assert lines["RoPE"] == [rf"{rope}\textsuperscript{{a}}"]  # TAPE is not significantly worse
    assert lines["TAPE"] == [rf"{tape}\textsuperscript{{a}}"]
    assert lines["ALiBi"][0].endswith(r"\textsuperscript{b}")
    assert (lines["guessing"], lines["bigram table"]) == (["1.0"], ["3.0"])
    caption = re.findall(r"\\caption\{(.*)\}$", source, re.MULTILINE)[0]
    for part in ("on lm (", "preset quick", "strict", "5 seeds", "guessing", "c" * 10):
        assert part in caption


def test_lower_is_better_and_equal_numbers_are_both_the_best(tmp_path: Path) -> None:
    for encoding, value in (("rope", 1.0), ("tape", 2.0), ("alibi", 1.0), ("fire", float("inf"))):
        put(tmp_path, encoding, [replace(SCORE, value=value)])
    lines = lines_of(export(tmp_path, "--encoding", "tape", "alibi", "rope", "fire"))
    assert [*lines] == ["Encoding", "TAPE", "ALiBi", "RoPE", "FIRE"]
    bold = [name for name, cells in lines.items() if r"\textbf" in cells[0]]
    assert bold == ["ALiBi", "RoPE"]
    assert lines["FIRE"] == [r"$\infty$"]


@pytest.mark.slow
def test_settings_that_cannot_be_compared_are_separate_tables(tmp_path: Path) -> None:
    for task in ("one", "two"):
        for preset in ("quick", "small"):
            put(tmp_path / task, "rope", [SCORE], task=task, preset=preset, settings_digest=preset)
            put(tmp_path / task, "tape", [SCORE], task=task, preset=preset, settings_digest=preset)
    put(tmp_path / "x", "rope", [SCORE], task="one", settings_digest="d3", settings={"a": 1})
    tables = [table for name in ("one", "two", "x") for table in read_tables(tmp_path / name)]
    parts = write_tables(tables, "scores").split(r"\begin{table}")[1:]
    assert [re.findall(r"on (.*?) \(preset (\w+)", part)[0] for part in parts] == [
        ("one, two", "quick"), ("one, two", "small"), ("one", "quick"),
    ]  # fmt: skip
    assert all(rf"\label{{tab:scores-{n}}}" in part for n, part in enumerate(parts, 1))


@pytest.mark.slow
def test_several_tasks_have_their_headlines(tmp_path: Path) -> None:
    tables = []
    for task, easier in (("one", 0.0), ("two", 30.0)):
        for encoding, values in (("rope", GOOD), ("alibi", POOR)):
            for seed, value in enumerate(values):
                headline = Measurement("all", "f1", value + easier, 9)
                put(tmp_path / task, encoding, [headline, *PARTS], seed, task=task,
                    headline=Headline("f1", "all"), views=PART_COLUMNS)  # fmt: skip
        tables.append(read_table(tmp_path / task))
    source = write_tables(tables, "scores")
    lines = lines_of(source)
    titles = [re.findall(r"one|two|F1", cell) for cell in lines["Encoding"]]
    assert titles == [["one", "F1"], ["two", "F1"]]
    means = {name: re.findall(r"\d+\.\d(?=\}?\\,)", " ".join(lines[name])) for name in lines}
    assert means["RoPE"] == ["50.5", "80.5"] and means["ALiBi"] == ["20.7", "50.7"]
    assert all(cell.endswith(r"\textsuperscript{b}") for cell in lines["ALiBi"])


@pytest.mark.slow
def test_one_task_has_all_its_scores_in_parts(tmp_path: Path) -> None:
    for encoding in ("rope", "tape", "alibi", "fire", "nope"):
        rows = [replace(SCORE, subset=f"part-{n}", value=n) for n in range(MOST_SCORES)]
        views = [replace(PART_COLUMNS[0], subset=row.subset, metric=row.metric) for row in rows]
        put(tmp_path, encoding, [SCORE, *rows], views=tuple(views))
    source = export(tmp_path)
    assert len(re.findall(r"^Encoding & ", source, re.MULTILINE)) == 2
    few = lines_of(export(tmp_path, "--encoding", "rope", "tape"))
    assert few["Score"] == ["RoPE", "TAPE"] and len(few) == 2 + MOST_SCORES
    families = lines_of(export(tmp_path, "--encoding", "rope", "tape", "--family"))
    assert families["Score"] == [r"\shortstack[r]{RoPE \\ (rotary)}",
                                 r"\shortstack[r]{TAPE \\ (content)}"]  # fmt: skip


def test_names_are_declared_or_given_and_escaped(tmp_path: Path) -> None:
    style = {"encoding": {"style": {"label": HARD, "family": "moon & sun"}}}
    put(tmp_path, "mine.py", [SCORE], described=style)
    put(tmp_path, "mine.py:size=2", [SCORE], described=style)
    put(tmp_path, "other_one.py", [SCORE])
    put(tmp_path, "rope -> tape [9 steps, length 8]", [SCORE])
    names = display_names(read_records(tmp_path))
    assert names == {
        "mine.py": HARD,
        "mine.py:size=2": f"{HARD} (size=2)",
        "other_one.py": "other_one",
        "rope -> tape [9 steps, length 8]": "TAPE [9 steps, length 8]",
    }
    lines = lines_of(export(tmp_path, "--family", "--label", "other_one.py=A_B", "--encoding",
                            "./here/mine.py", "other_one.py"))  # fmt: skip
    assert lines[escape(HARD)][0] == r"moon \& sun"
    assert lines[r"A\_B"][0] == "other"
    assert display_name("gemma3") == "Gemma 3" and display_name("alibi") == "ALiBi"


def test_names_that_are_equal_are_told_by_their_labels(tmp_path: Path) -> None:
    put(tmp_path, "mine.py", [SCORE], described={"encoding": {"style": {"label": "RoPE"}}})
    put(tmp_path, "rope", [SCORE])
    names = display_names(read_records(tmp_path))
    assert names == {"mine.py": "RoPE [mine.py]", "rope": "RoPE [rope]"}


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="LaTeX is not installed")
def test_latex_takes_the_table(tmp_path: Path) -> None:
    style = {"encoding": {"style": {"label": HARD}}}
    for encoding in ("mine.py", "rope", "tape:base=5"):
        put(tmp_path, encoding, [SCORE, *PARTS], described=style, views=PART_COLUMNS, gate=90.0)
    source = export(tmp_path, "--family", "--label", "rope=ALiBi → ± × “é” −1")
    head = "\\documentclass{article}\\usepackage{booktabs}\\begin{document}\n"
    (tmp_path / "all.tex").write_text(f"{head}{source}\\end{{document}}\n", encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "all.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["t.tex", "--task", "lmm"], "no results of a task 'lmm' (did you mean 'lm'?)"),
        (["t.tex", "--encoding", "ropee"], "no results of 'ropee' (did you mean 'rope'?)"),
        (["t.tex", "--label", "rope"], "--label takes ENCODING=NAME, as in rope=RoPE, not 'rope'"),
        (["t.tex", "--label", "tape=T"], "the encoding 'tape', which is not shown: there are rope"),
        (["t.csv", "--task", "lm"], "--task is for a table that ends in .tex, not for t.csv"),
        (["here", "--family"], "--family is for a table that ends in .tex, not for here"),
    ],
)
def test_wrong_options_are_a_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    says: str,
) -> None:
    put(tmp_path / "results", "rope", [SCORE])
    monkeypatch.chdir(tmp_path)
    assert main(["export", *words]) == 2
    assert says in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["results"]


def test_a_headline_of_seeds_that_did_not_learn_says_so(tmp_path: Path) -> None:
    for seed in range(3):
        status: Status = "not_learned" if seed else "ranked"
        row = replace(SCORE, value=1.0 + seed, status=status)
        put(tmp_path, "rope", [row], seed, gate=95.0, headline=Headline("bits_per_byte", "all"))
    table = read_table(tmp_path)
    assert "(1/3)" in lines_of(write_tables([table], "t"))["RoPE"][0]


def test_an_infinite_number_leaves_the_others_their_decimals(tmp_path: Path) -> None:
    for encoding, value in {"rope": 1.9421, "alibi": 2.4243, "nope": math.inf}.items():
        put(tmp_path, encoding, [replace(SCORE, value=value)])
    table = read_table(tmp_path)
    text = write_tables([table], "t")
    assert "1.942" in text and "2.424" in text and r"$\infty$" in text
    assert list_columns(table)[0].digits == 3


@pytest.mark.parametrize(
    ("value", "digits", "signed", "shown"),
    [
        (math.inf, 1, False, "∞"),
        (-math.inf, 1, False, "−∞"),
        (math.inf, 1, True, "∞"),
        (-2.25, 1, False, "-2.2"),
        (2.375, 2, True, "+2.38"),
        (-0.04, 1, True, "+0.0"),
        (1234.5, 0, False, "1234"),
    ],
)
def test_numbers_of_cells(value: float, digits: int, signed: bool, shown: str) -> None:
    assert _show(value, digits, signed=signed) == shown
