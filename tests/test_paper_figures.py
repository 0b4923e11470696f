"""`pe-bench report --width`: figures fit a column, and labels do not overlap."""

from itertools import pairwise
from pathlib import Path

import pytest
from helpers import some_slow
from made_runs import CURVE, PART_COLUMNS, PARTS, SCORE, TEST, Rows, put, read_table
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image

from pe_bench.cli import main
from pe_bench.reporting.display_names import display_names
from pe_bench.reporting.paper_captions import describe_figure
from pe_bench.reporting.paper_figures import MOST, plan_figures
from pe_bench.reporting.paper_panels import (
    STYLE,
    _shown_labels,
    finish,
    legend_lines,
    overlapping,
)
from pe_bench.reporting.styles import styles_of
from pe_bench.results.measurement import Measurement
from pe_bench.results.views import Column, Curve, Gallery, Heatmap, View

WIDTHS = [3.25, 5.5]
LONG = [
    *("rope", "tape:base=500000,position_size=16", "alibi", "nope"),
    *("rope -> rope:scaling=yarn,factor=4 [100 steps, batch_size 8, length 512]", "streaming-llm"),
]
METRICS = ("exact_match", "token_accuracy", "bits_per_byte")


def shown_texts(figure: Figure) -> list[Text]:
    """Return the texts of a figure that are drawn and not empty."""
    ticks: set[Text] = set()
    drawn: list[Text] = []
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            ticks |= {*axis.get_ticklabels(), *axis.get_ticklabels(minor=True)}
            for tick in axis.get_major_ticks():
                ticks |= {tick.label1, tick.label2}
            drawn += _shown_labels(axis) if axes.get_visible() else []
    for text in figure.findobj(Text):
        hidden = text.axes is not None and not text.axes.get_visible()
        if isinstance(text, Text) and text not in ticks and not hidden and text.get_visible():
            drawn.append(text)
    return [text for text in drawn if text.get_text().strip()]


def cells(subset: str, lengths: tuple[int, ...], xs: tuple[int, ...]) -> list[Measurement]:
    return [
        Measurement(subset, "accuracy", (length * x) % 100, 9, 1.0, length, f"{x}")
        for length in lengths
        for x in xs
    ]


def many_curves() -> tuple[list[Measurement], tuple[View, ...]]:
    """Return curves of several metrics, with long lengths and long titles."""
    rows = []
    views: list[View] = []
    for number, metric in enumerate(METRICS):
        for length in (64, 96, 1_024, 4_096, 16_384, 65_536, 131_072):
            value = 1.0 + (length % 90) / (number + 1)
            rows.append(Measurement("long", metric, value, 9, 0.5, length, "", value, value + 1))
        title = "the key tokens among the same tokens under more context"
        views.append(Curve("long", metric, title=title, x="context, tokens (those that count)"))
    return rows, tuple(views)


SQUARE = cells("grid", (8, 16, 32, 1_024), (1, 2, 3, 1_000))
KINDS: dict[str, tuple[Rows, tuple[View, ...]]] = {
    "curves": many_curves(),
    "one curve": (CURVE, TEST),
    "parts": (PARTS, PART_COLUMNS),
    "maps": (SQUARE, (Heatmap("grid", "accuracy", "cells", trained=(2, 16)),)),
    "gallery": (SQUARE, (Gallery("grid", "accuracy", title="logits", y="mean attention logit"),)),
}


def check_texts(figure: Figure) -> None:
    """Every text is inside, has at least 7 points, and overlaps no other; so do legends."""
    with rc_context(STYLE):
        figure.draw_without_rendering()
    texts = shown_texts(figure)
    assert texts and min(float(text.get_fontsize()) for text in texts) >= 7
    boxes = [text.get_window_extent() for text in texts]
    boxes += [legend.get_window_extent() for legend in figure.legends]
    for box in boxes:
        assert box.x0 >= -1 and box.y0 >= -1
        assert box.x1 <= figure.bbox.width + 1 and box.y1 <= figure.bbox.height + 1
    assert overlapping(texts) == []


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kind", some_slow(KINDS, []))
def test_labels_fit_and_do_not_overlap(tmp_path: Path, kind: str, width: float) -> None:
    rows, views = KINDS[kind]
    for encoding in LONG:
        put(tmp_path, encoding, [SCORE, *rows], views=views)
    table = read_table(tmp_path)
    figures = plan_figures(table, [table])
    assert len(figures) == 1
    for _, draw in figures.values():
        figure = draw(width, display_names(table.records), table.ranking.order)
        assert figure.get_figwidth() == width
        check_texts(figure)


def test_texts_that_overlap_are_found() -> None:
    figure = Figure()
    figure.text(0.5, 0.5, "one")
    figure.text(0.5, 0.5, "two")
    figure.text(0.1, 0.1, "three")
    assert overlapping(shown_texts(figure)) == [("one", "two")]
    figure.text(0.999, 0.5, "outside")
    with pytest.raises(AssertionError):
        check_texts(figure)


