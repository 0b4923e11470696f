"""Scripts outside the package can be imported: a renamed function of the engine breaks none."""

import pytest
from scripts import ROOT, load_script

FOLDERS = ("benchmarks", "docs", "examples")
SCRIPTS = sorted(
    str(path.relative_to(ROOT)) for folder in FOLDERS for path in (ROOT / folder).glob("*.py")
)


@pytest.mark.parametrize("path", SCRIPTS)
def test_a_script_can_be_imported(path: str) -> None:
    if path == "docs/hooks.py":
        pytest.importorskip("mkdocs")
    assert load_script(path).__doc__


def test_every_folder_has_scripts() -> None:
    assert {path.split("/")[0] for path in SCRIPTS} == set(FOLDERS)
