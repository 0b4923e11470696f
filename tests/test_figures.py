"""Figures: contents, labels, and equal bytes each time."""

import itertools
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import matplotlib
import numpy as np
import PIL
import pytest
from made_runs import CURVE, PART_COLUMNS, PARTS, SCORE, TEST, Rows, put, read_table
from matplotlib import image
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from PIL import Image

from pe_bench.errors import InputError
from pe_bench.registry import catalogue, plugins
from pe_bench.registry.attributes import literal_attributes
from pe_bench.reporting import curve_charts, figure_files, multiples, panels, tradeoff
from pe_bench.reporting.chart_model import CostChart, TrainedLength
from pe_bench.reporting.curve_charts import make_curves, trained_lengths
from pe_bench.reporting.curves import draw_curves
from pe_bench.reporting.dot_plot import draw_scores
from pe_bench.reporting.figure_files import draw, draw_map
from pe_bench.reporting.heatmap import save_heatmaps
from pe_bench.reporting.markdown import escape
from pe_bench.reporting.notes import write_notes
from pe_bench.reporting.paired import compare_table
from pe_bench.reporting.paper_figures import plan_figures
from pe_bench.reporting.ranked_table import rank_table, show_markdown
from pe_bench.reporting.report import MANY_TABLES, write_report
from pe_bench.reporting.styles import styles
from pe_bench.reporting.tables import Table
from pe_bench.results.measurement import Measurement, Status
from pe_bench.results.views import Column, Curve, Gallery, Headline, Heatmap, View

LONG = ["rope", "rope:base=500000", "tape:base=500000,position_size=16", "alibi", "nope", "fire"]


def labels_of(axis: Axes) -> list[str]:
    return [label.get_text() for label in axis.get_xticklabels() if label.get_text()]


def legend_of(figure: Figure) -> list[str]:
    (legend,) = figure.legends
    return [text.get_text() for text in legend.get_texts()]


def put_many(root: Path, rows: Rows, views: tuple[View, ...]) -> Table:
    """Write encodings with these rows, and one that has only the first of them."""
    for encoding in LONG:
        put(root, encoding, rows, views=views)
    put(root, "partly", rows[:1], views=views)
    return read_table(root)


@pytest.mark.parametrize(
    ("length", "sides"),
    [(20, ("right", "left")), (1000, ("center", "right"))],
    ids=["close", "apart"],
)
def test_labels_of_training_lengths_do_not_overlap(
    length: int, sides: tuple[str, str], tmp_path: Path
) -> None:
    adaptation = {"encoding": "t5", "from": "rope", "config": {"steps": 9, "length": length}}
    put(tmp_path, "rope -> t5", CURVE, views=TEST, adaptation=adaptation)
    chart = make_curves(read_table(tmp_path))[0]
    assert tuple(mark.align for mark in chart.trained) == sides


def test_long_values_are_short_in_figures_unless_they_differ_at_the_end(tmp_path: Path) -> None:
    numbers = ";".join("1" * 20)
    short = {
        f"rope:factors={numbers},base=3": "rope:factors=1;1;1;1;1;1;…,base=3",
        f"rope:factors={numbers} [lora]": "rope:factors=1;1;1;1;1;1;… [lora]",
        f"rope:factors={numbers}": f"rope:factors={numbers}",
        f"rope:factors={numbers};2": f"rope:factors={numbers};2",
        "rope:scaling=dynamic-ntk,factor=2": "rope:scaling=dynamic-ntk,factor=2",
    }
    for label in short:
        put(tmp_path, label, CURVE, views=TEST)
    table = read_table(tmp_path)
    assert table.short == short
    assert legend_of(draw_curves(table)) == [short[label] for label in sorted(short)]
    rows = show_markdown(rank_table(table, compare_table(table)), table.short)
    assert all(f"| {escape(label)} " in rows for label in short.values())


