"""Tables and sentences for a terminal of 80 columns."""

import textwrap
from collections.abc import Sequence

WIDTH = 80
GAP = "  "
HEADINGS = (20, 12, 8)  # minimum widths of a column with a wrapped heading; the first that fits
SPREAD = " ± "


def wrap(text: str) -> str:
    """Wrap a text to the width of a terminal."""
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def plain_table(header: Sequence[str], rows: Sequence[Sequence[str]], width: int = WIDTH) -> str:
    """Return a table without rules; the first column is left-aligned, all others right-aligned.

    Headings are wrapped. A first cell that is too long gets a separate line, so nothing is cut.

    Args:
        header: a heading for each column.
        rows: cells of each row, one for each column; "a ± b" is aligned at the sign.
        width: characters per line; headings of many columns may need more.
    """
    columns = []
    for number in range(1, len(header)):
        columns.append(_align([row[number] for row in rows]))
    names = [row[0] for row in rows]
    longest = max(map(len, [header[0], *names]))
    for least in HEADINGS:
        headings = []
        widths = []
        for text, column in zip(header[1:], columns, strict=True):
            heading = _wrap_heading(text, max([least, *map(len, column)]))
            headings.append(heading)
            widths.append(max(map(len, [*heading, *column])))
        room = width - sum(len(GAP) + each for each in widths)
        if longest <= room:
            break
    first = max([len(header[0]), *(len(name) for name in names if len(name) <= room)])
    height = max([1, *map(len, headings)])
    padded = [[""] * (height - len(heading)) + heading for heading in headings]
    lines = []
    for level in range(height):
        texts = [heading[level] for heading in padded]
        lines.append(_line(header[0] if level == height - 1 else "", texts, first, widths))
    for index, name in enumerate(names):
        if len(name) > first:
            lines.append(name)
            name = ""
        lines.append(_line(name, [column[index] for column in columns], first, widths))
    return "\n".join(line.rstrip() for line in lines)


def _wrap_heading(text: str, width: int) -> list[str]:
    lines = textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)
    return lines or [""]


def _align(cells: Sequence[str]) -> list[str]:
    """Pad the deviations of cells to the widest one, so that all numbers line up."""
    widest = max([0, *(len(cell.partition(SPREAD)[2]) for cell in cells)])
    aligned = []
    for cell in cells:
        number, _, deviation = cell.partition(SPREAD)
        tail = SPREAD + deviation.rjust(widest) if deviation else " " * (widest + len(SPREAD))
        aligned.append(number + tail if widest else cell)
    return aligned


def _line(name: str, cells: Sequence[str], first: int, widths: Sequence[int]) -> str:
    padded = [cell.rjust(width) for cell, width in zip(cells, widths, strict=True)]
    return GAP.join([name.ljust(first), *padded])
