"""LaTeX source of tables: escaped texts and a `table` environment."""

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",  # \textquotedbl does not exist in the default font encoding
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "→": r"$\rightarrow$",
    "±": r"$\pm$",
    "×": r"$\times$",
    "∞": r"$\infty$",
    "·": r"$\cdot$",
    "†": r"\dag{}",
    "–": "--",
    "−": "$-$",
    "\N{ZERO WIDTH SPACE}": "{}",
}
"""Characters that LaTeX does not print literally. Other characters are in the source as UTF-8."""
HEADING = 14  # characters per line of a heading
COMMENT = 98  # characters per line of a comment
ABSENT = "–"


@dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Attributes:
        text: the main part, plain text.
        small: further text in a small font, such as an interval.
        raised: superscript.
        bold: whether the main part is bold.
    """

    text: str
    small: str = ""
    raised: str = ""
    bold: bool = False

    def source(self) -> str:
        """Return the LaTeX source."""
        text = escape(re.sub(r"^-(?=\d)", "−", self.text))  # a minus sign, not a hyphen
        parts = [rf"\textbf{{{text}}}" if self.bold else text]
        if self.small:
            parts.append(rf"\,{{\scriptsize {escape(self.small)}}}")
        if self.raised:
            parts.append(rf"\textsuperscript{{{escape(self.raised)}}}")
        return "".join(parts)


@dataclass(frozen=True)
class Rows:
    """Rows of a table that belong together, with a rule above them.

    Attributes:
        names: the first cell of each row.
        cells: the other cells, (rows, columns).
    """

    names: Sequence[str]
    cells: Sequence[Sequence[Cell]]


@dataclass(frozen=True)
class Part:
    """A part of a table with a heading. Parts are stacked.

    Attributes:
        headings: lines of the heading of each column, the first column included.
        blocks: the rows.
    """

    headings: Sequence[Sequence[str]]
    blocks: Sequence[Rows]


def escape(text: str) -> str:
    """Return the source of a plain text on one line."""
    apart = " ".join(text.split()).replace("--", "-\N{ZERO WIDTH SPACE}-")  # no dash
    return "".join(SPECIAL.get(character, character) for character in apart)


def make_table(
    parts: Sequence[Part],
    *,
    caption: str,
    label: str,
    comments: Sequence[str] = (),
    text_columns: int = 1,
) -> str:
    r"""Return a `table` environment with the rules of booktabs.

    Args:
        parts: the parts; at least one.
        caption: plain text.
        label: name for `\ref`.
        comments: plain texts, one comment each.
        text_columns: number of columns on the left that are not numbers.
    """
    columns = max(len(part.headings) for part in parts)
    align = "l" * text_columns + "r" * (columns - text_columns)
    lines = [
        *(line for text in comments for line in _comment(text)),
        r"\begin{table}[t]",
        r"\centering",
        r"\setlength{\belowcaptionskip}{4pt}",
        rf"\caption{{{escape(caption)}}}",
        rf"\label{{{label}}}",
        r"\small",
        r"\setlength{\tabcolsep}{4pt}",
        rf"\begin{{tabular}}{{@{{}}{align}@{{}}}}",
    ]
    for number, part in enumerate(parts):
        lines.append(r"\midrule" if number else r"\toprule")
        heads = zip(part.headings, align, strict=False)
        lines.append(_row([_heading(texts, side) for texts, side in heads]))
        for block in part.blocks:
            lines.append(r"\midrule")
            for name, cells in zip(block.names, block.cells, strict=True):
                lines.append(_row([escape(name), *(cell.source() for cell in cells)]))
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}"]) + "\n"


def _row(sources: Sequence[str]) -> str:
    return " & ".join(sources) + r" \\"


def _heading(lines: Sequence[str], align: str) -> str:
    """Return a heading, its lines below each other."""
    wrapped: list[str] = []
    for line in lines:
        kept = re.sub(r" (?=[↑↓])", "\N{NO-BREAK SPACE}", line)  # an arrow is never alone
        wrapped += textwrap.wrap(kept, HEADING, break_long_words=False, break_on_hyphens=False)
    if len(wrapped) < 2:
        return escape("".join(wrapped))
    stacked = r" \\ ".join(map(escape, wrapped))
    return rf"\shortstack[{align}]{{{stacked}}}"


def _comment(text: str) -> list[str]:
    return [f"% {line}" for line in textwrap.wrap(text, COMMENT)]