@pytest.mark.slow
@pytest.mark.usefixtures("real_figures")
def test_vector_figures_of_an_export_are_the_same_each_time(tmp_path: Path) -> None:
    put(tmp_path / "runs", "rope", CURVE, views=TEST)
    export = tmp_path / "export"
    found: list[list[bytes]] = []
    for _ in range(2):
        written = write_report(tmp_path / "runs", export=export)
        paths = [path for path in written if path.suffix in (".svg", ".pdf")]
        found.append([path.read_bytes() for path in paths])
        shutil.rmtree(export / "plots")
    assert found[0] == found[1]
    svg, pdf = found[0]
    assert b"<text" in svg and b">bits per byte" in svg and b"<dc:date>" not in svg
    assert b"/FontFile2" in pdf and b"/Type3" not in pdf and b"/CreationDate" not in pdf


def test_a_figure_of_models_that_go_on_says_how_far_each_was_trained(tmp_path: Path) -> None:
    for label, config in (("alibi", {"steps": 0}), ("t5", {"steps": 9, "length": 32})):
        adaptation = {"encoding": label, "from": "rope", "config": config}
        put(tmp_path, f"rope -> {label}", CURVE, views=TEST, adaptation=adaptation)
    table = read_table(tmp_path)
    assert trained_lengths(table) == {16.0: "trained to 16", 32.0: "some to 32"}
    assert legend_of(draw_curves(table)) == ["alibi", "t5"]


@pytest.mark.slow
@pytest.mark.usefixtures("real_figures")
def test_curves(tmp_path: Path) -> None:
    figure = draw_curves(put_many(tmp_path, CURVE, TEST))
    (axis,) = figure.axes
    message, heading = figure.get_suptitle().splitlines()
    assert message == "lm: scores beyond the training lengths"
    assert heading == "lm · quick · strict · data=builtin"
    assert set(legend_of(figure)) == {*LONG, "partly"}
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("tokens per window", "bits per byte ↓")
    assert labels_of(axis) == ["8", "16", "32"] and axis.get_xscale() == "log"
    lines = [np.asarray(line.get_xdata()).tolist() for line in axis.lines]
    assert [16, 16] in lines and lines.count([8, 16, 32]) >= len(LONG)
    assert "trained to 16" in [text.get_text() for text in axis.texts]
    paths = [path for path in write_report(tmp_path) if path.suffix == ".png"]
    assert f"](plots/{paths[0].name})" in (tmp_path / "leaderboard.md").read_text(encoding="utf-8")
    pixels = image.imread(paths[0])
    seen = {tuple(pixel) for pixel in (pixels[..., :3] * 255).round().astype(int).reshape(-1, 3)}
    for style in styles(LONG).values():  # the palette has the colours of encodings
        assert tuple(bytes.fromhex(style.colour[1:])) in seen
    assert pixels.shape[0] > 300 and pixels.shape[1] > 400 and pixels[..., :3].std() > 0.01


@pytest.mark.slow
def test_a_panel_says_what_its_view_says(tmp_path: Path) -> None:
    rows = [Measurement("s", "accuracy", 95.0, 9, 9.0, n, "", 75.0, 100.0) for n in (5, 7)]
    view = Curve("s", "accuracy", "The panel", "blanks", log_x=False)
    table = put_many(tmp_path, rows, (view,))
    (axis,) = draw_curves(table).axes
    assert (axis.get_title(loc="left"), axis.get_xlabel()) == ("The panel", "blanks")
    assert (axis.get_ylabel(), axis.get_xscale()) == ("accuracy, % ↑", "linear")
    ends = [np.asarray(path.vertices)[:, 1] for c in axis.collections for path in c.get_paths()]
    assert min(map(min, ends)) == 75 and max(map(max, ends)) == 100  # bars end at 100
    assert axis.get_ylim()[1] <= 103


