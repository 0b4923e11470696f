"""Files for visitors of the repository: they parse, and agree with the package."""

import ast
import io
import re
import tokenize
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import pe_bench

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def test_one_version_everywhere() -> None:
    citation = load(ROOT / "CITATION.cff")
    assert citation["version"] == PROJECT["version"] == pe_bench.__version__
    assert citation["license"] == PROJECT["license"]
    assert citation["authors"] == PROJECT["authors"]
    assert set(citation) >= {"cff-version", "message", "title", "abstract"}
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    sections = re.findall(r"^## (.*)", changelog, re.MULTILINE)
    assert sections[:2] == ["Unreleased", f"{PROJECT['version']} - {citation['date-released']}"]


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_issue_forms_ask_something(path: Path) -> None:
    form = load(path)
    assert form["name"] and form["description"]
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    names = [field["id"] for field in fields]
    assert len(names) == len(set(names)) > 0
    assert all(field["attributes"]["label"] for field in fields)
    assert any(field.get("validations", {}).get("required") for field in fields)


def test_a_bug_report_has_the_run() -> None:
    form = load(ROOT / ".github" / "ISSUE_TEMPLATE" / "bug.yml")
    assert "run" in [field["id"] for field in form["body"]]


def commands(job: Any) -> list[str]:
    return [step["run"] for step in job["steps"] if "run" in step]


def test_hosted_ci_runs_everything_on_the_oldest_python() -> None:
    jobs = load(ROOT / ".github" / "workflows" / "test.yml")["jobs"]
    assert ".ci/run" in commands(jobs["test"])
    oldest = PROJECT["requires-python"].removeprefix(">=")
    assert oldest in jobs["test"]["strategy"]["matrix"]["python-version"]


def test_hosted_ci_runs_the_quick_tests_on_every_push() -> None:
    workflow = load(ROOT / ".github" / "workflows" / "test.yml")
    assert workflow[True]["push"] is None  # YAML reads the key `on` as True; no branches: all
    quick = workflow["jobs"]["quick"]
    assert "if" not in quick and 'pytest -n auto -m "not slow"' in commands(quick)


def test_hosted_ci_stores_the_wheel_and_the_sdist() -> None:
    workflow = load(ROOT / ".github" / "workflows" / "test.yml")
    package = workflow["jobs"]["package"]
    assert "if" not in package
    built, *_, installed, _ = commands(package)[1:]
    assert built == "python -m build" and installed.endswith(" dist/*.whl")
    assert package["steps"][-1]["uses"].startswith("actions/upload-artifact@")
    assert package["steps"][-1]["with"]["path"] == "dist"


def test_style_and_types_are_checked_before_the_tests() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert script.index(".venv/bin/$check") < script.index('-c "$tests"')


def test_local_hooks_are_the_checks_of_ci() -> None:
    hooks = [
        hook
        for repo in load(ROOT / ".pre-commit-config.yaml")["repos"]
        if repo["repo"] == "local"
        for hook in repo["hooks"]
    ]
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert [hook["name"] for hook in hooks] == ["ruff check", "ruff format", "mypy"]
    assert all(f'"{hook["name"]}' in script for hook in hooks)


# Python files and pages in plain English.
FOLDERS = ("encodings", "tasks", "examples", "pe_bench", "benchmarks", "docs", "tests")
OTHER_PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md")
BANNED = re.compile(
    r"\bwhat (?:is|are|was|were)\b"  # a definition by relative clause
    r"|\bof (?:theirs|his|hers|ours|yours|others|somebody(?: else)?'s)\b"
    r"|\banew\b|\bafresh\b|\balike\b|\bof (?:its|their|one's) own\b"
    r"|\b(?:tell|tells|told|telling)\b(?: \w+){0,3} \bapart\b"
    r"|\bshares? of (?:the )?(?:values?|attention|weight|seeds)\b"  # weights, fractions
    r"|\b(?:go|goes|going|went) on\b"  # continue, resume
    r"|\b(?:is|are) no\b(?! longer)(?<!there is no)(?<!there are no)"  # is not a ...
    r"|\bstands? beside\b|\bbeside (?:it|them|each|this|that|those)\b"
    r"|\bas it was written\b|\bthere being\b|\bwhere so\b|\bso many\b"
    r"|\bunder (?:\w+ )?seeds?\b"  # with a seed
    r"|\btak(?:e|es|ing) turns\b|\bevery day\b|\bmend(?:s|ed)?\b|\blessons?\b"
    r"|\b(?:no|some|any|every)body\b|\bwants\b",
    re.IGNORECASE,
)
CONFIGURATION = (
    "pyproject.toml",
    "mkdocs.yml",
    "docs/claims.toml",
    "pe_bench/reporting/published.csv",
)
EXCEPTIONS = {
    "tasks/passkey/prompts.py",  # prompts of the papers
    "tests/test_passkey_prompts.py",
    "tests/test_repository.py",  # the banned phrases themselves
}

