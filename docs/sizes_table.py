"""Write the scores at several sizes of the model in docs/findings.md.

    python docs/sizes_table.py

The numbers come from results/sizes. `tests/test_sizes_table.py` fails if page and results disagree.
"""

import textwrap
from collections.abc import Sequence
from pathlib import Path

from pe_bench.reporting.markdown import Markdown, markdown_table, replace_block
from pe_bench.reporting.sizes import Ladder, find_ladders, score_rows
from pe_bench.reporting.tables import read_tables
from pe_bench.system.files import write_atomic

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "findings.md"
RESULTS = ROOT / "results" / "sizes"
WIDTH = 110  # characters of a line of the page
BLOCK = "sizes"


def main() -> None:
    """Write the tables."""
    text = PAGE.read_text(encoding="utf-8")
    write_atomic(PAGE, replace_block(text, BLOCK, compose(read())))


def read() -> list[Ladder]:
    """Return the committed tasks with several sizes of the model."""
    return find_ladders(read_tables(RESULTS))


def compose(ladders: Sequence[Ladder]) -> str:
    """Return a table for each task, with the agreement of the orders below it."""
    parts = []
    for ladder in ladders:
        (label, *sizes), *rows = score_rows(ladder)
        for row in rows:
            is_baseline = row[0] in ladder.tables[-1].ranking.shown_baselines
            row[0] = Markdown(f"*{row[0]}*" if is_baseline else f"`{row[0]}`")
        header = [f"{ladder.tables[-1].about.task} ({label})"]
        for table, size in zip(ladder.tables, sizes, strict=True):
            header.append(f"width {table.about.settings['model']['width']}: {size}")
        parts.append(markdown_table(header, rows, "l" + "r" * len(sizes)))
        parts.append(textwrap.fill(describe(ladder), WIDTH))
    return "\n\n".join(parts)


def describe(ladder: Ladder) -> str:
    """Return a sentence on Kendall's tau between the sizes, and the mark."""
    assert ladder.stability is not None
    said = []
    for one in ladder.stability.agreements:
        sizes = f"{ladder.parameters[one.first]:,} and {ladder.parameters[one.second]:,}"
        said.append(
            f"{one.tau:+.2f} between {sizes} parameters ({one.low:+.2f} to {one.high:+.2f})"
        )
    return (
        f"Kendall's tau, with 95 % intervals: {', '.join(said)}. Stability of the order "
        f"([rule](results.md#sizes)): **{ladder.mark}**."
    )


if __name__ == "__main__":
    main()