def test_of_metrics_with_equal_numbers_one_is_drawn(tmp_path: Path) -> None:
    names = ("string_match_all", "exact_match", "accuracy")
    views = [Curve(subset, name) for subset in ("one", "two") for name in names]
    rows = []
    for subset, exact in (("one", 90.0), ("two", 40.0)):  # an answer an item, several
        for name, score in zip(names, (90.0, exact, 50.0), strict=True):
            rows += [Measurement(subset, name, score, 9, 9.0, n, "", 0.0, 100.0) for n in (5, 7)]
    put(tmp_path, "rope", rows, views=views)
    axes = [axis for axis in draw_curves(read_table(tmp_path)).axes if axis.lines]
    shown = [axis.get_title(loc="left") for axis in axes]
    assert shown == ["one", "one", "two", "two", "two"]
    labels = [axis.get_ylabel() for axis in axes]
    assert labels[:2] == ["string match (all), % ↑", "accuracy, % ↑"]


def test_who_has_not_learned_is_drawn_hollow_and_dashed(tmp_path: Path) -> None:
    statuses: dict[str, Status] = {"rope": "ranked", "fire": "not_learned"}
    for encoding, status in statuses.items():
        put(tmp_path, encoding, [*CURVE, replace(SCORE, status=status)])
    figure = draw_curves(read_table(tmp_path))
    assert legend_of(figure) == ["fire (not learned)", "rope"]
    curves = {line.get_marker(): line for line in figure.axes[0].lines}
    chosen = styles(["fire", "rope"])
    fire = curves[chosen["fire"].marker]
    rope = curves[chosen["rope"].marker]
    assert (fire.get_markerfacecolor(), fire.get_linestyle()) == ("white", "--")
    assert (rope.get_markerfacecolor(), rope.get_linestyle()) == (chosen["rope"].colour, "-")


def test_names_are_broken_only_where_a_line_is_too_short_for_them() -> None:
    title = "chained-facts · data=chained-facts-v2"
    assert panels.wrap([title, ""], 30, per_inch=1) == "chained-facts ·\ndata=chained-facts-v2"
    assert panels.wrap([title], 15, per_inch=1) == "chained-facts ·\ndata=chained-\nfacts-v2"
    spec = "rope:scaling=pi,factor=2,base=7"
    assert panels.wrap([spec], 20, per_inch=1) == "rope:scaling=pi,\nfactor=2,base=7"


@pytest.mark.parametrize("word", ["WWWW", "iiii"])
def test_a_title_of_wide_characters_ends_in_the_figure(word: str) -> None:
    figure = Figure(figsize=(6, 2))
    title = panels.set_title(figure, " ".join([word] * 40), beside=1.5)
    assert title.get_window_extent().x1 <= (6 - 1.5) * figure.dpi
    assert title.get_text().split() == [word] * 40


@pytest.mark.parametrize("lines", [1, 5])
def test_a_label_of_all_rows_ends_below_the_title(lines: int) -> None:
    figure = Figure(figsize=(5, 3))
    title = panels.set_title(figure, *["a line of the title"] * lines)
    label = "digits of the first number and of the second"
    panels.label_rows(figure, label, title)
    (drawn,) = (text for text in figure.texts if text.get_text().split() == label.split())
    extent = drawn.get_window_extent()
    assert extent.y0 >= 0 and extent.y1 <= title.get_window_extent().y0


@pytest.mark.slow
def test_views_without_a_place_for_their_numbers_are_left_out(tmp_path: Path) -> None:
    mean = Measurement("test", "em", 5.0, 9)
    views = (Curve("test", "em"), Heatmap("test", "em", "A map"), Gallery("test", "em", "B", "y"))
    put(tmp_path, "rope", [mean], views=views, axes={})
    assert draw(read_table(tmp_path)) == {}
    put(tmp_path, "rope", [mean, replace(mean, length=8)], views=views, axes={})
    assert list(draw(read_table(tmp_path))) == [""]


