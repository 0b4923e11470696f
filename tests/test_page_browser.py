"""index.html in a real browser: it runs, sorts, filters, saves charts, and loads nothing."""

import csv
import io
import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from made_runs import CURVE, SCORE, put
from test_page import EVIL, make_page

from pe_bench.reporting import paired
from pe_bench.reporting.page.write import write_page
from pe_bench.reporting.report_data import ReportData
from pe_bench.reporting.tables import make_tables
from pe_bench.reporting.task_summary import find_summaries
from pe_bench.results.record import RunRecord
from pe_bench.results.store import read_records
from pe_bench.results.views import Column, Curve

pytestmark = pytest.mark.slow  # test_page.py looks at the page without a browser
sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

RESULTS = Path(__file__).parents[1] / "results" / "quick"
TASKS = ("flipflop", "mqar", "passkey")  # table-0 to table-2 always exist
ENCODINGS = ("alibi", "fire", "nope", "randpe", "rope", "t5", "tape")
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SIZES = {"desk": (1440, 900), "phone": (390, 844)}
Page = Any  # playwright may be missing when types are checked


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip(f"there is no browser: none of {', '.join(BROWSERS)}")
    with sync_api.sync_playwright() as started:
        arguments = ["--no-sandbox"] if os.getuid() == 0 else []
        opened = started.chromium.launch(executable_path=path, args=arguments)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the page of the committed results."""
    records = [one for one in read_records(RESULTS) if one.task.startswith(TASKS)]
    records = [one for one in records if one.encoding in ENCODINGS and one.seed <= 5]
    return write(records, tmp_path_factory.mktemp("page"))


def write(records: Sequence[RunRecord], folder: Path) -> Path:
    """Write the page of some runs."""
    tables = make_tables(records)
    compared = [paired.compare_table(table) for table in tables]
    return write_page(folder, ReportData(tables, compared, records, find_summaries(tables)))


def visit(browser: Any, path: Path, size: str = "desk", scheme: str = "light") -> Page:
    """Open a page; the test fails if the page reports an error or loads anything."""
    width, height = SIZES[size]
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    context.set_offline(True)
    page = context.new_page()
    page.complaints = []
    page.requests = []
    page.on("console", lambda message: page.complaints.append(message.text))
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    page.on("request", lambda request: page.requests.append(request.url))
    page.goto(path.as_uri())
    return page


def close(page: Page) -> None:
    """Check that there were no errors, and no requests to a network or a disk."""
    others = [url for url in page.requests if not url.startswith("data:")]
    assert len(others) == 1 and others[0].startswith("file:") and others[0].endswith("index.html")
    assert page.complaints == []
    page.context.close()


def shown(page: Page, table: str) -> list[str]:
    """Return the encodings of a table in the displayed order."""
    rows = page.locator(f"table[data-table='{table}'] tbody tr[data-e]:visible th")
    found: list[str] = rows.all_inner_texts()
    return [text.strip() for text in found]


def test_long_labels_fit(browser: Any, tmp_path: Path) -> None:
    """Labels of published models have more characters than a phone has in a line."""
    records = read_records(RESULTS.parent / "pretrained")
    assert max(len(record.encoding) for record in records) > 60
    page = visit(browser, write(records, tmp_path), "phone")
    assert page.evaluate("document.documentElement.scrollWidth") == SIZES["phone"][0]
    close(page)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", list(SIZES))
def test_it_fits_and_all_charts_are_drawn(browser: Any, file: Path, size: str, scheme: str) -> None:
    page = visit(browser, file, size, scheme)
    width = SIZES[size][0]
    height = page.evaluate("document.documentElement.scrollHeight")
    page.set_viewport_size({"width": width, "height": height})  # the whole chart becomes visible
    page.locator(".canvas:empty").first.wait_for(state="detached", timeout=0)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    drawn = page.locator(".canvas svg").count()
    assert drawn == page.locator(".canvas").count() > 20  # curves, maps, costs
    outside = """() => [...document.querySelectorAll('.canvas svg')].filter(svg => {
        const box = svg.closest('.panel').getBoundingClientRect();
        return [...svg.querySelectorAll('text')].some(text => {
            const own = text.getBoundingClientRect();
            return own.width && (own.left < box.left || own.right > box.right);
        });
    }).length"""
    assert page.evaluate(outside) == 0
    # Filters scroll if there is no room for them; their words are not broken.
    page.add_style_tag(content=".filters .group { flex: none; width: 5rem; }")
    squeezed = """() => [...document.querySelectorAll('.chip')].filter(chip => {
        const box = chip.getBoundingClientRect();
        return box.width && box.width < box.height;
    }).map(chip => chip.innerText)"""
    assert page.evaluate(squeezed) == []
    close(page)


def test_headings_sort(browser: Any, file: Path) -> None:
    page = visit(browser, file)
    before = shown(page, "table-0")
    heading = page.locator("table[data-table='table-0'] thead th").nth(2)
    assert heading.get_attribute("aria-sort") == "descending"
    heading.click()
    assert shown(page, "table-0") == before[::-1]
    assert heading.get_attribute("aria-sort") == "ascending"
    page.locator("table[data-table='table-0'] thead th").first.click()
    assert shown(page, "table-0") == sorted(before)
    assert heading.get_attribute("aria-sort") is None
    close(page)


def test_filters_hide_rows_curves_and_sections(browser: Any, file: Path) -> None:
    page = visit(browser, file)
    page.locator("#search").fill("ro")
    assert shown(page, "table-0") == ["rope"]
    assert page.locator("#shown").inner_text() == "1 of 7 encodings"
    assert page.locator("details.encoding:visible").count() == 1
    chart = page.locator("[data-charts='table-1'] .canvas").first
    chart.scroll_into_view_if_needed()
    chart.locator("svg").wait_for()
    assert chart.locator("g.curve[aria-label=dot]").count() == 1
    page.locator("#search").fill("")
    page.get_by_role("button", name="bias", exact=True).click()
    assert sorted(shown(page, "table-0")) == ["nope", "randpe", "rope", "tape"]
    page.get_by_role("button", name="bias", exact=True).click()
    page.locator("#learned").check()
    assert "nope" in shown(page, "table-0") and "nope" not in shown(page, "table-1")
    close(page)


def test_curves_answer_a_pointer_and_can_be_switched_off(browser: Any, file: Path) -> None:
    page = visit(browser, file)
    charts = page.locator("[data-charts='table-1']")
    chart = charts.locator(".canvas").first
    chart.scroll_into_view_if_needed()
    chart.locator("svg").wait_for()
    assert chart.locator("g.curve[aria-label=dot]").count() == 7
    point = chart.locator("g.curve[aria-label=dot] path").last.bounding_box()
    page.mouse.move(point["x"] + point["width"] / 2, point["y"] + point["height"] / 2)
    words = chart.locator("g[aria-label=tip] text").text_content()
    assert re.search(r"1,024: \d+.*mean ± sd: .*5 seeds", " ".join(words.split()))
    charts.get_by_role("button", name="tape", exact=True).click()
    assert chart.locator("g.curve[aria-label=dot]").count() == 6
    charts.get_by_role("button", name="none", exact=True).click()
    assert chart.locator("g.curve[aria-label=dot]").count() == 0
    heat = charts.locator(".small .canvas").first
    heat.scroll_into_view_if_needed()
    heat.locator("svg").wait_for()
    cell = heat.locator("g[aria-label=rect] rect").first.bounding_box()
    page.mouse.move(cell["x"] + cell["width"] / 2, cell["y"] + cell["height"] / 2)
    assert "pairs" in heat.locator("g[aria-label=tip] text").text_content()
    close(page)


def see(page: Page, figure: Any) -> Any:
    """Scroll to a chart and return it when it is drawn."""
    figure.scroll_into_view_if_needed()
    figure.locator("svg").wait_for()
    return figure


def save(page: Page, figure: Any, kind: str) -> tuple[str, str]:
    """Save a chart with the keyboard and return the file's name and content."""
    with page.expect_download() as download:
        figure.get_by_role("button", name=kind).focus()
        page.keyboard.press("Enter")
    content = Path(download.value.path()).read_text(encoding="utf-8")
    return download.value.suggested_filename, content


