"""The comparison of TAPE with RoPE in docs/tape.md agrees with the committed results."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_the_page_has_the_numbers_of_the_committed_results() -> None:
    spec = importlib.util.spec_from_file_location("tape_table", ROOT / "docs" / "tape_table.py")
    assert spec and spec.loader
    page = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(page)
    found = re.findall(page.BETWEEN, page.PAGE.read_text(encoding="utf-8"), re.DOTALL)
    folders = [page.read(folder) for folder in ("quick", "scrolls")]
    assert found == [page.compose(folders)], "run python docs/tape_table.py"
    significant = [v.table.about.task for f in folders for v in f.tasks if v.difference.significant]
    assert significant == ["mqar"]  # as in the sentences below the table
    unlearned = [
        verdict.table.about.task
        for found in folders
        for verdict in found.tasks
        if not verdict.table.learned("tape")
    ]
    assert unlearned == ["indexing", "probes"]
    assert folders[0].mean is not None and folders[0].mean.significant
