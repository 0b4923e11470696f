"""The scores at several sizes in docs/findings.md agree with the committed results."""

import re
from types import ModuleType

import pytest
from scripts import load_script


@pytest.fixture(scope="module")
def page() -> ModuleType:
    """Return the script that writes the tables."""
    return load_script("docs/sizes_table.py")


@pytest.mark.slow
def test_the_page_has_the_scores_of_the_committed_results(page: ModuleType) -> None:
    ladders = page.read()
    found = re.findall(page.BETWEEN, page.PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found == [page.compose(ladders)], "run python docs/sizes_table.py"
    (ladder,) = ladders  # the sentences below the table are about it
    small, middle, large = (table.headline_means() for table in ladder.tables)
    assert abs(large["tape"] - large["rope"]) < 1 < 10 < middle["tape"] - middle["rope"]
    assert max(large, key=lambda name: large[name]) == "alibi"
    assert max(small, key=lambda name: small[name]) == "fire"
    assert max(middle, key=lambda name: middle[name]) == "fire"
    for table, means in zip(ladder.tables, (small, middle, large), strict=True):
        assert min(ladder.encodings, key=lambda name: means[name]) == "nope"
        assert table.learned("nope") == 0
