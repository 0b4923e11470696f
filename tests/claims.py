"""Compare the claims of the documentation, docs/claims.toml, with tables of results."""

import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from pe_bench.reporting.paired import Comparison, compare_table
from pe_bench.reporting.tables import Table, read_tables
from pe_bench.stats.comparison import Difference

ROOT = Path(__file__).parents[1]
CONTENT = tomllib.loads((ROOT / "docs" / "claims.toml").read_text(encoding="utf-8"))
FINDINGS = "docs/findings.md"
COUNTS = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
COUNTS += ["eleven", "twelve"]
VERDICTS = ("better", "worse", "same")


@dataclass(frozen=True)
class Claim:
    """A statement of a page about a table, see docs/claims.toml."""

    task: str
    text: str
    page: str = FINDINGS
    results: str = "quick"
    preset: str = "quick"
    settings: str = ""
    place: str = ""
    values: Sequence[Sequence[Any]] = ()
    learned: Sequence[Sequence[Any]] = ()
    better: Sequence[Any] = ()
    worse: Sequence[Any] = ()
    same: Sequence[Any] = ()
    encodings: str = ""
    given: Sequence[str] = ()


def read_claims() -> Iterator[Claim]:
    """Return all claims of the file."""
    for table in CONTENT["table"]:
        about = {key: value for key, value in table.items() if key != "claim"}
        for claim in table["claim"]:
            yield Claim(**about, **claim | {"text": collapse(claim["text"])})


@dataclass
class Results:
    """The committed tables of each folder and their comparisons, computed once."""

    tables: dict[str, list[Table]] = field(default_factory=dict)
    compared: dict[tuple[str, str], Comparison] = field(default_factory=dict)

    def table(self, claim: Claim) -> Table:
        """Return the table of a claim."""
        if claim.results not in self.tables:
            self.tables[claim.results] = read_tables(ROOT / "results" / claim.results)
        found = []
        for table in self.tables[claim.results]:
            about = table.about
            if (about.task, about.preset) == (claim.task, claim.preset):
                found.append(table)
        if claim.settings:
            found = [table for table in found if table.about.settings_digest == claim.settings]
        assert len(found) == 1, f"{len(found)} tables of {claim.task}, name one by its settings"
        return found[0]

    def comparison(self, claim: Claim) -> Comparison:
        """Return the comparison of the encodings in the table of a claim."""
        table = self.table(claim)
        key = claim.results, table.about.settings_digest  # folders may have equal settings
        if key not in self.compared:
            self.compared[key] = compare_table(table)
        return self.compared[key]


