"""The text and the data of the page, without its scripts and styles."""

import json
import re
from html.parser import HTMLParser
from typing import Any

KEPT = ("id", "href", "style", "title", "aria-sort", "data-c", "data-preset", "data-unlearned")
BLOCKS = {"p", "h1", "h2", "h3", "h4", "tr", "li", "section", "summary", "caption", "dt", "dd"}
LONG = 60  # characters of a line that is not repeated
WIDTH = 120  # characters of JSON that are on one line


def page_text(html: str, known: str) -> tuple[str, str]:
    """Return the text of a page with the attributes that hold numbers, and its data as JSON.

    Args:
        html: the page.
        known: another text; of a long line in it only the beginning is returned.
    """
    reader = _Reader()
    reader.feed(html)
    lines = [" ".join(line.split()) for line in "".join(reader.text).splitlines()]
    text = shorten("\n".join(filter(None, lines)), known)
    return f"{text}\n", f"{outline(json.loads(reader.data))}\n"


def shorten(text: str, known: str = "") -> str:
    """Return a text with only the beginning of long lines that are repeated, or in another text.

    Cells of tables are not padded.
    """
    lines: list[str] = []
    seen = {*known.splitlines()}
    for line in text.splitlines():
        again = len(line) > LONG and line in seen and not line.startswith("|")
        lines.append(f"{line[:LONG]}..." if again else re.sub(" +", " ", line))
        seen.add(line)
    return "\n".join(lines)


class _Reader(HTMLParser):
    """Collects text and data."""

    def __init__(self) -> None:
        super().__init__()
        self.text: list[str] = []
        self.data = ""
        self.within = ""  # script or style

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("script", "style"):
            self.within = tag
        if tag in BLOCKS:
            self.text.append("\n")
        if tag in ("td", "th"):
            self.text.append(" | ")
        kept = [(name, value or "") for name, value in attrs if name in KEPT]
        values = [f"{name}={value}" for name, value in kept if not value.startswith("--c")]
        if values:
            self.text.append(f" [{' '.join(values)}] ")

    def handle_endtag(self, tag: str) -> None:
        self.within = "" if tag == self.within else self.within

    def handle_data(self, data: str) -> None:
        if not self.within:
            self.text.append(data.replace("\n", " "))
        elif data.lstrip().startswith("{"):
            self.data = data


def outline(value: Any, indent: str = "") -> str:
    """Return JSON whose short parts are on one line."""
    text = json.dumps(value, ensure_ascii=False)
    if len(text) < WIDTH or not isinstance(value, dict | list):
        return text
    deeper = f"{indent} "
    if isinstance(value, list):
        parts = [outline(one, deeper) for one in value]
    else:
        parts = [
            f"{json.dumps(name, ensure_ascii=False)}: {outline(one, deeper)}"
            for name, one in value.items()
        ]
    ends = "[]" if isinstance(value, list) else "{}"
    inner = ",\n".join(f"{deeper}{part}" for part in parts)
    return f"{ends[0]}\n{inner}\n{indent}{ends[1]}"
