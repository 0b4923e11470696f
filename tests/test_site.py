"""The hooks of the documentation site, if mkdocs is installed: links, and loaded resources."""

import sys
from pathlib import Path
from types import ModuleType

import pytest
from scripts import load_script

pytest.importorskip("mkdocs", reason="mkdocs is not installed")
ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    """Return the hooks, and restore the import path that they extend."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path])
        return load_script("docs/hooks.py")


@pytest.mark.parametrize(
    "html",
    [
        '<script src="https://cdn.example/x.js"></script>',
        "<script defer src=//cdn.example/x.js></script>",
        '<img alt="" src="https://example.org/x.png">',
        '<link rel="stylesheet" href="https://fonts.example/css">',
        '<link href="https://fonts.example" rel="preconnect">',
        "@font-face { src: url('https://fonts.example/x.woff2') }",
        '@import "https://fonts.example/css";',
    ],
)
def test_what_loads_from_a_network_is_found(hooks: ModuleType, html: str) -> None:
    assert hooks.LOADED.search(html)


@pytest.mark.parametrize(
    "html",
    [
        '<a href="https://arxiv.org/abs/2108.12409">paper</a>',
        '<script src="assets/x.js"></script>',
        '<link rel="stylesheet" href="../assets/x.css">',
        '<link rel="canonical" href="https://example.org/">',
        "background: url('data:image/svg+xml;charset=utf-8,<svg></svg>')",
    ],
)
def test_what_loads_nothing_is_let_through(hooks: ModuleType, html: str) -> None:
    assert not hooks.LOADED.search(html)


@pytest.mark.parametrize(
    ("source", "uri"),
    [
        ("docs/running.md", "running.md"),
        ("CHANGELOG.md", "CHANGELOG.md"),
        ("README.md", "index.md"),
        ("results/quick/leaderboard.md", "results/quick/leaderboard.md"),
        ("examples/your_task.py", "source/examples/your_task.py.md"),
    ],
)
def test_files_of_the_repository_have_a_place_in_the_site(
    hooks: ModuleType, source: str, uri: str
) -> None:
    assert hooks._uri(source) == uri
