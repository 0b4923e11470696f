"""Statements of the documentation about results agree with the committed results."""

import csv
import itertools
import re
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from claims import (
    CLAIMS,
    CONTENT,
    COUNTS,
    FINDINGS,
    ROOT,
    Claim,
    Results,
    change,
    collapse,
    find_numbers,
    find_problems,
    find_spans,
    names,
    read_page,
    without_names,
)

from pe_bench.reporting import known_problems
from pe_bench.reporting.families import MAIN_SET
from pe_bench.reporting.paired import compare_table, headline_scores
from pe_bench.reporting.sensitivity import describe_power
from pe_bench.reporting.tables import read_tables
from pe_bench.reporting.tuning_notes import describe_tuning
from pe_bench.runs.candidates import SOLVED

EXCEPTIONS = [collapse(exception["text"]) for exception in CONTENT["exception"]]

WITH_UNIT = r"\d(?= (?:%|bits|points|MiB|times)(?!\w))"
IN_A_CELL = r"(?<=\| )[\d.]+(?= (?:% )?\|| of)"
VERDICT = r"\b(?:better|worse|best|significant(?:ly)?|differ)\b"
LEARNED = r"\blearn(?:s|ed)?\b"


@pytest.fixture(scope="module")
def results() -> Results:
    return Results()


def test_the_texts_are_on_their_pages() -> None:
    for claim in CLAIMS:
        assert claim.text in read_page(claim.page), claim.page
    for text in EXCEPTIONS:
        assert text in read_page(FINDINGS)


def test_a_text_says_nothing_but_what_is_compared() -> None:
    together: dict[tuple[str, str], list[Claim]] = {}
    for claim in CLAIMS:
        together.setdefault((claim.page, claim.text), []).append(claim)
    for (_, text), claims in together.items():
        spans = [span for claim in claims for span in find_spans(claim)]
        for number in re.finditer(r"\d+", without_names(text)):
            compared = any(start <= number.start() < end for start, end in spans)
            assert compared, f"nothing compares {number[0]}: {text}"
        pairs = [*claims[0].better, *claims[0].worse, *claims[0].same]
        assert bool(pairs) == bool(re.search(VERDICT, text)), text
        learned = any(claim.learned for claim in claims)
        assert learned == bool(re.search(LEARNED + r"|\d of \d", without_names(text))), text
        corrected = any(isinstance(pair, str) for pair in pairs)
        assert corrected == ("corrected for" in text and "`rope`" in text), text
        assert any(isinstance(pair, list) for pair in pairs) == ("among all pairs" in text), text
        better = re.search(r"[Tt]hese (\w+) are better", text)
        assert not better or COUNTS.index(better[1]) == len(claims[0].better), text


def test_the_findings_state_nothing_else() -> None:
    page = read_page(FINDINGS)
    generated = re.search("<!-- sizes -->.*<!-- end of sizes -->", page)  # test_sizes_table.py
    assert generated
    covered = [generated.span()]
    for text in [claim.text for claim in CLAIMS if claim.page == FINDINGS] + EXCEPTIONS:
        covered.append((page.index(text), page.index(text) + len(text)))
    missing = []
    for pattern in (WITH_UNIT, IN_A_CELL, VERDICT, LEARNED):
        for found in re.finditer(pattern, without_names(page)):
            if not any(start <= found.start() < end for start, end in covered):
                missing.append(page[max(0, found.start() - 60) : found.end() + 20])
    assert missing == [], "docs/claims.toml has neither a claim nor an exception for these"


@pytest.mark.slow
@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: f"{claim.task}-{claim.text[:30]}")
def test_a_claim_holds(claim: Claim, results: Results) -> None:
    assert find_problems(claim, results) == []


