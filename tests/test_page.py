"""index.html: its contents; nothing in it is interpreted as HTML, and it loads nothing."""

import inspect
import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from made_runs import CURVE, SCORE, put, read_table
from shown_runs import put_baselines

from pe_bench.registry import catalogue, plugins
from pe_bench.registry.importing import Kind
from pe_bench.reporting import paired
from pe_bench.reporting.charts_json import list_charts
from pe_bench.reporting.curve_charts import make_curves
from pe_bench.reporting.page import commands, content, prose, write
from pe_bench.reporting.page.bars import interval_bar, scale_of
from pe_bench.reporting.page.colours import dark, luminance
from pe_bench.reporting.page.descriptions import describe_labels, describe_source
from pe_bench.reporting.page.provenance import training_facts
from pe_bench.reporting.page.write import NAME, embed, write_page
from pe_bench.reporting.report_data import ReportData
from pe_bench.reporting.styles import family_of, styles
from pe_bench.reporting.tables import make_tables, read_tables
from pe_bench.reporting.task_summary import find_summaries
from pe_bench.results.export import write_export
from pe_bench.results.store import read_records
from pe_bench.results.views import Column, Curve, Gallery, Headline, Heatmap
from pe_bench.runs.describe import describe_encoding, describe_task
from pe_bench.runs.options import RunOptions
from pe_bench.runs.resolve import resolve

SHIPPED: list[tuple[Kind, str]] = [
    (kind, name) for kind in ("encoding", "task") for name in catalogue.names(kind)
]
EVIL = "</script><img src=x onerror=alert(1)>'\"&amp;\u2028"


