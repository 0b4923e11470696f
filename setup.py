"""Record the commit in built packages, so that runs of an installed package name it."""

import json
import subprocess
from pathlib import Path
from typing import Any

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

ROOT = Path(__file__).resolve().parent
PLACE = Path("pe_bench/system/built_from.json")  # read by pe_bench/system/commit.py


def record_commit(folder: str) -> None:
    """Write the commit of this checkout into the built folder; without git, write nothing."""

    def git(*args: str) -> str:
        return subprocess.check_output(["git", "-C", str(ROOT), *args], text=True).strip()

    if not (ROOT / ".git").exists():  # such as a source distribution, which has the file
        return
    try:
        # The build itself makes files that git does not track.
        changed = git("status", "--porcelain", "--untracked-files=no")
        found = {"commit": git("rev-parse", "HEAD"), "dirty": bool(changed)}
    except (OSError, subprocess.SubprocessError):
        return
    path = Path(folder) / PLACE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found), encoding="utf-8")


class BuildPy(build_py):
    """Builds the files of a wheel; an editable one runs from the checkout."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            record_commit(self.build_lib)


class SDist(sdist):
    """Builds a source distribution."""

    def make_release_tree(self, base_dir: str, files: Any) -> None:
        super().make_release_tree(base_dir, files)
        record_commit(base_dir)


setup(cmdclass={"build_py": BuildPy, "sdist": SDist})