@pytest.mark.slow
@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: f"{claim.task}-{claim.text[:30]}")
def test_a_claim_names_the_strongest_baseline(claim: Claim, results: Results) -> None:
    ranking = results.table(claim).ranking
    named: dict[Any, list[float]] = {}
    for _, encodings, *place in claim.values:
        # The text says that some encodings are worse than even a unigram table.
        if encodings in [*ranking.baselines] and encodings != "unigram table":
            at = place[0] if place else claim.place
            named.setdefault(at, []).extend(find_numbers(claim, results, encodings, at))
    best = max if ranking.higher_is_better else min
    for at, numbers in named.items():
        baselines = [find_numbers(claim, results, name, at)[0] for name in ranking.baselines]
        assert best(numbers) == pytest.approx(best(baselines)), at


@pytest.mark.slow
def test_a_claim_can_fail(results: Results) -> None:
    """A change of any number or verdict in the file is detected."""
    for claim in CLAIMS:
        values = [[change(written), *about] for written, *about in claim.values]
        learned = [["7 of 9", about] for _, about in claim.learned]
        wrong = replace(claim, values=values, learned=learned)
        wrong = replace(wrong, better=claim.same, worse=claim.better, same=claim.worse)
        labels = [name for _, of in learned for name in names(of, results.table(claim).encodings)]
        verdicts = [*claim.better, *claim.worse, *claim.same]
        changed = len(values) + len(labels) + len(verdicts)
        assert len(find_problems(wrong, results)) == changed, claim.text


@pytest.mark.slow
def test_the_models_have_the_size_that_the_findings_say(results: Results) -> None:
    sizes: list[int] = []
    for claim in CLAIMS:
        if claim.page == FINDINGS and claim.results in ("quick", "rates", "scrolls", "extension"):
            records = results.table(claim).records
            sizes += [record.parameters for record in records if record.parameters]
    least, most = (round(size, -4) for size in (min(sizes), max(sizes)))
    assert f"They have {least:,} to {most:,} parameters" in read_page(FINDINGS)


@pytest.mark.slow
def test_the_seeds_of_fire_in_chained_facts(results: Results) -> None:
    table = results.table(Claim("chained-facts", ""))
    numbers = headline_scores(table, ["fire"]).values[0]
    failed, *learned = sorted(numbers)
    assert (table.learned("fire"), table.seeds("fire")) == (4, 5)
    assert (
        f"Four seeds of `fire` have {min(learned):.0f} to {max(learned):.0f} %; the fifth, which "
        f"did not learn, has {failed:.0f} %."
    ) in read_page(FINDINGS)


@pytest.mark.slow
def test_a_longer_context_does_not_help_on_perplexity(results: Results) -> None:
    table = results.table(Claim("perplexity", ""))
    numbers = table.numbers("4x-context", "context_gain").set_index("encoding")["mean"]
    assert 0 < numbers.pop("alibi") < 0.001 and len(numbers) == 11
    said = f"the other eleven have a loss {-numbers.max():.2f} to {-numbers.min():.2f} bits higher"
    assert said in read_page(FINDINGS)
    assert "no encoding lowers its loss by as much as 0.001 bits per byte" in read_page(FINDINGS)


@pytest.mark.slow
def test_the_ranks_of_rnope_swa_in_the_main_set(results: Results) -> None:
    ranks = {}
    for task in itertools.chain.from_iterable(MAIN_SET.values()):
        ranks[task] = results.table(Claim(task, "")).ranking.names.index("rnope-swa") + 1
    assert len(ranks) == 6 and ranks.pop("addition") == 6 and max(ranks.values()) == 2
    said = "`rnope-swa` is first or second on five of the six tasks and sixth on `addition`"
    assert said in read_page(FINDINGS)


