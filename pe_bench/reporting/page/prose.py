"""Conversion of docstrings to HTML: paragraphs, formulas, pipe tables, lists of arguments."""

import re

from markupsafe import Markup, escape

LETTERS = re.compile(r"((?:^|\()[a-z]{6})[a-z]{4,}(?=\)?$)")  # alone, or in brackets at the end
BREAKS = re.compile(r"([:=+]|,(?!\d{3}\b))(?=.)")  # not between thousands
CODE = re.compile(r"`([^`]+)`")
ARGUMENT = re.compile(r"^ {0,4}([\w, *-]+): (.*)$")
SECTIONS = ("Args:", "Attributes:", "Shortcuts:")


def render(text: str) -> Markup:
    """Convert a docstring to HTML. HTML in the docstring is escaped."""
    parts = []
    blocks = re.split(r"\n\s*\n", text.strip("\n"))
    for block in blocks:
        lines = block.splitlines()
        if lines and lines[0].strip() in SECTIONS:
            if lines[0].strip() == "Shortcuts:":
                parts.append(Markup("<p>Shortcuts that it has on purpose:</p>"))
            parts.append(_arguments(lines[1:]))
        elif lines and all(line.lstrip().startswith("|") for line in lines):
            parts.append(_table(lines))
        elif lines and all(line.startswith("    ") for line in lines):
            parts.append(Markup("<pre>{}</pre>").format("\n".join(line[4:] for line in lines)))
        elif lines:
            parts.append(Markup("<p>{}</p>").format(inline(" ".join(lines))))
    return Markup("\n").join(parts)


def inline(text: str) -> Markup:
    """Convert a sentence to HTML, with text between backticks as code."""
    return Markup(CODE.sub(r"<code>\1</code>", str(escape(text))))


def breakable(label: str) -> Markup:
    """Convert a label to HTML that can be broken after a sign between its options."""
    return Markup(BREAKS.sub(r"\1<wbr>", str(escape(label))))


def cut_letters(text: str) -> str:
    """Shorten long compact letter displays in a table cell; they are too long to compare."""
    return LETTERS.sub(r"\1…", text)


def anchor_of(text: str) -> str:
    """Convert a text to a part of an anchor, which need not be unique."""
    return re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-") or "x"


def _table(lines: list[str]) -> Markup:
    kept = []
    for line in lines:
        row = [cell.strip() for cell in line.strip().strip("|").split("|")]
        is_rule = all(set(cell) <= set("-: ") for cell in row)
        if not is_rule:
            kept.append(row)
    html = []
    for index, row in enumerate(kept):
        tag = Markup("th") if index == 0 else Markup("td")
        cells = [Markup("<{0}>{1}</{0}>").format(tag, inline(cell)) for cell in row]
        html.append(Markup("<tr>{}</tr>").format(Markup("").join(cells)))
    table = Markup("<table class=plain>{}</table>").format(Markup("").join(html))
    return Markup("<div class=scroll>{}</div>").format(table)


def _arguments(lines: list[str]) -> Markup:
    found: list[tuple[str, str]] = []
    for line in lines:
        match = ARGUMENT.match(line)
        if match:
            found.append((match[1], match[2]))
        elif found:
            name, before = found[-1]
            found[-1] = (name, f"{before} {line.strip()}")
    items = [
        Markup("<dt><code>{}</code></dt><dd>{}</dd>").format(name, inline(words))
        for name, words in found
    ]
    return Markup("<dl>{}</dl>").format(Markup("").join(items))
