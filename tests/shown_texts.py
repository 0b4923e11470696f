"""Texts of results for the terminal and for papers, and sentences about made-up differences."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from shown_runs import FREE, OWN, ROPE

from pe_bench.reporting import paired, ranks, sentences, verdicts
from pe_bench.reporting.new_runs import summarize
from pe_bench.reporting.paper_table import write_tables
from pe_bench.reporting.selection import select_tables
from pe_bench.reporting.sizes import Ladder, describe_ladder, find_ladders
from pe_bench.reporting.tables import Table, make_tables
from pe_bench.reporting.terminal import plain_table
from pe_bench.reporting.verdicts import Verdict, Verdicts
from pe_bench.results.record import RunRecord
from pe_bench.results.store import read_records
from pe_bench.stats.comparison import Difference
from pe_bench.stats.sizes import Agreement, Reversal, Stability

NAN = math.nan
HEADER = ["encoding", "a heading of many words, some of them short", "x (accuracy, % ↑)", "seeds"]
ROWS = [["name-" * 12, "1.25 ± 0.5", "–", "3"], ["short", "12.5 ± 10.25", "70.25", "12"]]
DIFFERENCES = [  # of one and of another encoding; with the number of comparisons
    (1, Difference(ROPE, OWN, 4.25, 1.5, 7.0, 6, 0.012, 0.031, 0.012, True, 2.1)),
    (3, Difference(ROPE, OWN, -4.25, -7.5, -1.0, 6, 0.0002, 0.031, 0.0006, True, 2.1)),
    (2, Difference(ROPE, OWN, 4.25, -1.5, 10.0, 6, 0.2, 0.3, 0.4, False, 5.5)),
    (2, Difference(ROPE, OWN, 0.5, -9.0, 10.5, 6, 0.9, 0.8, 1.0, False, 25.0)),
    (2, Difference(ROPE, OWN, 4.25, 0.5, 8.0, 6, 0.04, 0.0625, 0.08, False, 9.0)),
    (2, Difference(ROPE, OWN, -4.25, -8.5, -0.5, 6, 0.02, 0.0625, 0.04, False, 0.5)),
    (1, Difference(ROPE, OWN, 0.0, 0.0, 0.0, 5, NAN, NAN, 1.0, False, 0.0)),
    (1, Difference(ROPE, OWN, 2.0, NAN, NAN, 1)),
    (1, Difference(ROPE, OWN, -2.0, -2.5, -1.25, 1)),
    (1, Difference(ROPE, OWN, -2.0, -8.0, 4.0, 3, spread=3.0)),
]
MEANS = [
    Difference(ROPE, OWN, 0.031, 0.004, 0.07, 6, 0.04, 0.06, 0.04, True, 0.1),
    Difference(ROPE, OWN, -0.0004, -0.02, 0.03, 6, 0.9, 0.9, 0.9, False, 0.1),
    Difference(ROPE, OWN, -0.02, NAN, NAN, 1),
]
EVEN = Agreement(0, 1, 0.7, 0.2, 0.9, settled=False)
REVERSAL = Reversal((ROPE, OWN), DIFFERENCES[0][1], DIFFERENCES[1][1], (0, 1))
STABILITIES = [
    Stability((replace(EVEN, low=0.65),), (), "stable"),
    Stability((replace(EVEN, tau=-0.4, high=0.1, settled=True),), (), "changes"),
    Stability((EVEN,), (REVERSAL,), "changes"),
    Stability((EVEN, replace(EVEN, tau=NAN)), (), "unknown"),
    Stability((EVEN,), (), "unknown"),
]


def of_tasks(tables: Sequence[Table], *tasks: str) -> list[Table]:
    return [table for table in tables if table.task_name in tasks]


def paper_tables(tables: Sequence[Table]) -> str:
    """Return LaTeX tables: several tasks, one task with families, two encodings as columns."""
    recall = [table for table in tables if table.about.settings_digest == "d1-recall"]
    pair = [FREE, OWN]
    names = {FREE: "Size & more"}
    return "\n".join(
        [
            write_tables(select_tables(tables), "all", names=names, comments=["one", "two"]),
            write_tables(recall, "recall", families=True),
            write_tables(of_tasks(tables, "reading.py"), "adapted"),
            write_tables(select_tables(recall, None, pair), "pair", encodings=pair),
        ]
    )


def terminal_texts(records: Sequence[RunRecord], tables: Sequence[Table], other: Path) -> str:
    """Return the output of commands: summaries of runs, ranks, comparisons of two encodings."""
    recall = [r.folder for r in records if r.settings_digest == "d1-recall" and r.folder]
    earlier = read_records(other)
    untuned = [r for r in earlier if r.settings_digest == "d8-untuned" and r.folder]
    ran = [r.folder for r in untuned if r.encoding == OWN and r.folder]
    compared = of_tasks(tables, "addition", "flipflop", "passkey")
    families = [*compared, *of_tasks(tables, "mqar")[:1]]
    unclear = verdicts.compare_pair(of_tasks(tables, "addition", "passkey"), OWN, ROPE)
    wide = [table for table in tables if table.about.settings_digest == "d2-wide"]
    found = [verdicts.compare_pair(compared, OWN, ROPE), verdicts.compare_pair(compared, ROPE, OWN)]
    parts = [
        *map(sentences.title, [*found, unclear]),
        summarize(ran, earlier),
        summarize(recall, wide=True),
        ranks.describe_ranks(families),
        ranks.describe_ranks(compared[1:]),
        *sentences.describe(found[0]),
        *sentences.describe(found[1]),
        *sentences.describe(verdicts.compare_pair(wide, ROPE, FREE)),
        *sentences.describe(verdicts.compare_pair(make_tables(untuned), ROPE, OWN)),
        *sentences.describe(verdicts.compare_pair(make_tables(untuned), ROPE, FREE)),
    ]
    (table,) = make_tables(untuned)
    parts.append(plain_table(HEADER, ROWS))
    parts += [paired.describe(table, paired.compare_table(table)), *made_up_sentences(tables)]
    return "\n\n".join(parts) + "\n"


def made_up_sentences(tables: Sequence[Table]) -> list[str]:
    """Return sentences about differences and agreements of every kind."""
    (score, *_), (loss,) = of_tasks(tables, "mqar"), of_tasks(tables, "flipflop")
    found = []
    for number, (comparisons, difference) in enumerate(DIFFERENCES):
        for table in (score, loss) if number < 2 else (loss,):
            verdict = Verdict(table, difference, 52.25, 48.0, comparisons)
            found.append(sentences.describe_verdict(verdict, f"task {number}"))
    first, second, third = (Verdict(loss, one, 2.0, 3.0, 3) for _, one in DIFFERENCES[:3])
    better = replace(first, table=score)
    groups = [[first], [better], [first, better], [first, second, third], [better, better, third]]
    for number, verdicts_of_group in enumerate(groups):
        together = Verdicts(ROPE, OWN, verdicts_of_group, [None, *MEANS][number % 4])
        found += [sentences.title(together), sentences.describe_all(together)]
    found += [sentences.describe_mean(mean, number + 1) for number, mean in enumerate(MEANS)]
    (ladder,) = find_ladders(of_tasks(tables, "mqar"))
    for stability in STABILITIES:
        own = Ladder(ladder.key, ladder.tables, ladder.encodings)
        own.__dict__["stability"] = stability  # cached
        found += describe_ladder(own)[: 1 + len(stability.reversals)]
    return found