@cache
def read_page(page: str, *, code: bool = False) -> str:
    """Return a page on one line, by default without its code blocks."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return collapse(text if code else re.sub(r"```.*?```", "", text, flags=re.DOTALL))


def collapse(text: str) -> str:
    """Return a text on one line."""
    return " ".join(text.split())


def without_names(text: str) -> str:
    """Return a text of the same length, with names of encodings and targets of links blanked."""
    return re.sub(r"`[^`]*`|\]\([^)]*\)", lambda found: "·" * len(found[0]), text)


def find_spans(claim: Claim) -> list[tuple[int, int]]:
    """Return the positions in the text of all compared or given numbers, in their order.

    Raises:
        AssertionError: the text does not have a value.
    """
    text = without_names(claim.text)
    spans = []
    end = 0
    lengths = []
    for written, _, *place in claim.values:
        found = re.compile(rf"(?<![\w.,-]){re.escape(written)}(?!\w|[.,]\d)").search(text, end)
        assert found, f"'{written}' is not in '{text[end:]}'"
        end = found.end()
        spans.append(found.span())
        lengths += re.findall(r"(?<= )\d+", " ".join(map(str, place or [claim.place])))
    others = [written for written, _ in claim.learned] + [*claim.given, *lengths]
    for written in others:
        spans += [found.span() for found in re.finditer(re.escape(written), text)]
    return spans


def find_problems(claim: Claim, results: Results) -> list[str]:
    """Return how a claim and its table differ; empty if the claim holds."""
    table = results.table(claim)
    found = []
    for written, encodings, *place in claim.values:
        numbers = find_numbers(claim, results, encodings, place[0] if place else claim.place)
        if not agrees(written, numbers):
            found.append(f"'{written}' for {encodings}: the table has {numbers}")
    for written, encodings in claim.learned:
        for name in names(encodings, table.encodings):
            count = f"{table.learned(name)} of {table.seeds(name)}"
            if count != written_count(written, table.seeds(name)):
                found.append(f"'{written}' for {name}: the table has {count}")
    for verdict in VERDICTS:
        for pair in getattr(claim, verdict):
            actual = find_verdict(pair, table, results.comparison(claim))
            if actual != verdict:
                found.append(f"{pair} is '{actual}' in the table, not '{verdict}'")
    if claim.encodings and COUNTS.index(claim.encodings) != len(table.encodings):
        found.append(f"there are {len(table.encodings)} encodings, not {claim.encodings}")
    corrected = re.search(r"corrected for (\w+) comparisons", claim.text)
    if corrected:
        comparisons = len(results.comparison(claim).to_reference)
        if corrected[1] != COUNTS[comparisons]:
            found.append(f"'{corrected[0]}': there are {comparisons}")
    return found


def find_numbers(claim: Claim, results: Results, encodings: Any, place: Any) -> list[float]:
    """Return the numbers of encodings or baselines at a place, or at each of several places."""
    table = results.table(claim)
    if isinstance(place, list):
        return [n for one in place for n in find_numbers(claim, results, encodings, one)]
    if place == "p":
        p_values = {one.first: one.p_value for one in results.comparison(claim).to_reference}
        return [p_values[name] for name in names(encodings, [*p_values])]
    headline = f"{table.headline.subset} {table.headline.metric}"
    subset, metric, *axes = (place or headline).split()
    rows = table.means[(table.means["subset"] == subset) & (table.means["metric"] == metric)]
    rows = at_place(rows, axes)
    numbers = dict(zip(rows["encoding"], rows["mean"].astype(float), strict=True))
    assert len(numbers) == len(rows), f"several numbers at '{place}': {claim.text}"
    measured = [name for name in table.encodings if name in numbers]
    return [numbers[name] for name in names(encodings, measured)]


def at_place(rows: pd.DataFrame, axes: Sequence[str]) -> pd.DataFrame:
    """Return the rows at a length and a place on the second axis; without them, the means."""
    if not axes:
        return rows[rows["length"].isna() & (rows["second_axis"] == "")]
    rows = rows[rows["length"] == float(axes[0])]
    return rows[rows["second_axis"] == axes[1]] if len(axes) > 1 else rows


def names(encodings: Any, everyone: Sequence[str]) -> list[str]:
    """Return labels; "all" stands for all of the table."""
    if encodings == "all":
        return list(everyone)
    return [encodings] if isinstance(encodings, str) else list(encodings)


def agrees(written: str, numbers: Sequence[float]) -> bool:
    """Return whether numbers, rounded as in the text, equal the text."""
    parts = re.fullmatch(r"(less than |at most )?([\d.,]+)(?: to ([\d.,]+))?", written)
    assert parts, f"'{written}' is not a number, a range or a limit"
    bound, low, high = parts.groups()
    if bound == "less than ":
        return max(numbers) < as_number(low)
    if bound:
        return round_as(low, max(numbers)) <= as_number(low)
    ends = ((low, min(numbers)), (high or low, max(numbers)))
    return all(round_as(text, number) == as_number(text) for text, number in ends)


def as_number(text: str) -> float:
    """Return a number that may have commas between thousands."""
    return float(text.replace(",", ""))


def round_as(text: str, number: float) -> float:
    """Return a number with as many decimals as a text has."""
    return float(f"{number:.{len(text.partition('.')[2])}f}")


def written_count(written: str, seeds: int) -> str:
    """Return a count of seeds as "4 of 5": "every seed" and "no seed" are counts, too."""
    if written.startswith("every"):
        return f"{seeds} of {seeds}"
    return f"0 of {seeds}" if re.match(r"no|none", written) else written


def find_verdict(pair: Any, table: Table, found: Comparison) -> str:
    """Return the verdict of the table on an encoding and the reference, or on any pair."""
    if isinstance(pair, str):
        (difference,) = (one for one in found.to_reference if one.first == pair)
        return describe(difference, table)
    (difference,) = (one for one in found.pairs if {one.first, one.second} == set(pair))
    if difference.first != pair[0]:
        difference = replace(difference, value=-difference.value)
    return describe(difference, table)


def describe(difference: Difference, table: Table) -> str:
    """Return the verdict on the first encoding of a difference."""
    if not difference.significant:
        return "same"
    return "better" if (difference.value > 0) == table.ranking.higher_is_better else "worse"


def change(written: str) -> str:
    """Return numbers changed by one in the last digit; a limit becomes 0."""
    if not written[0].isdigit():
        return re.sub(r"\d", "0", written)
    return re.sub(r"\d(?!.*\d)", lambda found: str((int(found[0]) + 1) % 10), written)


CLAIMS = [*read_claims()]