class Reader(HTMLParser):
    """Parser that collects elements, attributes that load resources, data and text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.texts: list[str] = []
        self.data = ""
        self.inside = ""

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        given = dict(attrs)
        self.links += [given[name] or "" for name in ("src", "href", "action") if name in given]
        self.inside = "data" if given.get("id") == "data" else tag
        assert not any(name.startswith("on") for name in given)

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside == "data":
            self.data += data
        elif self.inside not in ("script", "style"):
            self.texts.append(data)


def make_page(root: Path) -> Path:
    """Write the page of a results folder."""
    records = read_records(root)
    tables = make_tables(records)
    compared = [paired.compare_table(table) for table in tables]
    return write_page(root, ReportData(tables, compared, records, find_summaries(tables)))


def read_page(root: Path) -> Reader:
    reader = Reader()
    reader.feed(make_page(root).read_text(encoding="utf-8"))
    return reader


def put_tasks(root: Path) -> None:
    """Write three tasks of three encodings and three seeds, and a run that failed."""
    for number, task in enumerate(("one", "two", "three")):
        for index, encoding in enumerate(("rope", "alibi", "nope")):
            for seed in range(3):
                rows = [replace(SCORE, metric="f1", value=20 + 10 * index + number + seed)]
                rows += [replace(row, metric="f1", value=50.0 + index) for row in CURVE]
                views = (Column("test", "f1"), Curve("test", "f1", "by length"))
                put(root, encoding, rows, seed, task=task, settings_digest=f"5e7{number}",
                    headline=Headline("f1", "all"), views=views)  # fmt: skip
        guessing = [replace(SCORE, metric="f1", value=1.0)]
        put_baselines(root, task, f"5e7{number}", {"guessing": guessing})
    put(root, "fire", [], task="one", status="failed", reason="ValueError: it <broke>")


@pytest.mark.slow
def test_everything_is_on_the_page(tmp_path: Path) -> None:
    put_tasks(tmp_path)
    page = read_page(tmp_path)
    text = " ".join(" ".join(page.texts).split())
    assert "3 encodings, 3 tasks, 3 seeds, 27 runs" in text
    assert "mean rank ↓" in text and "Means over 3 families of tasks (3 tasks)" in text
    # This text is not recorded, so it comes from the source.
    assert "Linear biases: each head forgets at its own rate" in text
    assert "logit_ij -= slope_h (i - j)" in text and "From the present source" in text
    assert "fire on one, seed 0: failed, ValueError: it <broke>" in text
    command = "pe-bench run --encoding alibi nope rope --task two --seeds 0-2 --preset quick"
    assert command in text
    data = json.loads(page.data)
    assert [one["label"] for one in data["encodings"]] == ["alibi", "nope", "rope"]
    (table,) = (one for one in data["tables"].values() if one["heading"].startswith("two"))
    assert table["values"]["alibi"][0] == [[n, 31 + n, None, None, 9] for n in range(3)]
    assert table["runs"]["alibi"][0][3] == "cccccccccc with changes"


@pytest.mark.slow
def test_encodings_of_the_user_come_first(tmp_path: Path) -> None:
    for encoding, value in (("alibi", 3.0), ("rope -> zone.py [lora]", 2.0), ("rope", 1.0)):
        finished = f"2026-02-0{value:.0f}T10:00:00+00:00"
        put(tmp_path, encoding, [replace(SCORE, value=value), *CURVE], finished=finished)
    put(tmp_path, "alibi", [SCORE], task="earlier", settings_digest="1")
    page = read_page(tmp_path)
    text = " ".join(" ".join(page.texts).split())
    counts = "3 encodings, 2 tasks, 1 seed, 4 runs; the latest of 2026-02-03"
    assert counts in text and f"{counts}T" not in text
    data = json.loads(page.data)
    assert [one["label"] for one in data["encodings"]] == [
        "rope -> zone.py [lora]",
        "alibi",
        "rope",
    ]
    (table,) = (one for one in data["tables"].values() if one["task"] == "lm")
    assert table["ranking"] == ["rope -> zone.py [lora]", "rope", "alibi"]
    tasks = [link for link in page.links if link.startswith("#task-")]
    assert tasks[:2] == ["#task-lm", "#task-earlier"]


def test_runs_of_the_folder_stand_above_those_of_exports(tmp_path: Path) -> None:
    put(tmp_path, "rope", [SCORE, *CURVE])
    own = put(tmp_path, "alibi", [replace(SCORE, value=12.5), *CURVE], 1)
    assert "Runs of this folder" not in " ".join(read_page(tmp_path).texts)  # all are
    records = read_records(tmp_path)
    write_export(tmp_path / "sent", [one for one in records if one.encoding == "rope"])
    shutil.rmtree(next((tmp_path / "runs").glob("*/rope")))
    page = read_page(tmp_path)
    text = " ".join(" ".join(page.texts).split())
    section = text.partition("come from these exports.")[2].partition(" Tasks ")[0]
    assert own.parent.name == "alibi" and "alibi" in section and "12.50" in section
    assert "rope" not in section and "#own" in page.links


@pytest.mark.slow
def test_it_loads_nothing(tmp_path: Path) -> None:
    put_tasks(tmp_path)
    page = read_page(tmp_path)
    assert all(link.startswith(("#", "data:")) for link in page.links)
    anchors = re.findall(r' id="([^"]+)"', (tmp_path / NAME).read_text(encoding="utf-8"))
    assert len(anchors) == len(set(anchors))
    assert {link[1:] for link in page.links if link.startswith("#")} <= set(anchors)
    policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
    assert policy in (tmp_path / NAME).read_text(encoding="utf-8")


@pytest.mark.slow
def test_names_are_text(tmp_path: Path) -> None:
    changed: dict[str, Any] = {"described": {"encoding": {"summary": EVIL, "text": EVIL}}}
    views = (Column("test", "bits_per_byte", EVIL), Curve("test", "bits_per_byte", EVIL, EVIL))
    put(tmp_path, EVIL, [*CURVE, SCORE], task=EVIL, views=views, data={"label": EVIL}, **changed)
    put(tmp_path, "rope", [*CURVE, SCORE], task=EVIL, views=views, data={"label": EVIL})
    put(tmp_path, "fire", [], status="failed", reason=EVIL)
    page = read_page(tmp_path)
    assert "img" not in page.tags and "alert(1)" in "".join(page.texts)
    assert json.loads(page.data)["encodings"][0]["label"] == EVIL
    put_tasks(tmp_path / "plain")
    assert page.tags.count("script") == read_page(tmp_path / "plain").tags.count("script") == 7


@pytest.mark.slow
def test_the_same_results_give_the_same_page(tmp_path: Path) -> None:
    put_tasks(tmp_path)
    first = make_page(tmp_path).read_bytes()
    assert make_page(tmp_path).read_bytes() == first


def test_nothing_to_compare_is_a_page_too(tmp_path: Path) -> None:
    put(tmp_path, "rope", [], status="failed", reason=None)
    assert "0 encodings" in "".join(read_page(tmp_path).texts)


def test_json_in_a_script_has_no_tags() -> None:
    text = str(embed([EVIL]))
    assert not set("<>&\u2028") & set(text) and json.loads(text) == [EVIL]
    with pytest.raises(ValueError, match="JSON"):
        embed(float("nan"))


def test_licences_are_of_the_scripts_that_are_there() -> None:
    vendor = Path(write.__file__).parent / "vendor"
    licences = (vendor / "LICENSES.txt").read_text(encoding="utf-8")
    for name, words in (("d3.min.js", "D3 {}"), ("plot.umd.min.js", "Observable Plot {}")):
        first = (vendor / name).read_text(encoding="utf-8").partition("\n")[0]
        (version,) = re.findall(r" v(\d+\.\d+\.\d+) ", first)
        assert words.format(version) in licences
    assert licences.count("Permission to use, copy, modify") == 2 and "*/" not in licences


def test_docstrings_become_html() -> None:
    text = """A `b` <i>c</i>:

    x = a < b
      y

