"""The comparison of TAPE with RoPE in docs/tape.md agrees with the committed results."""

import re
from pathlib import Path
from types import ModuleType

import pytest
from scripts import load_script

from pe_bench.reporting.paired import compare_table
from pe_bench.reporting.tables import read_tables

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def page() -> ModuleType:
    """Return the script that writes the tables of the page."""
    return load_script("docs/tape_table.py")


@pytest.mark.slow
def test_the_page_has_the_numbers_of_the_committed_results(page: ModuleType) -> None:
    found = re.findall(page.BETWEEN, page.PAGE.read_text(encoding="utf-8"), re.DOTALL)
    folders = [page.read(folder) for folder in ("quick", "scrolls")]
    assert found == [page.compose(folders, page.read_main_set())], "run python docs/tape_table.py"
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


def test_the_page_has_the_ablations_of_the_committed_results(page: ModuleType) -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    for name in page.ABLATIONS:
        found = re.findall(page.between(name), text, re.DOTALL)
        assert found == [page.compose_ablations(page.read_ablations(name))], name


def test_what_the_page_says_about_the_ablations(page: ModuleType) -> None:
    text = " ".join((ROOT / "docs" / "tape.md").read_text(encoding="utf-8").split())
    mqar, recall = page.read_ablations("ablations")
    assert (mqar.about.task, recall.about.task) == ("mqar", "recall")
    worse = {one.first for one in compare_table(mqar, "tape").to_reference if one.significant}
    assert worse == {"rope", "tape-ablations:post_mix=off", "tape-ablations:mixing=all"}
    assert all(one.value < 0 for one in compare_table(mqar, "tape").to_reference if one.significant)
    assert not [one for one in compare_table(recall, "tape").to_reference if one.significant]
    assert all(mqar.learned(name) == mqar.seeds(name) == 5 for name in mqar.encodings)
    means = mqar.headline_means()
    equal = page.read_ablations("ablations at equal rates")
    assert len(equal) == 2
    for table in equal:
        without, mixed = (
            one
            for name in ("post_mix=off", "mixing=all")
            for one in compare_table(table, "tape").to_reference
            if one.first == f"tape-ablations:{name}"
        )
        assert without.significant and not mixed.significant
        assert f"{-without.value:.1f}" in text and all(map(table.learned, table.encodings))
    (layers,) = page.read_ablations("ablations by layer")
    assert not [one for one in compare_table(layers, "tape").to_reference if one.significant]
    shown = [f"{value:.1f}" for value in layers.headline_means().values()]
    assert all(number in text for number in shown)
    said = re.search(
        r"mixing all axes ([\d.]+) % against ([\d.]+) for `tape`; mixing channels ([\d.]+), "
        r"separate weights for cos and sin ([\d.]+)\. At a rate of 1e-3",
        text,
    )
    assert said
    names = ["tape-ablations:mixing=all", "tape", "tape-ablations:mixing=channels"]
    names.append("tape-ablations:mixing=heads-apart")
    assert [f"{means[name]:.1f}" for name in names] == [*said.groups()]
    found = re.search(r"it differs by ([\d.]+) points", text)
    assert found
    difference = means["tape"] - means["tape-ablations:mlp_mix=false"]
    assert found[1] == f"{difference:.1f}"


def test_what_the_page_says_about_tape_without_updates(page: ModuleType) -> None:
    text = " ".join((ROOT / "docs" / "tape.md").read_text(encoding="utf-8").split())
    tables = read_tables(ROOT / "results" / "tape")
    (table,) = (table for table in tables if table.about.adaptation is not None)
    (found,) = compare_table(table, "tape -> tape").to_reference
    assert found.first == "tape -> rope" and found.significant and found.seeds == 5
    means = table.headline_means()
    (trained,) = (one for one in page.read_ablations("ablations") if one.about.task == "mqar")
    assert f"trained with `rope` has {trained.headline_means()['rope']:.1f} %" in text
    said = re.search(r"falls from ([\d.]+) to ([\d.]+) % \(([-+\d.]+) points, 95 % interval: "
                     r"([-+\d.]+) to ([-+\d.]+)\)", text)  # fmt: skip
    assert said
    numbers = [means["tape -> tape"], means["tape -> rope"]]
    shown = [f"{number:.1f}" for number in numbers]
    shown += [f"{number:+.1f}" for number in (found.value, found.low, found.high)]
    assert [*said.groups()] == shown
