"""Tables in Markdown that can also be read in a terminal, and generated blocks of a page."""

import re
from collections.abc import Sequence

ABSENT = "–"
SPECIAL = re.compile(r"[\\`\[\]<>|*~$]|&(?=[#\w]+;)|(?<![^\W_])_|_(?![^\W_])")
"""Characters with a meaning in Markdown. Underscores within a word have none."""


class Markdown(str):
    """Text that is Markdown already."""


def escape(text: str) -> str:
    """Escape a text so that Markdown shows it literally on one line, including HTML tags.

    `Markdown` is returned unchanged.
    """
    if isinstance(text, Markdown):
        return text
    return SPECIAL.sub(r"\\\g<0>", " ".join(text.splitlines()))


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], align: str) -> str:
    """Return a Markdown table of plain texts, its cells padded to the width of their column.

    Args:
        header: a heading for each column.
        rows: cells of each row, one for each column.
        align: a letter for each column, "l" for text and "r" for numbers. Text in the last column
            is not padded because it may consist of sentences.
    """
    rule = ["---:" if side == "r" else "---" for side in align]
    texts = []
    for row in (header, *rows):
        texts.append([escape(cell) for cell in row])
    lines = [texts[0], rule, *texts[1:]]
    widths = []
    for column in range(len(header)):
        widths.append(max(len(line[column]) for line in lines))
    if align[-1] == "l":
        widths[-1] = 0
    return "\n".join(_line(line, widths, align) for line in lines)


def find_block(page: str, name: str) -> str:
    """Return the text of a page between the lines `<!-- NAME -->` and `<!-- end of NAME -->`.

    Raises:
        ValueError: the page does not have exactly one such block.
    """
    start, end = _span(page, name)
    return page[start:end]


def replace_block(page: str, name: str, text: str) -> str:
    """Return a page with another text in a block, see `find_block`."""
    start, end = _span(page, name)
    return page[:start] + text + page[end:]


def _span(page: str, name: str) -> tuple[int, int]:
    pattern = rf"(?<=<!-- {re.escape(name)} -->\n).*?(?=\n<!-- end of {re.escape(name)} -->)"
    found = [match.span() for match in re.finditer(pattern, page, re.DOTALL)]
    if len(found) != 1:
        raise ValueError(f"the page has {len(found)} blocks '{name}' instead of one")
    return found[0]


def _line(cells: Sequence[str], widths: Sequence[int], align: str) -> str:
    padded = []
    for cell, width, side in zip(cells, widths, align, strict=True):
        padded.append(cell.rjust(width) if side == "r" else cell.ljust(width))
    return f"| {' | '.join(padded)} |"
