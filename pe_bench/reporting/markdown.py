"""Tables in Markdown that can also be read in a terminal."""

from collections.abc import Sequence

ABSENT = "–"


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], align: str) -> str:
    """Return a Markdown table, its cells padded to the width of their column.

    Args:
        header: a heading for each column.
        rows: as many cells each.
        align: a letter for each column, "l" for text and "r" for numbers. Text in the last column
            is not padded, it may be sentences.
    """
    rule = ["---:" if side == "r" else "---" for side in align]
    lines = [header, rule, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    if align[-1] == "l":
        widths[-1] = 0
    return "\n".join(_line(line, widths, align) for line in lines)


def _line(cells: Sequence[str], widths: Sequence[int], align: str) -> str:
    padded = []
    for cell, width, side in zip(cells, widths, align, strict=True):
        padded.append(cell.rjust(width) if side == "r" else cell.ljust(width))
    return f"| {' | '.join(padded)} |"