def test_labels_that_overlap_are_removed_and_common_ones_are_centred() -> None:
    figure = Figure(figsize=(2.0, 1.5), layout="constrained")
    axis = figure.subplots()
    common = (figure.supxlabel("x"), figure.supylabel("y"))
    axis.set_xticks(range(12), [f"{place},000,000" for place in range(12)])
    axis.set_yticks([0, 1], ["low", "high"])
    finish(figure)
    shown = [place for place, label in enumerate(axis.get_xticklabels()) if label.get_text()]
    steps = {later - place for place, later in pairwise(shown)}
    assert shown[-1] == 11 and len(steps) == 1 and len(shown) > 1
    texts = shown_texts(figure)
    box = axis.get_position()
    assert common[0].get_position()[0] == pytest.approx((box.x0 + box.x1) / 2)
    assert common[1].get_position()[1] == pytest.approx((box.y0 + box.y1) / 2)
    assert overlapping(texts) == [] and {"low", "high"} < {text.get_text() for text in texts}


@pytest.mark.slow
def test_files_have_the_width_and_only_what_was_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    style = {"encoding": {"style": {"label": "Mine & yours", "colour": "#ff00aa"}}}
    for encoding in ("mine.py", "rope", "alibi"):
        put(tmp_path, encoding, [SCORE, *CURVE], described=style, settings_digest="5e77")
        put(tmp_path, encoding, [SCORE, *CURVE], task="other", settings_digest="07e4")
    words = ["report", str(tmp_path), "--task", "lm", "--encoding", "./mine.py", "rope"]
    assert main([*words, "--width", "3.25", "--label", "rope=Rotary"]) == 0
    folder = tmp_path / "figures"
    (pdf,) = folder.glob("*.pdf")
    assert str(pdf) in capsys.readouterr().out
    assert {path.name for path in tmp_path.iterdir()} == {"runs", "figures"}
    assert {path.suffix for path in folder.iterdir()} == {".pdf", ".svg", ".png", ".txt"}
    with Image.open(pdf.with_suffix(".png")) as image:
        assert image.width == round(3.25 * 300)
    svg = pdf.with_suffix(".svg").read_text(encoding="utf-8")
    assert 'width="234pt"' in svg  # 3.25 inches of 72 points
    assert "Mine &amp; yours" in svg and "Rotary" in svg and "#ff00aa" in svg
    assert "ALiBi" not in svg and "alibi" not in svg
    caption = pdf.with_suffix(".txt").read_text(encoding="utf-8")
    assert "lm (preset quick; protocol strict" in caption and "c" * 10 in caption


def test_a_caption_says_which_values_were_changed(tmp_path: Path) -> None:
    train = {"steps": 20, "lr": 0.1, "batch_size": 2}
    tune = {"lr": [0.1], "seeds": [7]}
    settings = {"model": {"layers": 2, "heads": 4, "width": 64}, "train": train, "tune": tune}
    options = ("--tune", "--tune.seeds", "7", "--train.steps", "20")
    put(tmp_path, "rope", [SCORE, *CURVE], settings=settings, options=options)
    caption = describe_figure(read_table(tmp_path), "scores")
    assert "models of 2 layers of width 64; 20 training steps" in caption
    assert "learning rates tuned for each encoding; changed: --train.steps 20)" in caption


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--width", "1"], "--width must be from 2 to 20, not 1.0"),
        (["--width", "wide"], "--width"),
        (["--task", "lmm"], "no results of a task 'lmm' (did you mean 'lm'?)"),
        (["--encoding", "ropee"], "no results of 'ropee' (did you mean 'rope'?)"),
        (["--width", "3", "--export", "x"], "--export is for a whole report, and --width"),
        (["--task", "lm"], f"encodings, but a figure shows at most {MOST}"),
    ],
)
def test_wrong_options_are_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    for number in range(MOST + 1):
        put(tmp_path, f"rope:base={number}", [SCORE, *CURVE])
    put(tmp_path, "rope", [SCORE, *CURVE])
    try:
        code = main(["report", str(tmp_path), *words])
    except SystemExit as error:
        code = int(error.code or 0)
    assert code == 2 and says in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"runs"}


def test_a_task_without_figures_is_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(tmp_path, "rope", [SCORE], views=(Column("all", "bits_per_byte"),))
    assert main(["report", str(tmp_path), "--width", "3.25"]) == 2
    assert "has no figures: choose other tasks" in capsys.readouterr().err


@pytest.mark.slow
def test_colours_are_those_of_the_report(tmp_path: Path) -> None:
    for encoding in ("rope", "alibi", "rope:base=5"):
        put(tmp_path, encoding, [SCORE, *CURVE])
    table = read_table(tmp_path)
    (_, draw) = plan_figures(table, [table])[""]
    figure = draw(5.5, display_names(table.records), table.encodings)
    drawn = {(line.get_color(), line.get_marker()) for line in figure.axes[0].lines}
    assert {(one.colour, one.marker) for one in styles_of(table.records).values()} < drawn


def test_a_legend_has_no_more_columns_than_labels() -> None:
    assert legend_lines(["a", "b"], 6.0) == (["a", "b"], 2, 1)
    wrapped, columns, lines = legend_lines(["word " * 20, "b", "c"], 3.0)
    assert columns == 1 and lines == 3 * (wrapped[0].count("\n") + 1) > 3
    assert legend_lines([], 6.0) == ([], 0, 0)
