"""Heatmaps and galleries at the width of a paper's column."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from pe_bench.reporting import panels
from pe_bench.reporting.heatmap import draw_gallery_panel, draw_map_panel
from pe_bench.reporting.map_charts import make_gallery, make_map
from pe_bench.reporting.paper_panels import (
    MEDIUM,
    PER_INCH,
    add_legend,
    finish,
    keep_arrow,
    legend_lines,
    make_panels,
    panel_width,
    set_labels,
    set_title,
    styled,
    title_size,
)
from pe_bench.reporting.tables import Table
from pe_bench.results.views import Gallery, Heatmap

LEAST = 0.85  # smallest width of a panel of a heatmap, inches
LEAST_CURVE = 1.3  # smallest width of a panel of a gallery, inches
HEIGHT = 1.05  # height of a panel without its title, inches
BAR = 0.6  # width of the colour bar with its labels, inches
LINE = 0.65  # width of lines, in widths of a report


@styled
def draw_paper_map(
    table: Table, view: Heatmap, width: float, names: Mapping[str, str], order: Sequence[str]
) -> Figure:
    """Return a figure with a map for each encoding, all with the same colour scale.

    Args:
        table: the table that holds the numbers.
        view: the heatmap to draw.
        width: width of the figure, inches.
        names: display names of the encodings, by label.
        order: labels in the order of the panels.
    """
    chart = make_map(table, view)
    shown = [name for name in order if name in chart.series]
    least, above = title_size([names[name] for name in shown], LEAST, width - BAR)
    figure, axes = make_panels(
        len(shown), width - BAR, least=least, height=HEIGHT + above, share_x=True, share_y=True
    )
    figure.set_figwidth(width)
    panel = panel_width(axes[0], width - BAR)
    for axis, encoding in zip(axes, shown, strict=True):
        image = draw_map_panel(axis, chart, encoding, LINE)
        set_title(axis, names[encoding], panel)
    set_labels(figure, axes, [chart.x] * len(axes), [chart.y] * len(axes), HEIGHT)
    label = panels.wrap([keep_arrow(chart.z)], HEIGHT, PER_INCH[MEDIUM])
    figure.colorbar(image, ax=axes, label=label, aspect=25, pad=0.02)
    return finish(figure)


@styled
def draw_paper_gallery(
    table: Table, view: Gallery, width: float, names: Mapping[str, str], order: Sequence[str]
) -> Figure:
    """Return a figure with a panel for each encoding: the metric over the second axis.

    Args:
        table, width, names, order: as in `draw_paper_map`.
        view: the gallery to draw.
    """
    chart = make_gallery(table, view)
    shown = [name for name in order if name in chart.series]
    lengths = [f"{length:,.0f} tokens" for length, _ in chart.series[shown[0]]]
    legend = legend_lines(lengths, width)[2]
    least, above = title_size([names[name] for name in shown], LEAST_CURVE, width)
    figure, axes = make_panels(
        len(shown), width, least=least, height=HEIGHT + above, legend=legend, share_x=True
    )
    panel = panel_width(axes[0], width)
    for axis, encoding in zip(axes, shown, strict=True):
        handles = draw_gallery_panel(axis, chart, encoding, LINE)
        axis.locator_params(axis="y", nbins=4)
        set_title(axis, names[encoding], panel)
    set_labels(figure, axes, [chart.x] * len(axes), [chart.y] * len(axes), HEIGHT)
    add_legend(figure, [*handles.values()], [*handles])
    return finish(figure)