@pytest.mark.slow
def test_the_hyperparameters_that_were_tuned(results: Results) -> None:
    tuned: dict[str, set[str]] = {}
    for task in ("addition", "copying", "mqar", "passkey", "perplexity", "probes", "recall"):
        for record in results.table(Claim(task, "")).records:
            assert record.tuning is not None
            # One choice for the task, or one for each subset.
            tried = [trial for choice in record.tuning.values() for trial in choice["tried"]]
            if any(trial.get("value") is not None for trial in tried):
                tuned.setdefault(record.encoding, set()).add(task)
    count = Counter(task for tasks in tuned.values() for task in tasks)
    assert count == {
        "perplexity": 9, "recall": 4, "probes": 4, "mqar": 3, "copying": 2, "passkey": 1
    }  # fmt: skip
    assert tuned["alibi"] == {"mqar", "perplexity", "recall"}
    assert tuned["rope"] == tuned["tape"] == {"perplexity", "recall"}


@pytest.mark.slow
def test_the_rates_at_the_edge_of_a_search_with_one_seed(results: Results) -> None:
    results.table(Claim("mqar", ""))  # reads the folder
    chosen = set()
    for table in results.tables["quick"]:
        tune = table.about.settings["tune"]
        if len(tune["seeds"]) > 1:
            continue
        for record in table.records:
            assert record.tuning is not None
            for phase, rate in record.tuning["task"]["lr"].items():
                is_edge = float(rate) in (min(tune["lr"]), max(tune["lr"]))
                chosen.add((table.about.task, record.encoding, phase, is_edge))
    assert len({task for task, *_ in chosen}) == 8
    at_edge = sum(edge for *_, edge in chosen)
    assert f"{at_edge} of its {len(chosen)} choices are the smallest or" in read_page(FINDINGS)


@pytest.mark.slow
def test_the_rates_of_mqar(results: Results) -> None:
    table = results.table(Claim("mqar", ""))
    for record in table.records:
        if record.encoding not in ("rope", "tape"):
            continue
        assert record.tuning is not None
        choice = record.tuning["task"]
        assert choice["lr"] == {"all": 1e-3}
        for rate in (1e-3, 3e-3):
            losses = [t["loss"] for t in choice["tried"] if t["lr"] == rate and not t["value"]]
            assert len(losses) == 3 and max(losses) <= SOLVED
    values = {r.encoding: r.tuning["task"]["values"]["all"] for r in table.records if r.tuning}
    tuned = {name: value for name, value in values.items() if value is not None}
    assert tuned == {"alibi": "32", "randpe": "256", "pope": "1000"}


@pytest.mark.slow
def test_the_rates_of_passkey(results: Results) -> None:
    """Encodings with the smallest rate of the search gain from a larger one."""
    searched = results.table(Claim("passkey", ""))
    larger = results.table(Claim("passkey", "", results="rates"))
    assert {record.settings["train"]["lr"] for record in larger.records} == {2e-3}
    chosen = {record.encoding: (record.tuning or {})["task"]["lr"] for record in searched.records}
    gains = []
    for name, rate in chosen.items():
        if rate == {"all": 7e-4}:
            gains.append(larger.ranking.means[name] - searched.ranking.means[name])
    said = f"by {min(gains):.1f} to {max(gains):.1f} points"
    assert len(gains) == 6 and min(gains) > 0
    shown = []
    for table in (larger, searched):
        points = describe_power(table, 8).partition(" ")[0]
        shown.append(points)
    of_t5 = []
    for table in (searched, larger):
        (found,) = (d for d in compare_table(table, "rope").to_reference if d.first == "t5")
        of_t5.append(found.significant)
    assert chosen["t5"] == chosen["rope"] == {"all": 7e-4} and of_t5 == [True, False]
    assert "`t5`, which has the same rate as `rope` in both tables" in read_page(FINDINGS)
    power = "with a power of 80 % is {} points, not {}.".format(*shown)
    assert power in read_page(FINDINGS)
    assert (
        f"Each of the six encodings with this chosen rate has a higher mean with 2e-3, {said}"
        in (read_page(FINDINGS))
    )


