"""The figure and the main table of README agree with the committed results."""

import gzip
import json
import re
import shutil
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from claims import COUNTS
from PIL import Image
from scripts import load_script

from pe_bench.reporting.families import in_main_set
from pe_bench.reporting.markdown import find_block, replace_block
from pe_bench.reporting.tables import read_tables
from pe_bench.reporting.task_summary import summary_of
from pe_bench.results.layout import PACKED_ROWS
from pe_bench.stats.ranking import find_standings
from pe_bench.system.sealed import write_sealed

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page() -> ModuleType:
    """Return the script that writes the figure and the table."""
    return load_script("docs/front_page.py")


@pytest.fixture(scope="module")
def measured(page: ModuleType) -> tuple[str, str]:
    """Return the main table and the digest of the figure's numbers, from the committed results."""
    tables = read_tables(page.RESULTS)
    return page.compose(tables), page.draw(tables)[1]


@pytest.mark.slow
def test_readme_shows_what_was_measured(page: ModuleType, measured: tuple[str, str]) -> None:
    text, digest = measured
    assert find_block(README, page.BLOCK) == text, "run python docs/front_page.py"
    with Image.open(page.FIGURE) as figure:
        assert figure.info[page.NUMBERS] == digest, "run python docs/front_page.py"
        assert figure.width > 1000


@pytest.mark.slow
def test_what_the_findings_say_about_the_mean_scores(page: ModuleType) -> None:
    summary = summary_of(in_main_set(read_tables(page.RESULTS)))
    families = {task.family for task in summary.tasks}
    assert len(families) == 5
    for left_out in (None, *families):
        kept = [task for task in summary.tasks if task.family != left_out]
        order = [one.encoding for one in find_standings(kept)]
        assert {*order[:3]} == {"rnope-swa", "alibi", "fire"}
        assert {*order[-4:]} == {"tape", "xpos", "pope", "rope"} and len(order) == 10
    (language,) = (task for task in summary.tasks if task.family == "language modelling")
    scores = np.nanmean(language.normalise().values, axis=1)
    low = COUNTS[int((scores < 0.01).sum())]
    findings = " ".join((ROOT / "docs" / "findings.md").read_text(encoding="utf-8").split())
    assert (
        "because a score of 1 would need 0 bits per byte: no encoding has more than "
        f"{scores.max():.2f}, and {low} have less than 0.01"
    ) in findings
    found = page.compare_over_families(summary)
    clear = [name for name, one in found.items() if not one.low < 0 < one.high]
    assert clear == ["rnope-swa"] and found["rnope-swa"].low > 0 and len(found) == 9
    said = " ".join((ROOT / "docs" / "findings.md").read_text(encoding="utf-8").split())
    assert (
        "`rnope-swa`, `alibi` and `fire` have the highest mean scores of the ten encodings, and "
        "`tape`, `xpos`, `pope` and `rope` the lowest, also if any one of the five families is "
        "left out"
    ) in said
    uncut = page.compare_over_families(summary, cut=False)["rnope-swa"]
    assert uncut.low < 0
    assert (
        "corrected for nine comparisons, only the interval of the mean difference between "
        "`rnope-swa` and `rope` excludes 0 ({:+.2f} to {:+.2f}). It contains 0 if scores below the "
        "best baseline are not clipped ({:+.2f} to {:+.2f}), or if one of the seeds {}, {} and {} "
        "is left out"
    ).format(
        *(found["rnope-swa"].low, found["rnope-swa"].high, uncut.low, uncut.high),
        *page.find_decisive_seeds(summary, "rnope-swa"),
    ) in said


def test_the_front_page_begins_with_what_it_is() -> None:
    order = ["# pe-bench", "](docs/front_page.png)", "<!-- main table -->", "**How to read it"]
    order += ["<!-- run -->", "<!-- tests -->", "source .venv/bin/activate", "pe-bench list "]
    places = [README.index(part) for part in order]
    assert places == sorted(places)


def test_the_front_page_is_short() -> None:
    prose = [line for line in README.splitlines() if not line.startswith("|")]
    assert len(" ".join(prose).split()) <= 500


def test_the_order_at_other_sizes_is_marked(
    page: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = ("mqar", "addition", "perplexity")
    tables = []
    for one in tasks:
        worse = ["rope"] if one == "perplexity" else ["xpos"]
        below = SimpleNamespace(below_baselines=worse, shown_baselines=["guessing", "5-gram table"])
        about = SimpleNamespace(task=one)
        tables.append(SimpleNamespace(title=f"{one} ·", task_name=one, about=about, ranking=below))
    marks: dict[str, str] = {}
    monkeypatch.setattr(page, "read_marks", lambda _: marks)
    assert page.describe_sizes(SimpleNamespace(tables=tables)).endswith(
        "is not measured for addition, mqar and perplexity."
    )
    marks |= {"mqar ·": "changes", "addition ·": "stable", "copying ·": "stable"}
    assert page.describe_sizes(SimpleNamespace(tables=tables)).endswith(
        "is stable for addition; different for mqar; not measured for other tasks."
    )
    marks |= {"perplexity ·": "stable", "addition ·": "unknown", "mqar ·": "unknown"}
    assert page.describe_sizes(SimpleNamespace(tables=tables)).endswith(
        "is stable for perplexity (1 of them worse than the 5-gram table); unknown for "
        "addition and mqar."
    )


@pytest.mark.slow
def test_another_number_is_noticed(
    page: ModuleType, measured: tuple[str, str], tmp_path: Path
) -> None:
    text, digest = measured
    shutil.copytree(page.RESULTS, tmp_path / "results")
    records = tmp_path / "results" / "records.json"
    rows = records.with_name(PACKED_ROWS)
    kept = gzip.decompress(rows.read_bytes()).decode()
    changed = kept
    for place in (",8,", ",out-of-distribution,,,"):
        number = rf"(?m)^(addition,fire,1,.*{place}token_accuracy,)[\d.]+"
        changed = re.sub(number, r"\g<1>1.5", changed, count=1)
    assert changed != kept
    rows.write_bytes(gzip.compress(changed.encode()))
    content = json.loads(records.read_text())
    write_sealed(records, {"tables": content["tables"]}, owner=records.name, files=[rows])
    after = read_tables(tmp_path / "results")
    assert page.compose(after) != text
    assert page.draw(after)[1] != digest


@pytest.mark.slow
def test_it_writes_both(page: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readme = tmp_path / "README.md"
    shutil.copy(ROOT / "README.md", readme)
    readme.write_text(replace_block(README, page.BLOCK, "old"), encoding="utf-8")
    monkeypatch.setattr(page, "README", readme)
    monkeypatch.setattr(page, "FIGURE", tmp_path / "figure.png")
    page.main()
    assert readme.read_text(encoding="utf-8") == README
    assert (tmp_path / "figure.png").stat().st_size > 10_000
