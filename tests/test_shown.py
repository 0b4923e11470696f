"""The report, page, tables, texts and figures of a results folder equal the files in tests/shown.

`shown_results.py` writes the folder. If a change of the stored files is intended, write them again;
the commit shows the difference:

    PYTHONPATH=. python tests/test_shown.py

Figures are stored as texts, limits, ticks, and the numbers and styles of their artists, without
pixels. These tests detect a change; other tests say which numbers are right.
"""

import difflib
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import shown_results as made
from matplotlib.figure import Figure
from shown_figures import describe_artists
from shown_page import page_text, shorten
from shown_runs import FREE, OWN, PUBLISHED, ROPE
from shown_texts import of_tasks, paper_tables, terminal_texts

from pe_bench.reporting import (
    figure_files,
    panels,
    paper_curves,
    paper_figures,
    paper_maps,
    published,
    report,
    verdicts,
)
from pe_bench.reporting.attention_maps import AttentionMaps, draw_attention
from pe_bench.reporting.curves import draw_curves
from pe_bench.reporting.dot_plot import draw_scores
from pe_bench.reporting.forest import draw_forest
from pe_bench.reporting.frames import tidy_rows
from pe_bench.reporting.paper_captions import describe_figure
from pe_bench.reporting.size_chart import draw_sizes
from pe_bench.reporting.sizes import Ladder, describe_sizes, find_ladders
from pe_bench.reporting.tables import Table, make_tables, read_tables
from pe_bench.results.store import read_records
from pe_bench.system import commit

FOLDER = Path(__file__).with_name("shown")
REPORT = ("leaderboard.md", "leaderboard.csv", "comparisons.csv")
NAMES = (*REPORT, "page.txt", "page.json", "tables.tex", "terminal.txt", "runs.csv", "figures.txt")
SOME_TABLES = (
    ",settings,|,d1-recall,[^,]*,far,|,d5-adapted,"  # the lines of leaderboard.csv that are stored
)


@contextmanager
def recording(found: list[str]) -> Iterator[pytest.MonkeyPatch]:
    """Describe figures instead of saving them, with published numbers and a commit of the test.

    Nothing is laid out, which takes time and depends on fonts.
    """

    def save(figure: Figure, paths: Sequence[Path], stamp: str = "", **sizes: Any) -> None:
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        kinds = " ".join(path.suffix for path in paths)
        found.append(f"== {paths[0].stem} {kinds}\n{describe_artists(figure)}")

    def save_each(
        figure: Figure,
        changing: Any,
        change: Callable[[str], object],
        paths: Mapping[str, Path],
        stamp: str = "",
    ) -> None:
        for name, path in paths.items():
            change(name)
            save(figure, [path])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figure_files, "save", save)
        patch.setattr(paper_figures, "save", save)
        patch.setattr(panels, "save_each", save_each)
        for module in (paper_curves, paper_maps):
            patch.setattr(module, "finish", lambda figure: figure)
        patch.setattr(published, "load", lambda: PUBLISHED)
        patch.setattr(commit, "find_commit", lambda: {"commit": "f" * 40, "dirty": False})
        yield patch


def make(root: Path) -> dict[str, str]:
    """Return the content of each file of `NAMES`."""
    made.write_results(root / "results")
    made.write_many(root / "many")
    made.write_untuned(root / "untuned")
    made.write_small_sizes(root / "sizes")
    drawn: list[str] = []
    records = read_records(root / "results")
    tables = make_tables(records)
    with recording(drawn) as patch:
        patch.setattr(report, "make_tables", lambda _: tables)  # takes a tenth of the time
        report.write_report(root / "results")
        shown = {name: (root / "results" / name).read_text(encoding="utf-8") for name in REPORT}
        leaderboard = shown["leaderboard.md"]
        shown["leaderboard.md"] = shorten(leaderboard) + "\n"
        scores = shown["leaderboard.csv"].splitlines(keepends=True)
        shown["leaderboard.csv"] = "".join(line for line in scores if re.search(SOME_TABLES, line))
        page = (root / "results" / "index.html").read_text(encoding="utf-8")
        shown["page.txt"], shown["page.json"] = page_text(page, leaderboard)
        shown["tables.tex"] = paper_tables(tables)
        shown["terminal.txt"] = terminal_texts(records, tables, root / "untuned")
        shown["runs.csv"] = tidy_rows(records[:2]).to_csv(index=False, float_format="%.6g")
        captions = draw_papers(tables, root / "figures")
        (many,) = read_tables(root / "many")
        _, untuned = read_tables(root / "untuned")
        (ladder,) = find_ladders(read_tables(root / "sizes"))
        shown["terminal.txt"] += describe_sizes([ladder], ["sizes.png"])
        drawn += other_figures(tables, many, untuned, ladder)
    shown["figures.txt"] = "\n".join([*drawn, captions])
    return shown


def draw_papers(tables: Sequence[Table], folder: Path) -> str:
    """Draw figures for papers and return their captions."""
    chosen = [table for table in tables if table.about.settings_digest[:2] in ("d1", "d3")]
    paper_figures.save_paper_figures(chosen, folder, 3.25, names={OWN: "Mine & more"})
    captions = [path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.txt"))]
    captions += [f"{describe_figure(table, 'any title')}\n" for table in tables]
    return "".join(captions)


def other_figures(
    tables: Sequence[Table], many: Table, untuned: Table, ladder: Ladder
) -> list[str]:
    """Return the figures that no report of these results has."""
    weights = np.array([[[1, 0, 0], [0.25, 0.75, 0], [0.5, 0.1, 0.4]]] * 2)
    maps = AttentionMaps({1: weights}, ["the", "ö", "."], 2, ["title", "more"])
    found = verdicts.compare_pair(of_tasks(tables, "addition", "flipflop"), OWN, ROPE)
    (times,) = of_tasks(tables, "clock")
    names = {name: f"{name}!" for name in times.encodings}
    quality = of_tasks(tables, "addition")
    figures = {
        "paper costs": paper_curves.draw_paper_costs(
            times, quality, 3.25, names, times.ranking.order
        ),
        "sizes": draw_sizes(ladder),
        "many curves": draw_curves(many, ROPE),
        "many parts": draw_scores(many),
        "forest": draw_forest(found),
        "forest of equal numbers": draw_forest(verdicts.compare_pair([untuned], ROPE, FREE)),
        "attention": draw_attention(maps, [1, 0]),
    }
    return [f"== {name}\n{describe_artists(figure)}" for name, figure in figures.items()]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return make(tmp_path_factory.mktemp("shown"))


@pytest.mark.parametrize("name", NAMES)
def test_texts_equal_the_stored_ones(shown: dict[str, str], name: str) -> None:
    stored = (FOLDER / name).read_text(encoding="utf-8")
    changes = difflib.unified_diff(
        stored.splitlines(), shown[name].splitlines(), "stored", "now", lineterm="", n=0
    )
    lines = [line[:300] for line in changes]
    if lines:
        found = "\n".join(lines[:40])
        pytest.fail(f"{found}\nif that is meant: PYTHONPATH=. python tests/test_shown.py")


def write() -> None:
    """Write all stored files again."""
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for name, text in make(Path(folder)).items():
            (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()