@pytest.mark.slow
def test_the_repetition_of_recall(results: Results) -> None:
    table = results.table(Claim("recall", "", results="tape", settings="1a63883c"))
    (found,) = (d for d in compare_table(table, "rope").to_reference if d.first == "tape")
    assert not found.significant and found.seeds == 5
    assert len(compare_table(table, "rope").to_reference) == 6
    said = f"gives `tape` {found.value:.1f} points more than `rope` (p = {found.p_value:.3f}, cor"
    assert said in read_page(FINDINGS)
    on_tape = r"by up to ([\d.]+) points between `results/quick`"  # tests/test_tape_page.py
    (largest,) = re.findall(on_tape, read_page("docs/tape.md"))
    assert f"equal seeds and settings also differ by up to {largest} points" in read_page(FINDINGS)


@pytest.mark.slow
def test_the_encodings_that_beat_a_trigram_table(results: Results) -> None:
    ranking = results.table(Claim("perplexity", "")).ranking
    floor = ranking.baselines["trigram table"]
    rows = ranking.scores.set_index("encoding")
    clearly = rows.index[rows["ci_high"] < floor]
    assert {*clearly} == {"alibi", "rnope-swa", "pope", "fire"}
    assert rows["ci_low"]["xpos"] > floor
    for name in ("randpe", "t5"):
        assert rows["ci_low"][name] < floor < rows["ci_high"][name]


@pytest.mark.slow
def test_the_seeds_of_the_two_best_encodings_on_passkey(results: Results) -> None:
    table = results.table(Claim("passkey", ""))
    rows = table.rows
    rows = rows[(rows["subset"] == table.headline.subset) & (rows["metric"] == "exact_match")]
    ends = rows.groupby("encoding")["value"].agg(["min", "max"])
    said = [
        f"{ends['min'][name]:.0f} to {ends['max'][name]:.0f} %" for name in ("rnope-swa", "alibi")
    ]
    assert f"(single seeds: {said[0]} and {said[1]})" in read_page(FINDINGS)


@pytest.mark.slow
def test_the_example_of_a_plan_has_the_power_of_the_committed_table(results: Results) -> None:
    page = read_page("docs/adding-an-encoding.md", code=True)
    table = results.table(Claim("mqar", ""))
    assert describe_power(table, table.seeds("rope")) in page


@pytest.mark.slow
def test_the_tables_that_take_new_rows_are_named() -> None:
    tasks = set()
    for table in read_tables(ROOT / "results" / "quick"):
        if (table.about.settings.get("tune") or {}).get("version", 1) > 1:
            tasks.add(table.about.task)
    *first, last = (f"`{task}`" for task in sorted(tasks))
    said = f"the tables of {', '.join(first)} and {last} accept new encodings"
    assert said in read_page("docs/adding-an-encoding.md")


def test_known_problems_have_the_same_numbers_everywhere() -> None:
    page = read_page("docs/tasks.md")
    with known_problems.FILE.open(encoding="utf-8", newline="") as file:
        problems = [*csv.DictReader(file)]
    assert problems
    for row in problems:
        found = re.search(rf"- \*\*`{row['task']}`\*\*(.*?)(?= - \*\*|$)", page)
        assert found, row["task"]
        said = {number.rstrip(".") for number in re.findall(r"\d[\w.-]*", found[1])}
        measured = re.findall(r"\d[\w.-]*", row["problem"])
        assert {number.rstrip(".") for number in measured} <= said, row["task"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "rate", "choice"),
    [
        ("chained-facts", "1.5e-3", "hybrid:global=rope,every=2,window=16 1.5e-3"),
    ],
)
def test_known_problems_name_the_rate_that_was_chosen(
    task: str, rate: str, choice: str, results: Results
) -> None:
    (line,) = describe_tuning(results.table(Claim(task, "")))
    assert choice in line and "(seed 1000, not reported)" in line  # one seed
    (problem,) = known_problems.find(results.table(Claim(task, "")).about.settings_digest)
    assert f"instead of {rate}" in problem