CODE = ("encodings", "tasks", "examples", "pe_bench")  # benchmarks and tests may be denser
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def plain_files() -> list[Path]:
    files = [path for name in FOLDERS for path in sorted((ROOT / name).rglob("*.py"))]
    return [path for path in files if str(path.relative_to(ROOT)) not in EXCEPTIONS]


def plain_pages() -> list[Path]:
    return [*sorted((ROOT / "docs").glob("*.md")), *(ROOT / name for name in OTHER_PAGES)]


def banned_phrases(source: str) -> list[str]:
    """Return the banned phrases in the comments, docstrings and messages of a file."""
    found = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING):
            text = re.sub(r"\s+(?:#\s*)?", " ", token.string)
            found += [f"line {token.start[0]}: {m[0]}" for m in BANNED.finditer(text)]
    return found


def banned_prose(page: str) -> list[str]:
    """Return the banned phrases in the text and the tables of a page, without headings and code."""
    text = re.sub(r"```.*?```|`[^`]*`|<!--.*?-->|^#.*?$", "", page, flags=re.DOTALL | re.MULTILINE)
    return [m[0] for m in BANNED.finditer(" ".join(text.split()))]


def count_comprehensions(node: ast.AST) -> int:
    """Return how many comprehensions a statement has, without those of statements inside of it."""
    count = int(isinstance(node, COMPREHENSIONS))
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.stmt):
            count += count_comprehensions(child)
    return count


def dense_lines(source: str) -> list[str]:
    """Return the lines with `:=`, or with a statement of several comprehensions."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.NamedExpr):
            found.append(f"line {node.lineno}: use a plain assignment in place of :=")
        elif isinstance(node, ast.stmt) and count_comprehensions(node) > 1:
            found.append(f"line {node.lineno}: at most one comprehension in a statement")
    return found


@pytest.mark.slow
def test_statements_are_not_dense() -> None:
    found = {}
    for folder in CODE:
        for path in (ROOT / folder).rglob("*.py"):
            lines = dense_lines(path.read_text(encoding="utf-8"))
            if lines and "vendor" not in path.parts:
                found[path] = lines
    assert found == {}


def test_dense_statements_are_found() -> None:
    source = "if a := b:\n    c = [[x for x in y] for y in b]\nd = [x for x in b]\n"
    source += "if any(x for x in b) and all(x for x in b):\n    e = {x for x in b}\n"
    assert sorted(dense_lines(source)) == [
        "line 1: use a plain assignment in place of :=",
        "line 2: at most one comprehension in a statement",
        "line 4: at most one comprehension in a statement",
    ]


@pytest.mark.slow
def test_files_have_an_encoding_that_no_locale_changes() -> None:
    """`ruff` has such a rule in its preview only."""
    missing = []
    for path in plain_files():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                names = [keyword.arg for keyword in node.keywords]
                is_text = node.func.attr in ("read_text", "write_text")
                if is_text and "encoding" not in names and path.is_relative_to(ROOT / "pe_bench"):
                    missing.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert missing == []


@pytest.mark.slow
def test_texts_are_plain_english() -> None:
    found = {path: banned_phrases(path.read_text(encoding="utf-8")) for path in plain_files()}
    assert {path: phrases for path, phrases in found.items() if phrases} == {}


def test_pages_are_plain_english() -> None:
    found = {path: banned_prose(path.read_text(encoding="utf-8")) for path in plain_pages()}
    assert {path: phrases for path, phrases in found.items() if phrases} == {}


@pytest.mark.parametrize("name", CONFIGURATION)
def test_configuration_is_plain_english(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert [m[0] for m in BANNED.finditer(text)] == []


def test_banned_phrases_are_found() -> None:
    source = 'x = 1  # a table of its own\n"""What is\nscored, told well apart."""\nalike = 2\n'
    found = ["line 1: of its own", "line 2: What is", "line 2: told well apart"]
    assert banned_phrases(source) == found
    page = "# What is it\n\nThere is no error. This is no\nerror, and `what is` is code.\n"
    assert banned_prose(page) == ["is no"]