def test_learning_curves_have_a_choice_of_quantity(browser: Any, file: Path) -> None:
    page = visit(browser, file)
    charts = page.locator("[data-charts='table-1']")
    figure = see(page, charts.locator("figure", has=page.locator("select")))
    lines = figure.locator("g.curve[aria-label=line]")
    assert lines.count() == 7 == figure.locator("g.curve[aria-label=area]").count()
    losses = lines.first.locator("path").get_attribute("d")
    figure.get_by_label("Quantity").select_option("learning rate")
    assert figure.locator("figcaption").inner_text().startswith("Training: learning rate")
    assert lines.first.locator("path").get_attribute("d") != losses
    assert figure.locator("g.curve[aria-label=area]").count() == 0  # all seeds have one rate
    charts.get_by_role("button", name="tape", exact=True).click()
    assert lines.count() == 6
    name, text = save(page, figure, "CSV")
    assert name == "mqar-quick-strict-data=mqar-v2-training-learning-rate.csv"
    head, *rows = csv.reader(io.StringIO(text))
    assert head == ["encoding", "optimizer steps", "learning rate", "low", "high", "seeds"]
    assert {row[0] for row in rows} == {*ENCODINGS} - {"tape"}
    assert len(rows) == 6 * 100 and rows[99][1] == "1600"
    close(page)


