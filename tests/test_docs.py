"""The commands and code in README and the documentation work."""

import ast
import re
import shlex
import shutil
from pathlib import Path

import pytest

from pe_bench.cli import COMMANDS, main
from pe_bench.commands.parser import parse
from pe_bench.results.row_files import read_measurements

ROOT = Path(__file__).parents[1]
ENCODING_GUIDE = "docs/adding-an-encoding.md"
TASK_GUIDE = "docs/adding-a-task.md"
PAGES = sorted(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md"))
MOST_LINES = 2500  # in the ten files of the reading order
MOST_COLUMNS = 120  # in a line of prose


def blocks(file: str, language: str) -> list[str]:
    text = (ROOT / file).read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


@pytest.mark.slow
def test_the_encoding_of_the_guide_passes_its_checks_and_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = blocks(ENCODING_GUIDE, "python")
    Path("mine.py").write_text(code)
    assert main(["check", "./mine.py", "./mine.py:buckets=4"]) == 0
    tiny = ["--train.steps", "2", "--model.layers", "1"]
    command = ["run", "--encoding", "./mine.py", "--task", "scrolls", "--subsets", "quality"]
    assert main([*command, *tiny]) == 0
    assert main(["report"]) == 0
    assert "mine.py" in Path("results/leaderboard.md").read_text()
    assert main(["check", "./mine.py:buckets=1"]) == 2
    assert "mine:buckets must be at least 2" in capsys.readouterr().err


@pytest.mark.slow
def test_the_task_of_the_guide_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = blocks(TASK_GUIDE, "python")
    Path("sorting.py").write_text(code)
    assert main(["check", "./sorting.py"]) == 0
    command = ["run", "--encoding", "rope", "--task", "./sorting.py:samples=3"]
    assert main([*command, "--train.steps", "2"]) == 0
    (rows,) = Path("results").glob("runs/*/rope/*/rows.csv")
    lengths = {row.length for row in read_measurements(rows)}
    assert lengths == {None, *range(1, 17)}
    assert main(["report"]) == 0


@pytest.mark.parametrize(
    ("guide", "file"), [(ENCODING_GUIDE, "your_encoding.py"), (TASK_GUIDE, "your_task.py")]
)
def test_the_examples_are_those_of_the_guides(guide: str, file: str) -> None:
    (code,) = blocks(guide, "python")
    example = (ROOT / "examples" / file).read_text(encoding="utf-8")
    assert ast.dump(ast.parse(example)) == ast.dump(ast.parse(code))  # layout apart


def test_the_readme_has_the_two_commands_that_set_everything_up() -> None:
    run, tests = (
        re.search(rf"<!-- {mark} -->\n```sh\n(.*?)\n```", (ROOT / "README.md").read_text())
        for mark in ("run", "tests")
    )
    assert run and run[1].endswith("pe-bench run --encoding tape --task scrolls")
    assert tests and tests[1].endswith("pytest -n 2")
    assert all("-c constraints.txt" in found[1] for found in (run, tests))


def commands(block: str) -> list[list[str]]:
    """Return the words of each pe-bench command in a block, without the name."""
    lines = [shlex.split(line, comments=True) for line in block.splitlines()]
    return [words[1:] for words in lines if words[:1] == ["pe-bench"]]


@pytest.mark.slow
def test_the_commands_of_the_readme_and_its_pages_exist() -> None:
    found = [
        words
        for page in ["README.md", *PAGES]
        for block in blocks(page, "sh")
        for words in commands(block)
    ]
    assert len(found) > 25
    for words in found:
        if "grid.toml" not in words:  # a file of the reader's own
            words = [f"{ROOT / word}" if word.startswith("results/") else word for word in words]
            parse(COMMANDS, words)  # exits where one does not


def test_links_between_pages_lead_somewhere() -> None:
    """Also to a heading, if they name one."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *ROOT.glob("benchmarks/*.md")]
    pages += (ROOT / "results").glob("*/leaderboard.md")
    for page in pages:
        for link in re.findall(r"\]\(([^):]+)\)", page.read_text(encoding="utf-8")):
            path, _, heading = link.partition("#")
            target = page.parent / path if path else page
            assert target.exists(), f"{page.name}: {link}"
            if heading and target.suffix == ".md":
                assert heading in headings(target), f"{page.name}: {link}"


def headings(page: Path) -> set[str]:
    """Return the anchors of the headings of a page."""
    found = set()
    for title in re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE):
        found.add(re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-"))
    return found


@pytest.mark.slow
def test_what_the_readme_runs_can_be_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The commands for the shell use only files of a clone."""
    (block,) = (b for b in blocks("README.md", "sh") if b.startswith("source .venv/bin/activate"))
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    runs = [words for words in commands(block) if words[0] == "run"]
    assert len(runs) == 2
    for words in runs:
        assert main([*words, "--dry-run"]) == 0


def test_the_reading_order_is_ten_short_files() -> None:
    page = ROOT / "docs" / "reading-order.md"
    files = re.findall(
        r"^\d+\. \[([^]]+)\]\(\.\./\1\)", page.read_text(encoding="utf-8"), re.MULTILINE
    )
    assert len(files) == 10
    lines = [len((ROOT / file).read_text(encoding="utf-8").splitlines()) for file in files]
    assert sum(lines) <= MOST_LINES, dict(zip(files, lines, strict=True))


@pytest.mark.parametrize("page", ["README.md", *PAGES])
def test_lists_are_not_nested(page: str) -> None:
    """The documentation site and GitHub show nested lists differently."""
    text = re.sub(r"```.*?```", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    assert re.findall(r"^ +(?:[-*]|\d+\.) .*", text, re.MULTILINE) == []


@pytest.mark.parametrize("page", ["README.md", *PAGES])
def test_prose_is_wrapped(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    text = re.sub(r"```.*?```|<!-- main table.*?end of main table", "", text, flags=re.DOTALL)
    prose = [line for line in text.splitlines() if not re.match(r"\s*(\||!\[)", line)]
    assert [line for line in prose if len(line) > MOST_COLUMNS] == []
