"""The scores at several sizes in docs/findings.md agree with the committed results."""

from types import ModuleType

import pytest
from scripts import load_script

from pe_bench.config import show_rate
from pe_bench.reporting.markdown import find_block
from pe_bench.reporting.paired import compare_table
from pe_bench.reporting.sensitivity import measure_signal


@pytest.fixture(scope="module")
def page() -> ModuleType:
    """Return the script that writes the tables."""
    return load_script("docs/sizes_table.py")


@pytest.mark.slow
def test_the_page_has_the_scores_of_the_committed_results(page: ModuleType) -> None:
    ladders = page.read()
    found = find_block(page.PAGE.read_text(encoding="utf-8"), page.BLOCK)
    assert found == page.compose(ladders), "run python docs/sizes_table.py"


@pytest.mark.slow
def test_the_ratio_of_the_simulated_marks(page: ModuleType) -> None:
    """docs/results.md compares it with those of the tables."""
    ratios = []
    for ladder in page.read():
        for table in ladder.tables:
            ratios.append(measure_signal(table, ladder.encodings).ratio)
    text = " ".join((page.ROOT / "docs" / "results.md").read_text(encoding="utf-8").split())
    assert (
        f"`results/sizes` with five encodings, it is {min(ratios):.1f} to {max(ratios):.1f} times:"
        in text
    )


@pytest.mark.slow
def test_the_sentences_on_addition(page: ModuleType) -> None:
    (ladder,) = (one for one in page.read() if one.tables[0].about.task == "addition")
    text = " ".join(page.PAGE.read_text(encoding="utf-8").split())
    assert [table.about.settings["model"]["width"] for table in ladder.tables] == [32, 64, 128]
    for table in ladder.tables:
        means = table.ranking.means
        groups = [means[name] for name in ("fire", "nope", "alibi")], [means["rope"], means["tape"]]
        assert min(groups[0]) > 2 * max(groups[1])
    assert "are far above `rope` and `tape` at every width" in text
    for table, rate in zip(ladder.tables, (3e-3, 1e-3, 1e-3), strict=True):
        assert all((r.tuning or {})["task"]["lr"] == {"all": rate} for r in table.records)
    last = ladder.tables[-1].ranking
    assert last.best_baseline is not None
    assert max(last.means["rope"], last.means["tape"]) < last.best_baseline
    assert ladder.mark == "unknown"


@pytest.mark.slow
def test_the_sentences_on_mqar(page: ModuleType) -> None:
    (ladder,) = (one for one in page.read() if one.tables[0].about.task == "mqar")
    text = " ".join(page.PAGE.read_text(encoding="utf-8").split())
    found, chosen = [], []
    for table in ladder.tables:
        (one,) = (d for d in compare_table(table, "rope").to_reference if d.first == "tape")
        found.append(f"{one.value:.1f}")
        tuned = {record.encoding: (record.tuning or {})["task"] for record in table.records}
        assert tuned["tape"]["lr"] == tuned["rope"]["lr"]
        values = [tuned[name].get("values", {}).get("all") for name in ("alibi", "fire", "tape")]
        chosen.append(values)
        assert table.learned("nope") == 0
    assert chosen == [["8", None, None], ["32", None, None], ["8", "4", "1000"]]
    small, middle, large = found
    assert (
        f"On `mqar`, the mean of `tape` is {small} points above that of `rope` "
        f"at width 32, {middle} at width 64 and {large} at width 128."
    ) in text
    best = []
    for table in ladder.tables:
        means = table.ranking.means
        best.append(max(means, key=lambda name: means[name]))
        assert min(means, key=lambda name: means[name]) == "nope"
    assert best == ["fire", "fire", "alibi"]


@pytest.mark.slow
def test_the_sentences_on_perplexity(page: ModuleType) -> None:
    (ladder,) = (one for one in page.read() if one.tables[0].about.task == "perplexity")
    text = " ".join(page.PAGE.read_text(encoding="utf-8").split())
    assert [table.about.settings["model"]["width"] for table in ladder.tables] == [32, 64, 128]
    rates = []
    scales = []
    learned = []
    contains = []
    order = []
    for table in ladder.tables:
        (one,) = (d for d in compare_table(table, "rope").to_reference if d.first == "tape")
        assert one.low < 0 < one.high
        tuned = {record.encoding: (record.tuning or {})["task"] for record in table.records}
        rates.append([show_rate(tuned[name]["lr"]["all"]) for name in ("rope", "tape")])
        scales.append(tuned["alibi"]["values"]["all"])
        learned.append(table.learned("nope"))
        means = table.ranking.means
        assert sorted(means, key=lambda name: means[name])[:3] == ["alibi", "fire", "nope"]
        references = table.means[table.means["encoding"] == "unigram table"]
        place = (table.headline.subset, table.headline.metric)
        (unigram,) = references[
            (references["subset"] == place[0])
            & (references["metric"] == place[1])
            & references["length"].isna()
        ]["mean"]
        assert min(means["rope"], means["tape"]) > unigram
        assert (means["nope"] > unigram) == (learned[-1] == 0)
        low = table.ranking.scores.set_index("encoding")["ci_low"]["nope"]
        contains.append(bool(low < unigram < means["nope"]))
        order.append(means["rope"] < means["tape"])
    assert scales == ["8", "8", "2"] and learned == [0, 0, 3]
    assert contains == [True, False, False] and order == [False, True, True]
    assert rates[0][0] == rates[0][1] and rates[1][0] == rates[1][1]
    assert f"the search chose {rates[2][0]} for `rope` and {rates[2][1]} for `tape`" in text
    said = (
        "For `perplexity`, the order is similar at a smaller and at a larger size; `rope` and "
        "`tape` swap their places between widths 32 and 64, and have a higher loss than a unigram "
        "table at all three sizes."
    )
    assert (said in text) == (ladder.mark == "stable")
