"""The git commit of the code, from its checkout or from the build of its package."""

import json
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

UP_TO_ROUNDING = "equal up to rounding, which training amplifies"
"""Comparison of the results of two commits with equal versions of code, as part of a sentence."""


BUILT_FROM = Path(__file__).with_name("built_from.json")
"""Written by setup.py into wheels and source distributions."""


@cache
def find_commit() -> dict[str, Any] | None:
    """Return "commit" and "dirty" (whether files have changed since); None: it is unknown.

    The first call of a process decides, so that a checkout that changes later does not change the
    commit of the loaded code.
    """
    here = Path(__file__).resolve()

    def git(*args: str) -> str:
        command = ["git", "-C", str(here.parent), *args]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=10, check=True
        ).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", here.name)
        return {"commit": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain"))}
    except (OSError, subprocess.SubprocessError):
        return _recorded()


def _recorded() -> dict[str, Any] | None:
    """Return the commit that the build has recorded; None: there is none."""
    try:
        found = json.loads(BUILT_FROM.read_text(encoding="utf-8"))
        return {"commit": str(found["commit"]), "dirty": bool(found["dirty"])}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def show_commit(environment: Mapping[str, Any]) -> str:
    """Format the commit in the environment of a record; empty: unknown."""
    git = environment.get("git")
    if not git:
        return ""
    return f"{git['commit'][:10]}{' with changes' if git['dirty'] else ''}"
