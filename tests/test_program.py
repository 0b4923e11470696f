"""Suggested commands begin with a word that the user's shell finds."""

import sys
from pathlib import Path

import pytest

from pe_bench.system.program import program


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make an environment with the program, in the working directory."""
    script = tmp_path / "my env" / "bin" / "pe-bench"
    script.parent.mkdir(parents=True)
    script.touch(mode=0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["my env/bin/pe-bench", "run"])
    return script


def test_an_environment_that_is_not_activated(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    assert program() == "'my env/bin/pe-bench'"


def test_another_installation_comes_first(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other" / "pe-bench"
    other.parent.mkdir()
    other.touch(mode=0o755)
    monkeypatch.setenv("PATH", f"{other.parent}:{installed.parent}")
    assert program() == "'my env/bin/pe-bench'"


def test_an_activated_environment(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(installed.parent))
    assert program() == "pe-bench"


def test_a_call_from_python(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(sys, "argv", ["script.py"])
    assert program() == "pe-bench"
