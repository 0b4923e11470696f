"""A score that is given the correct earlier tokens says so wherever it is shown."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers import some_slow
from made_runs import put
from matplotlib.figure import Figure

from pe_bench.reporting.columns import list_columns
from pe_bench.reporting.curves import draw_curves
from pe_bench.reporting.dot_plot import draw_scores
from pe_bench.reporting.heatmap import draw_heatmap
from pe_bench.reporting.multiples import draw_multiples
from pe_bench.reporting.notes import write_notes
from pe_bench.reporting.tables import Table, read_tables
from pe_bench.results.measurement import Measurement
from pe_bench.results.metrics import METRICS, find_metric
from pe_bench.results.views import Column, Curve, Headline, Heatmap
from pe_bench.sequences.scoring import TEACHER_FORCED

GIVEN = "given the correct tokens before it"


def table_of(root: Path, metric: str) -> Table:
    """Return a table whose columns, curves and maps show one metric."""
    views = (Column("far", metric), Curve("near", metric), Heatmap("grid", metric, ""))
    for encoding in ("rope", "nope", "alibi", "t5"):
        rows = [Measurement("far", metric, 50.0, 9, length=8)]
        for length in (8, 16):
            rows.append(Measurement("near", metric, 40.0, 9, length=length))
            for second in ("8", "16"):
                rows.append(Measurement("grid", metric, 40.0, 9, 0.0, length, second))
        headline = Headline(metric, "far")
        put(root, encoding, rows, views=views, headline=headline)
    (table,) = read_tables(root)
    return table


FIGURES: dict[str, Callable[[Table], Figure]] = {
    "curves": draw_curves,
    "multiples": draw_multiples,
    "scores": draw_scores,
    "map": lambda table: draw_heatmap(table, table.views(Heatmap)[0]),
}


@pytest.mark.parametrize("kind", some_slow(FIGURES, ["curves"]))
@pytest.mark.parametrize(("metric", "said"), [("token_accuracy", True), ("exact_match", False)])
def test_a_figure_says_it_above_its_panels(
    kind: str, metric: str, said: bool, tmp_path: Path
) -> None:
    figure: Any = FIGURES[kind](table_of(tmp_path, metric))
    title = " ".join(figure._suptitle.get_text().split())
    assert (f"token accuracy: {GIVEN}" in title) == said


@pytest.mark.parametrize(("metric", "said"), [("token_accuracy", True), ("exact_match", False)])
def test_a_table_says_it_in_the_heading_that_ranks(metric: str, said: bool, tmp_path: Path) -> None:
    table = table_of(tmp_path, metric)
    assert (f"token accuracy {GIVEN}, % ↑" in list_columns(table)[0].heading) == said
    assert (f"token accuracy {GIVEN}, %." in write_notes(table)) == said


def test_answers_of_several_tokens_say_it() -> None:
    """`accuracy` belongs to tasks with answers of one token, so no part of an answer is given."""
    forced = {name for name, metric in METRICS.items() if metric.given}
    assert forced == TEACHER_FORCED - {"accuracy"}
    assert find_metric("exact_match").full_title == "exact match"
