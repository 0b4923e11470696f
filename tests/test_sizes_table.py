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
    better, worse, differences = [], [], []
    for table in ladder.tables:
        means = table.ranking.means
        high, low = sorted(f"{means[name]:.0f}" for name in ("fire", "nope", "alibi"))[::2]
        better.append(f"{high} to {low} %")
        ends = dict.fromkeys(sorted(f"{means[name]:.0f}" for name in ("rope", "tape")))
        worse.append(f"{' to '.join(ends)} %")
        (one,) = (d for d in compare_table(table, "rope").to_reference if d.first == "tape")
        differences.append((f"{one.value:+.1f}", f"{one.low:+.1f} to {one.high:+.1f}"))
    assert (
        f"predict {better[0]} of the digits at width 32, {better[1]} at width 64 and {better[2]} "
        f"at width 128, and `rope` and `tape` predict {worse[0]}, {worse[1]} and {worse[2]}."
    ) in text
    (small, of_small), (middle, of_middle), (large, of_large) = differences
    assert (
        f"is {small} points (95 % interval: {of_small}) at width 32, {middle} ({of_middle}) at "
        f"width 64 and {large} ({of_large}) at width 128. At width 32, `rope` learns the task in "
        "1 of 3 seeds."
    ) in text
    learned = {name: ladder.tables[0].learned(name) for name in ladder.tables[0].encodings}
    assert learned.pop("rope") == 1 and set(learned.values()) == {3}
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
    found = []
    for table in ladder.tables:
        (one,) = (d for d in compare_table(table, "rope").to_reference if d.first == "tape")
        found.append((f"{one.value:+.1f}", f"{one.low:+.1f} to {one.high:+.1f}"))
        rates = {}
        for record in table.records:
            rates[record.encoding] = (record.tuning or {})["task"]["lr"]
        assert rates["tape"] == rates["rope"]
        assert table.learned("nope") == 0
    (small, of_small), (middle, of_middle), (large, of_large) = found
    assert (
        f"is {small} points (95 % interval: {of_small}) at width 32, {middle} ({of_middle}) at "
        f"width 64 and {large} ({of_large}) at width 128"
    ) in text
    assert (
        f"On `mqar`, the mean of `tape` is {small.removeprefix('+')} points above that of `rope` "
        f"at width 32, {middle.removeprefix('+')} at width 64 and {large.removeprefix('+')} at "
        "width 128."
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
    found = []
    rates = []
    scales = []
    learned = []
    for table in ladder.tables:
        (one,) = (d for d in compare_table(table, "rope").to_reference if d.first == "tape")
        assert one.low < 0 < one.high
        found.append((f"{one.value:+.2f}", f"{one.low:+.2f} to {one.high:+.2f}"))
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
    assert scales == ["8", "8", "2"] and learned == [0, 0, 3]
    (small, of_small), (middle, of_middle), (last, of_last) = found
    assert (
        f"is {small} bits (95 % interval: {of_small}) at width 32, {middle} ({of_middle}) at "
        f"width 64 and {last} ({of_last}) at width 128"
    ) in text
    assert rates[0][0] == rates[0][1] and rates[1][0] == rates[1][1]
    assert f"it chose {rates[2][0]} for `rope` and {rates[2][1]} for `tape`" in text
    said = (
        "For `perplexity`, the order is similar at a smaller and at a larger size; `rope` and "
        "`tape` change places, and have a higher loss than a unigram table at all three sizes."
    )
    assert (said in text) == (ladder.mark == "stable")