def test_limits_contain_means_and_both_ends_of_error_bars(tmp_path: Path) -> None:
    put(tmp_path, "rope", CURVE, views=TEST)
    (chart,) = make_curves(read_table(tmp_path))
    low, high = chart.y_limits
    assert low < min(row.ci_low for row in CURVE) and high > max(row.ci_high for row in CURVE)
    assert high < 4


@pytest.mark.parametrize("charts", [1, 2, 5])
def test_labels_are_as_wide_as_the_panels_of_their_encoding(charts: int, tmp_path: Path) -> None:
    long = "rope:scaling=dynamic-yarn,factor=2,beta_fast=40,beta_slow=2,truncate=false"
    for label in ("rope", long):
        put(tmp_path, label, CURVE, views=TEST)
    layout = multiples._lay_out(read_table(tmp_path), charts)
    room = layout.width * charts * multiples.CHARACTERS_PER_INCH
    (label,) = (text for spec, text in layout.labels.items() if spec == long)
    words = label.replace("\n", " ").split()
    assert all(len(line) <= room or line in words for line in label.splitlines())
    assert ("\n" in label) == (len(" ".join(words)) > room - 0.3 * multiples.CHARACTERS_PER_INCH)


def test_the_legend_has_the_encodings_of_all_panels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for label in ("rope", "alibi", "fire"):
        put(tmp_path, label, CURVE, views=TEST)
    charts = []
    for names in (["rope", "alibi"], ["fire", "alibi"]):
        series = {name: (float(index), 1.0) for index, name in enumerate(names, 1)}
        sides = dict.fromkeys(names, "right")
        charts.append(CostChart("a", "b", "x", "y", (0, 3), (0, 2), 0.5, sides, [], series))
    monkeypatch.setattr(tradeoff, "make_costs", lambda *_: charts)
    figure = tradeoff.draw_tradeoff(read_table(tmp_path), [])
    assert legend_of(figure) == ["alibi", "fire", "rope", "best baseline"]


def test_every_training_length_is_marked() -> None:
    marks = [TrainedLength(8, "pre-trained", "right"), TrainedLength(16, "fine-tuned", "left")]
    chart: Any = SimpleNamespace(
        ticks=[8, 16], log_x=True, x_limits=(4, 32), x="tokens", trained=marks
    )
    layout: Any = SimpleNamespace(width=4, pitch=1.2, rows=2)
    axis = Figure().add_subplot()
    multiples._set_axes(axis, chart, layout)
    assert [text.get_text() for text in axis.texts] == ["pre-trained", "fine-tuned"]


def test_no_figure_replaces_another(tmp_path: Path) -> None:
    rows = [
        Measurement(subset, metric, 50.0, 9, length=8, second_axis="1")
        for subset in ("cells", "quality")
        for metric in ("em", "f1")
    ]
    shown = [Heatmap(row.subset, row.metric, f"{row.subset} {row.metric}") for row in rows]
    views = (*shown, Gallery("cells", "em", "curves", "y"))
    put(tmp_path, "rope", rows, views=views)
    table = read_table(tmp_path)
    maps = table.maps()
    names = ["cells", "cells-f1", "quality-em", "quality-f1", "cells-em"]
    assert list(maps) == names and list(maps.values()) == [*views]
    assert [*plan_figures(table, [table])] == names == [*figure_files._plan(table, [table], "rope")]


@pytest.mark.slow
def test_scores_of_parts(tmp_path: Path) -> None:
    figure = draw_scores(put_many(tmp_path, PARTS, PART_COLUMNS))
    (axis,) = figure.axes
    labels = [label for label in axis.get_xticklabels() if label.get_text()]
    expected = ("far ROUGE geometric mean 8", "near F1 12", "close exact match 16")
    for label, words in zip(labels, expected, strict=True):
        assert sorted(label.get_text().split()) == sorted(words.split())
    figure.draw_without_rendering()
    boxes = [label.get_window_extent() for label in labels]
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))
    assert set(legend_of(figure)) == {*LONG, "partly"}