| here | there |
|---|---|
| `1` | 2 |

Shortcuts:
    n-gram table of c: said.

Args:
    size: how much,
        and of what.
    other: <b>"""
    html = str(prose.render(text))
    assert "<p>A <code>b</code> &lt;i&gt;c&lt;/i&gt;:</p>" in html
    assert "<pre>x = a &lt; b\n  y</pre>" in html
    assert "<th>here</th>" in html and "<td><code>1</code></td>" in html and "---" not in html
    assert "<dt><code>size</code></dt><dd>how much, and of what.</dd>" in html
    assert "<dt><code>n-gram table of c</code></dt><dd>said.</dd>" in html
    assert html.endswith("<dd>&lt;b&gt;</dd></dl>")


@pytest.mark.parametrize(("kind", "name"), SHIPPED)
def test_the_source_says_what_the_class_says(kind: Kind, name: str) -> None:
    said = describe_source(kind, name)
    cls = plugins.load(kind, name).cls
    assert said["text"] == inspect.cleandoc(cls.__doc__ or "")
    assert said["summary"] == catalogue.describe(kind, name)


def test_unknown_plugins_say_nothing() -> None:
    assert describe_source("encoding", "mine.py:size=4") == {}


def test_runs_record_what_plugins_say(tmp_path: Path) -> None:
    task = resolve(RunOptions(cache=tmp_path), "flipflop")
    alibi = describe_encoding(task, plugins.load("encoding", "alibi"))
    assert alibi["facts"]["shift_invariant"] and "sdpa" in alibi["runs_on"]
    assert "slope_h" in alibi["text"] and "flip-flop" in describe_task(task)["text"].lower()
    texts = {"encoding": alibi, "task": describe_task(task)}
    for seed in range(2):
        put(tmp_path / "runs-of", "alibi", [SCORE], seed, described=texts)
    put(tmp_path / "runs-of", "mine.py", [SCORE])
    write_export(tmp_path / "small", read_records(tmp_path / "runs-of"))
    records = read_records(tmp_path / "small")
    assert [bool(record.described) for record in records] == [True, True, False]
    assert describe_labels("encoding", records) == {"alibi": alibi, "mine.py": {}}
    assert (tmp_path / "small" / "records.json").read_text().count("slope_h (i - j)") == 1


def test_charts_have_the_numbers(tmp_path: Path) -> None:
    grid = [
        replace(SCORE, subset="grid", metric="f1", length=n, second_axis=str(m), value=10 * n + m)
        for n in (1, 2)
        for m in (1, 2, 4)
    ]
    views = (
        Curve("test", "bits_per_byte", "by length"),
        Heatmap("grid", "f1", "a grid", (2, 1)),
        Gallery("grid", "f1", "lines", "logit"),
    )
    costs = {"all": {"training": {"seconds": 5}}, "test": {"training": {"seconds": 5}}}
    put(tmp_path, "rope", [SCORE, *CURVE, *grid[:-1]], views=views, costs=costs)
    missed = replace(SCORE, value=2.0, status="not_learned")
    put(tmp_path, "nope", [missed, *CURVE, *grid], views=views, costs=costs)
    (table,) = read_tables(tmp_path)
    charts = list_charts(table, [table])
    assert list(charts) == ["curves", "maps", "galleries", "costs"]
    (curve,) = charts["curves"]
    assert curve["series"]["rope"][0] == [8, 2.125, 1.635, 2.615, 1]
    assert curve["trained"] == [[16, "trained to 16", "left"]] and curve["y"] == "bits per byte ↓"
    (heat,) = charts["maps"]
    assert heat["border"] == [[2, 0], [2, 1], [0, 1]]  # trained up to 2 and 1
    assert heat["series"]["rope"] == [[11, 12, 14], [21, 22, None]] and heat["limits"] == [0, 100]
    assert charts["galleries"][0]["series"]["nope"][1] == [2, [[1, 21], [2, 22], [4, 24]]]
    (cost,) = charts["costs"]
    assert cost["series"] == {"rope": [5, 1], "nope": [5, 2]} and cost["hollow"] == ["nope"]


def test_the_cost_of_an_encoding_is_the_median_over_seeds(tmp_path: Path) -> None:
    for encoding in ("rope", "nope"):
        for seed, seconds in enumerate((2.0, 3.0, 40.0)):
            training = {"seconds": seconds}
            costs = {"all": {"training": training}}
            put(tmp_path, encoding, [SCORE], seed, costs=costs)
    (table,) = read_tables(tmp_path)
    (chart,) = list_charts(table, [table])["costs"]
    assert chart["series"] == {"rope": [3, 1], "nope": [3, 1]}


@pytest.mark.parametrize(
    ("metric", "says"),
    [
        ("bits_per_byte", "best mean is that of rope (1.000), the last that of nope (2.500)"),
        ("f1", "best mean is that of nope (2.5 %), the last that of rope (1.0 %)"),
    ],
)
def test_curves_say_which_is_best_and_bars_are_one_deviation(
    tmp_path: Path, metric: str, says: str
) -> None:
    view = Curve("test", metric)
    for encoding, values in (("rope", (0.5, 1.5)), ("nope", (2.0, 3.0))):
        for seed, value in enumerate(values):
            point = replace(CURVE[0], metric=metric, value=value)
            headline = Headline(metric, "test")
            put(tmp_path, encoding, [point], seed, views=(view,), headline=headline)
    (table,) = read_tables(tmp_path)
    (curve,) = make_curves(table)
    assert curve.says == f"At 8 the {says}"
    deviation = 0.5**0.5  # sd of 2 and 3
    (point_of_nope,) = curve.series["nope"]
    assert point_of_nope[1:4] == pytest.approx((2.5, 2.5 - deviation, 2.5 + deviation))


@pytest.mark.parametrize(
    ("cell", "shown"),
    [("1 to 9 (abcdefghijkl)", "1 to 9 (abcdef…)"), ("abcdefghijkl", "abcdef…"), ("abc", "abc")],
)
def test_many_letters_are_cut(cell: str, shown: str) -> None:
    assert prose.cut_letters(cell) == shown
    assert prose.cut_letters("not significant") == "not significant"


def test_seeds_in_commands_are_short() -> None:
    assert commands.show_seeds([4, 0, 1, 2, 7]) == ["0-2", "4", "7"]


def test_bars_stay_in_their_cells() -> None:
    scale = scale_of([[20.0, float("nan")], [110.0]], percent=True)
    assert scale == (20.0, 100.0)
    bar = interval_bar(scale, 60.0, 0.0, 110.0, 20.0)
    assert bar is not None
    assert (bar.left, bar.width, bar.middle, bar.baseline) == (0.0, 100.0, 50.0, 0.0)
    assert interval_bar(scale, 60.0, float("nan"), 80.0) is None
    assert scale_of([[3.0]], percent=False) == (2.5, 3.5)


def test_bars_of_differences_mark_zero() -> None:
    pairs = [
        SimpleNamespace(value=2.0, low=-1.0, high=3.0),
        SimpleNamespace(value=1, low=1, high=1),
    ]
    comparison: Any = SimpleNamespace(to_reference=pairs)
    rows = content._difference_rows(comparison, [["tape", "+2"], ["nope", "+1"]])
    bars = [row.bars[1] for row in rows]
    assert [(bar.left, bar.middle, bar.baseline) for bar in bars] == [
        (0.0, 75.0, 25.0),
        (50.0, 50.0, 25.0),
    ]


def test_every_encoding_has_a_family_and_can_be_seen_in_the_dark() -> None:
    names = catalogue.names("encoding")
    assert "other" not in {family_of(name) for name in names}
    assert family_of("mine.py") == "other" and family_of("rope:base=5") == "rotary"
    for style in styles(names).values():
        colour = dark(style.colour)
        channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        assert luminance(*channels) > 0.28


@pytest.mark.parametrize(
    ("subsets", "titles"),
    [
        (["by-blanks"], ["by tokens"]),
        (["passkey-length"], ["by tokens"]),
        (["first-length", "latest-length"], ["first, by tokens", "latest, by tokens"]),
        (["diagonal"], ["diagonal, by tokens"]),
        (["in-distribution", "sparse"], ["as in training, by tokens", "sparse"]),
    ],
)
def test_titles_of_panels_say_what_is_shown(
    tmp_path: Path, subsets: list[str], titles: list[str]
) -> None:
    rows = [replace(row, subset=subset) for subset in subsets for row in CURVE]
    rows = [replace(row, value=row.value + index) for index, row in enumerate(rows)]
    views = tuple(Curve(subset, "bits_per_byte") for subset in subsets)
    axes = {"length": "tokens (padding included)"}
    put(tmp_path, "rope", [SCORE, *rows], views=views, axes=axes)
    (table,) = read_tables(tmp_path)
    assert [chart.title for chart in make_curves(table)] == titles


def test_labels_are_broken_between_their_options() -> None:
    html = str(prose.breakable("a:b=1,<c=&:"))
    assert html == "a:<wbr>b=<wbr>1,<wbr>&lt;c=<wbr>&amp;:"
    assert str(prose.breakable("a=2,b · 1,459,904 parameters")) == (
        "a=<wbr>2,<wbr>b · 1,459,904 parameters"
    )


def test_a_page_says_which_learning_rate_was_used(tmp_path: Path) -> None:
    train = {"steps": 1000, "batch_size": 8, "lr": 0.003}
    for name, more in (("given", {}), ("searched", {"tune": {"lr": [0.001], "seeds": [1000]}})):
        put(tmp_path / name, "rope", CURVE, settings={"train": train, **more})
    rates = [
        dict(training_facts(read_table(tmp_path / name)))["learning rate"]
        for name in ("given", "searched")
    ]
    assert rates == ["3e-3", "chosen for every encoding"]