def test_every_chart_can_be_saved(browser: Any, file: Path) -> None:
    page = visit(browser, file, scheme="dark")
    charts = page.locator("[data-charts='table-1']")
    data = json.loads(page.locator("#data").text_content())["tables"]["table-1"]["charts"]
    curve, cost, heat = data["curves"][0], data["costs"][0], data["maps"][0]
    points = [[name, *point] for name, line in curve["series"].items() for point in line]
    points += [[name, *point] for name, line in curve["baselines"] for point in line]
    costs = [[name, *point] for name, point in cost["series"].items()]
    kinds = {
        f"{curve['title']}: {curve['y']}": (curve, points, ["alibi", "trained to 32"]),
        "Cost against": (cost, costs, ["nope"]),
    }
    for words, (chart, expected, texts) in kinds.items():
        figure = see(page, charts.locator("figure", has_text=words).first)
        head, *rows = csv.reader(io.StringIO(save(page, figure, "CSV")[1]))
        assert head[:3] == ["encoding", chart["x"], chart["y"]]
        assert rows == [["" if one is None else f"{one}" for one in row] for row in expected]
        check_drawing(browser, save(page, figure, "SVG")[1], [chart["y"], *texts])
    figure = see(page, charts.locator(".small figure").first)
    label = figure.locator("figcaption").inner_text()
    head, *rows = csv.reader(io.StringIO(save(page, figure, "CSV")[1]))
    assert head == ["encoding", heat["y"], heat["x"], heat["z"]]
    values = [value for row in heat["series"][label] for value in row]
    assert [row[3] for row in rows] == ["" if value is None else f"{value}" for value in values]
    check_drawing(browser, save(page, figure, "SVG")[1], [label, heat["title"]])
    close(page)


def check_drawing(browser: Any, text: str, words: Sequence[str]) -> None:
    """Check that an SVG file is self-contained, with all texts within its size."""
    assert "var(" not in text and 'class="tip' not in text
    content = " ".join("".join(ElementTree.fromstring(text).itertext()).split())
    for word in words:
        assert word in content
    page = browser.new_page()
    page.set_content(text)
    outside = """() => {
        const all = document.querySelector('svg').getBoundingClientRect();
        return [...document.querySelectorAll('text')].filter(one => {
            const own = one.getBoundingClientRect();
            return own.width && (own.left < all.left || own.right > all.right
                || own.top < all.top || own.bottom > all.bottom);
        }).map(one => one.textContent);
    }"""
    assert page.evaluate(outside) == []
    ground = page.locator("svg > rect").first
    assert ground.evaluate("one => getComputedStyle(one).fill") == "rgb(22, 26, 32)"  # dark
    page.close()


def test_a_number_says_how_it_was_made(browser: Any, file: Path) -> None:
    page = visit(browser, file)
    page.locator("table[data-table='table-0'] tbody tr[data-e] td.n").first.click()
    said = page.locator("dialog").inner_text()
    assert "pe-bench run --encoding randpe --task flipflop" in said
    assert all(words in said for words in ("c65d8204", "5c0364cfc8", "AMD", "pe-bench rerun"))
    assert page.locator("dialog table tr").count() == 1 + 5
    page.locator("dialog").get_by_role("link", name="all settings").click()
    assert not page.locator("dialog").is_visible()
    assert page.locator("#table-0-how").get_attribute("open") is not None
    page.locator("#leaderboard td.n").first.focus()
    page.keyboard.press("Enter")
    assert "out-of-distribution" in page.locator("dialog").inner_text()
    page.keyboard.press("Escape")
    page.locator("#leaderboard tbody a").first.click()
    page.wait_for_selector("details.encoding[open]")  # when the browser reports the new address
    assert page.locator("details.encoding[open]").count() == 1
    close(page)


def test_html_in_names_is_text(browser: Any, tmp_path: Path) -> None:
    views = (Column("test", "bits_per_byte", EVIL), Curve("test", "bits_per_byte", EVIL, EVIL))
    for encoding in ("<b>bold</b>", EVIL, "rope"):
        put(tmp_path, encoding, [*CURVE, SCORE], task="<i>task</i>", views=views)
    page = visit(browser, make_page(tmp_path))
    assert {"<b>bold</b>", "rope"} < set(shown(page, "table-0"))
    assert page.locator("main b:text('bold'), main i:text('task'), img").count() == 0
    chart = page.locator(".canvas").first
    chart.scroll_into_view_if_needed()
    chart.locator("svg").wait_for()
    page.locator("tr", has_text="<b>bold</b>").locator("td.n").first.click()
    assert "<b>bold</b>" in page.locator("dialog").inner_text()
    close(page)
