"""Make the charts of quality over cost."""

import statistics
from collections.abc import Mapping, Sequence

from pe_bench.reporting import chart_layout as layout
from pe_bench.reporting.chart_model import CostChart
from pe_bench.reporting.run_costs import training_seconds
from pe_bench.reporting.tables import Table

FEWEST = 2  # minimum number of encodings shared by a table of costs and a table of quality


def make_costs(table: Table, tables: Sequence[Table]) -> list[CostChart]:
    """Return charts of quality over cost.

    The cost is the measured time for a table of times, otherwise the training time.
    """
    if table.about.measures_time:
        costs = table.ranking.means
        label = _headline_label(table)
        return [
            _cost_chart(other, costs, label, other.heading) for other in find_quality(table, tables)
        ]
    seconds: dict[str, float] = {}
    for encoding in table.encodings:
        own = [training_seconds(r) for r in table.records if r.encoding == encoding]
        known = [value for value in own if value]
        if known:
            seconds[encoding] = statistics.median(known)
    if len(seconds.keys() & table.ranking.means.keys()) < FEWEST:
        return []
    label = "seconds of training, median over seeds ↓"
    says = "Wall time of the runs above, including whatever else their machine did"
    return [_cost_chart(table, seconds, label, says)]


def find_quality(table: Table, tables: Sequence[Table]) -> list[Table]:
    """Return the tables of quality that share encodings with a table of times."""
    timed = set(table.ranking.names)
    others = [other for other in tables if not other.about.measures_time]
    return [other for other in others if len(timed & set(other.ranking.names)) >= FEWEST]


def _cost_chart(table: Table, costs: Mapping[str, float], label: str, says: str) -> CostChart:
    qualities = table.ranking.means
    points = {name: (costs[name], qualities[name]) for name in qualities if name in costs}
    baseline = table.ranking.best_baseline
    ys = [y for _, y in points.values()]
    ys += [] if baseline is None else [baseline]
    xs = [x for x, _ in points.values()]
    x_limits = layout.pad(min(xs), max(xs), by=0.1)
    y_limits = layout.pad(min(ys), max(ys), by=0.1)
    return CostChart(
        title=table.heading,
        says=says,
        x=label,
        y=_headline_label(table),
        x_limits=x_limits,
        y_limits=y_limits,
        baseline=baseline,
        names=layout.place_names(points, x_limits, y_limits),
        hollow=[name for name in points if not table.learned(name)],
        series=points,
    )


def _headline_label(table: Table) -> str:
    return f"{table.headline.subset}: {table.ranking.metric.label}"
