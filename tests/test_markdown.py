"""Text in Markdown is shown literally."""

import html
import re
from pathlib import Path

import pytest
from made_runs import CURVE, SCORE, put, write_rows

from pe_bench.reporting.markdown import escape, markdown_table
from pe_bench.reporting.report import write_report
from pe_bench.results.layout import baselines_path

markdown_it = pytest.importorskip("markdown_it")

TEXTS = [
    "*a*.py", "**a**", "_a_.py", "__init__", "a_b_c", "snake_case", "`a`", "[a](b)", "<b>a</b>",
    "a|b", "a\\*b", "~~a~~", "$a$", "&lt;", "&#42;", "a & b", "a_", "_", "rope -> rope [2 steps]",
    "a\nb", "![a](b)",
]  # fmt: skip


def shown(text: str) -> list[str]:
    """Return the lines of rendered Markdown."""
    page = markdown_it.MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(text)
    return [line for line in html.unescape(re.sub(r"<[^>]*>", "", page)).splitlines() if line]


@pytest.mark.parametrize("text", TEXTS)
def test_text_is_shown_as_it_is(text: str) -> None:
    line = " ".join(text.splitlines())
    assert shown(f"see {escape(text)} there") == [f"see {line} there"]
    assert shown(markdown_table(["a", "b"], [[text, "1"]], "lr")) == ["a", "b", line, "1"]


@pytest.mark.slow
def test_names_in_a_leaderboard(tmp_path: Path) -> None:
    for name in ("*a*.py", "_b_.py", "$c$:size=2"):
        put(tmp_path, name, [SCORE, *CURVE])
    rows = baselines_path(tmp_path, "lm", "5e77")
    write_rows(rows, [SCORE], task="lm", encoding="_table_ *1*")
    write_report(tmp_path)
    text = (tmp_path / "leaderboard.md").read_text()
    page = shown(text)
    for name in ("*a*.py", "_b_.py", "$c$:size=2"):
        assert f"{name} †" in page
    assert "| *\\_table\\_ \\*1\\** " in text and "_table_ *1*" in page
