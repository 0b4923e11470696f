"""The charts of a table as JSON, for the page."""

import math
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from pe_bench.reporting.chart_model import Chart
from pe_bench.reporting.cost_charts import make_costs
from pe_bench.reporting.curve_charts import make_curves, make_scores
from pe_bench.reporting.map_charts import make_gallery, make_map
from pe_bench.reporting.tables import Table
from pe_bench.reporting.training_charts import make_training
from pe_bench.results.views import Gallery, Heatmap

DIGITS = 5  # significant digits of a number in a chart


def list_charts(table: Table, tables: Sequence[Table]) -> dict[str, list[Any]]:
    """Return the charts of a table as JSON, by kind.

    Args:
        table: the table.
        tables: all tables; a table of times is plotted against their quality.
    """
    curves = make_curves(table)
    scores = None if curves else make_scores(table)
    maps = [make_map(table, view) for view in table.views(Heatmap)]
    galleries = [make_gallery(table, view) for view in table.views(Gallery)]
    kinds: dict[str, Sequence[Chart]] = {
        "curves": curves,
        "scores": [scores] if scores else [],
        "maps": maps,
        "galleries": galleries,
        "training": make_training(table),
        "costs": make_costs(table, tables),
    }
    found = {}
    for kind, charts in kinds.items():
        if charts:
            found[kind] = [_plain(chart) for chart in charts]
    return found


def round_number(number: float, digits: int) -> float | int | None:
    """Round a number to significant digits for JSON; None if it is not finite."""
    if not math.isfinite(number):
        return None
    return int(number) if number.is_integer() else float(f"{number:.{digits}g}")


def _plain(value: Any) -> Any:
    """Convert a value to JSON types, with numbers rounded to `DIGITS` digits."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float | np.floating):
        return round_number(float(value), DIGITS)
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    return value