@pytest.mark.slow
def test_many_subsets_wrap_and_many_lengths_keep_their_labels_apart(tmp_path: Path) -> None:
    names = [f"part{i}" for i in range(6)]
    rows = [Measurement(n, "bits", 1.0, 9, 0.1, length) for n in names for length in range(4, 41)]
    put(tmp_path, "rope", rows, views=tuple(Curve(name, "bits") for name in names))
    figure = draw_curves(read_table(tmp_path))
    panels = [axis for axis in figure.axes if axis.get_visible()]
    assert len(panels) == 6 and figure.get_size_inches()[0] < 25
    figure.draw_without_rendering()
    for axis in panels:
        boxes = [label.get_window_extent() for label in axis.get_xticklabels() if label.get_text()]
        assert len(boxes) > 5
        assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))


@pytest.mark.slow
@pytest.mark.usefixtures("real_figures")
def test_heatmaps(tmp_path: Path) -> None:
    """There is a figure of all encodings and one of each. Means are not drawn as cells."""
    view = Heatmap("cells", "em", "A map", (2, None))
    grid = [
        Measurement("cells", "em", 10.0 * i * j, 9, length=i, second_axis=str(j))
        for i in range(1, 4)
        for j in range(1, 4)
    ]
    for encoding in ("rope", "nope"):
        rows = [*grid, Measurement("cells", "em", 40.0, 81), SCORE]
        put(tmp_path, encoding, rows, views=(view,))
    figure = draw(read_table(tmp_path))["cells"]
    assert figure.get_suptitle().startswith("A map (dashed: trained)\n")
    assert [axis.get_title(loc="left") for axis in figure.axes[:2]] == ["nope", "rope"]
    assert (figure.get_supxlabel(), figure.get_supylabel()) == ("depth", "tokens per window")
    assert figure.axes[2].get_ylabel() == "exact match, % ↑"
    (mesh,) = figure.axes[0].collections
    assert np.asarray(mesh.get_array()).tolist() == [[10, 20, 30], [20, 40, 60], [30, 60, 90]]
    paths = [path for path in write_report(tmp_path) if path.suffix == ".png"]
    assert [path.name for path in paths[1:]] == ["nope.png", "rope.png"]
    text = (tmp_path / "leaderboard.md").read_text(encoding="utf-8")
    for path in paths:
        assert f"]({path.relative_to(tmp_path)})" in text
        pixels = image.imread(path)
        assert min(pixels.shape[:2]) > 200 and pixels[..., :3].std() > 0.01


@pytest.mark.slow
@pytest.mark.usefixtures("real_figures")
def test_only_what_has_changed_is_drawn_again(tmp_path: Path) -> None:
    def drawn() -> set[str]:
        """Write the report and return the new figures."""
        before = {path: path.stat().st_ino for path in (tmp_path / "plots").rglob("*.*")}
        write_report(tmp_path)
        paths = (tmp_path / "plots").rglob("*.*")
        return {path.name for path in paths if path.stat().st_ino != before.get(path)}

    put(tmp_path, "rope", [*CURVE, SCORE])
    put(tmp_path, "rope", [*CURVE, SCORE], settings_digest="0ther", task="other")
    assert len(drawn()) == 2 and drawn() == set()
    put(tmp_path, "rope", [replace(CURVE[0], value=2.25), *CURVE[1:], SCORE])
    again = drawn()
    assert len(again) == 1 and all(name.startswith("lm-") for name in again)
    put(tmp_path, "t5", [*CURVE, SCORE], settings_digest="0ther", task="other")
    again = drawn()
    assert len(again) == 1 and all(name.startswith("other-") for name in again)
    (path,) = (tmp_path / "plots").glob("lm-*.png")
    old = path.with_name(f"{path.stem}.pdf")
    old.write_bytes(b"of an earlier version, with other numbers")
    path.write_bytes(path.read_bytes()[:-20])  # an incomplete file is drawn again
    assert drawn() == {path.name} and not old.exists()


@pytest.mark.slow
@pytest.mark.usefixtures("real_figures")
def test_figures_of_an_export_have_the_same_bytes_whatever_code_draws_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Committed figures do not change if the new code draws the same."""
    put(tmp_path / "runs", "rope", [*CURVE, SCORE])
    export = tmp_path / "export"
    write_report(tmp_path / "runs", export=export)
    (figure,) = (export / "plots").glob("*.png")
    before = figure.read_bytes()
    monkeypatch.setattr(figure_files, "_code", lambda: "other code")
    figure.write_bytes(b"")
    write_report(export)
    assert figure.read_bytes() == before
    write_report(tmp_path / "runs")
    (own,) = (tmp_path / "runs" / "plots").glob("*.png")
    assert own.read_bytes() != before  # figures of a results folder contain a digest of the code


@pytest.mark.slow
@pytest.mark.usefixtures("real_figures")
def test_processes_draw_the_same_figures(tmp_path: Path) -> None:
    for number in range(MANY_TABLES):
        put(tmp_path, "rope", [*CURVE, SCORE], settings_digest=f"{number}", task=f"task{number}")
    found = []
    for jobs in (1, 2):
        paths = [path for path in write_report(tmp_path, jobs=jobs) if path.parent.name == "plots"]
        found.append({path: path.read_bytes() for path in paths})
        shutil.rmtree(tmp_path / "plots")
    assert len(found[0]) == MANY_TABLES and found[0] == found[1]


def test_code_that_draws_makes_figures_due(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "rope", [*CURVE, SCORE])
    table = read_table(tmp_path)
    stamps = {figure_files.stamp_of([table], "rope"), figure_files.stamp_of([table], "alibi")}
    for module in (matplotlib, PIL):
        monkeypatch.setattr(module, "__version__", "0.1")
        figure_files._code.cache_clear()
        stamps.add(figure_files.stamp_of([table], "rope"))
    assert len(stamps) == 4
    figure_files._code.cache_clear()


@pytest.mark.slow
def test_many_encodings_have_panels_of_their_own(tmp_path: Path) -> None:
    """Panels are ordered by rank, with all other encodings in grey and the usual marks."""
    names = [f"rope:base={base}" for base in range(1, 11)]
    for rank, name in enumerate(reversed(names)):
        worse = [replace(row, value=row.value + rank / 10) for row in [*CURVE, SCORE]]
        put(tmp_path, name, worse, views=TEST)
    table = read_table(tmp_path)
    figure = draw_curves(table)
    texts = [text.get_text() for axis in figure.axes for text in axis.texts]
    ranked = [
        f"{rank}.\N{NO-BREAK SPACE}{name}" for rank, name in enumerate(table.ranking.order, 1)
    ]
    assert sorted(text for text in texts if ".\N{NO-BREAK SPACE}" in text) == sorted(ranked)
    assert len(figure.axes) == 4 and texts.count("trained to 16") == 4
    own = [line for axis in figure.axes for line in axis.lines if line.get_marker() != "None"]
    chosen = styles(table.encodings)
    found = [(line.get_color(), line.get_marker()) for line in own]
    assert sorted(found) == sorted((style.colour, style.marker) for style in chosen.values())
    figure.draw_without_rendering()
    for axis in figure.axes:
        boxes = [text.get_window_extent() for text in axis.texts]
        assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))


@pytest.mark.slow
def test_many_encodings_have_the_reference_in_bold_where_axes_are_logarithmic(
    tmp_path: Path,
) -> None:
    views = (Curve("test", "bits_per_byte", log_y=True), Curve("test", "bits_per_byte"))
    for base in range(1, 11):
        put(tmp_path, f"rope:base={base}", CURVE, views=views)
    table = read_table(tmp_path)
    assert not table.ranking.names
    figure = draw_curves(table, "rope:base=7")
    bold = [[line for line in axis.lines if line.get_linewidth() > 2] for axis in figure.axes]
    assert [len(lines) for lines in bold] == [1, 0, 1, 0]
    title = " ".join(text.get_text() for text in figure.texts)
    assert "In alphabetical order; grey: all others; bold: rope:base=7" in title
    assert "Not ranked: no run has the first column of scores" in write_notes(table)


def test_galleries(tmp_path: Path) -> None:
    view = Gallery("logit", "mean_logit", "By distance", "mean logit")
    rows = [
        Measurement("logit", "mean_logit", 1.0, 9, length=length, second_axis=str(distance))
        for length in (8, 32)
        for distance in range(0, length, 4)
    ]
    for encoding in ("rope", "nope"):
        put(tmp_path, encoding, rows, views=(view,))
    figure = draw(read_table(tmp_path))["logit"]
    assert (figure.get_supxlabel(), figure.get_supylabel()) == ("depth", "mean logit")
    assert legend_of(figure) == ["8 tokens", "32 tokens"]
    low, high = figure.axes[0].get_ylim()
    assert high - low == pytest.approx(0.2)  # a constant looks constant


@pytest.mark.slow
def test_an_encoding_looks_the_same_in_every_figure() -> None:
    alone = {label: styles([label])[label] for label in [*LONG, "mine.py", "tape"]}
    together = styles([*alone])
    assert together == alone and len({*together.values()}) == len(together)
    many = styles([f"file{i}.py" for i in range(40)] + [f"rope:base={i}" for i in range(20)])
    assert len({*many.values()}) == len(many)  # no two look the same


def test_every_encoding_of_the_folder_has_a_style_of_its_own() -> None:
    names = catalogue.names("encoding")
    declared = [literal_attributes("encoding", name) for name in names]
    assert all({"family", "colour", "marker"} <= set(attributes) for attributes in declared)
    looks = {(attributes["colour"], attributes["marker"]) for attributes in declared}
    assert len(looks) == len(names)


def test_attributes_read_from_source_are_those_of_the_class() -> None:
    for name in ("rope", "tape", "nope"):
        cls = plugins.load("encoding", name).cls
        read = literal_attributes("encoding", name)
        keys = ("family", "colour", "marker")
        assert [read[key] for key in keys] == [getattr(cls, key) for key in keys]


@pytest.mark.slow
def test_maps_that_share_a_background_are_those_drawn_alone(tmp_path: Path) -> None:
    view = Heatmap("cells", "em", "A map", (2, None))
    for factor, encoding in enumerate(("rope", "nope", "pope")):
        cells = [
            Measurement("cells", "em", 10.0 * factor * i * j, 9, length=i, second_axis=str(j))
            for i in range(1, 4)
            for j in range(1, 4)
        ]
        put(tmp_path, encoding, [*cells, SCORE], views=(view,))
    table = read_table(tmp_path)
    shared = {encoding: tmp_path / f"{encoding}.png" for encoding in table.encodings}
    save_heatmaps(table, view, shared)
    for encoding, path in shared.items():
        alone = tmp_path / "alone.png"
        panels.save(draw_map(table, view, [encoding]), [alone])
        assert np.array_equal(image.imread(path), image.imread(alone))
    assert len({path.read_bytes() for path in shared.values()}) == 3


@pytest.mark.usefixtures("real_figures")
@pytest.mark.parametrize("inches", [4.003, 4.004])  # 600.4 and 600.6 pixels
def test_a_figure_has_no_edge_that_was_not_drawn(tmp_path: Path, inches: float) -> None:
    figure = Figure(figsize=(inches, inches))
    for ends in ([-1, 2], [2, -1]):  # lines to all edges
        figure.add_artist(Line2D([-1, 2], ends, transform=figure.transFigure, color="white"))
    path = tmp_path / "figure.png"
    panels.save(figure, [path])
    assert image.imread(path).min() == 1


@pytest.mark.usefixtures("real_figures")
def test_empty_margins_are_cut_off_unless_a_size_is_asked_for(tmp_path: Path) -> None:
    figure = Figure(figsize=(4, 3))
    figure.text(0.5, 0.5, "x")
    shapes = {}
    for crop in (True, False):
        panels.save(figure, [tmp_path / f"{crop}.png"], crop=crop, dpi=100)
        shapes[crop] = image.imread(tmp_path / f"{crop}.png").shape[:2]
    assert shapes[False] == (300, 400)
    assert max(shapes[True]) < 100


def test_files_have_stamp_size_and_no_date(tmp_path: Path) -> None:
    figure = Figure(figsize=(2, 1))
    figure.add_artist(Line2D([0.4, 0.6], [0.5, 0.5]))
    paths = [tmp_path / "new" / f"a.{ending}" for ending in ("PNG", "svg", "pdf")]
    panels.save(figure, paths, "stamp-1", crop=False, dpi=60)
    before = [path.read_bytes() for path in paths]
    for path, content in zip(paths, before, strict=True):
        assert panels.is_stamped(path, "stamp-1") and not panels.is_stamped(path, "stamp-2")
        assert b"Date>" not in content and b"CreationDate" not in content
        path.write_bytes(content[:-1])
        assert not panels.is_stamped(path, "stamp-1")
    assert not panels.is_stamped(tmp_path / "absent.png", "stamp-1")
    panels.save(figure, paths, "stamp-1", crop=False, dpi=60)
    assert [path.read_bytes() for path in paths] == before
    with Image.open(paths[0]) as image:
        assert image.size == (120, 60) and image.info["Comment"] == "stamp-1"
        assert image.info["dpi"] == pytest.approx((60, 60), abs=0.1)
    panels.save(figure, paths[:1])
    with Image.open(paths[0]) as image:
        assert max(image.size) < panels.DPI and "Comment" not in image.info
    with pytest.raises(InputError, match="name ends in"):
        panels.save(figure, [*paths, tmp_path / "a.gif"])


def test_figures_that_share_a_background_are_those_saved_alone(tmp_path: Path) -> None:
    figure = Figure(figsize=(1, 1))
    label = figure.text(0.1, 0.5, "long", zorder=2)
    line = figure.add_artist(Line2D([0, 1], [0.5, 0.5], color="red", linewidth=9, zorder=1))
    figure.add_artist(Line2D([0, 1], [0, 1], color="blue", zorder=0))
    paths = {name: tmp_path / f"{name}.png" for name in ("long", "x")}
    panels.save_each(figure, [label, line], label.set_text, paths, "stamp")
    label.set_animated(False)
    line.set_animated(False)
    for name, path in paths.items():
        label.set_text(name)
        panels.save(figure, [tmp_path / "alone.png"], "stamp", crop=False)
        assert panels.is_stamped(path, "stamp")
        assert path.read_bytes() == (tmp_path / "alone.png").read_bytes()


def test_a_chart_has_one_unit() -> None:
    units = {"accuracy": "%", "exact": "%", "f1": "%", "bits": "bits"}
    table: Any = SimpleNamespace(
        headline=Headline(metric="accuracy", subset="ood"),
        metric=lambda name: SimpleNamespace(unit=units[name]),
    )
    exact, f1, bits = (Column("all", name) for name in ("exact", "f1", "bits"))
    assert curve_charts._of_one_unit(table, [exact, f1]) == [exact, f1]
    assert curve_charts._of_one_unit(table, [bits]) == [bits]
    assert curve_charts._of_one_unit(table, [exact, bits]) == [Column("ood", "accuracy"), exact]
