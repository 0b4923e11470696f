"""Write the page: content from a template, numbers as JSON, inlined scripts and styles."""

import json
import math
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from pe_bench.reporting import sizes
from pe_bench.reporting.charts_json import list_charts, round_number
from pe_bench.reporting.columns import NumberColumn
from pe_bench.reporting.page import commands, prose, provenance
from pe_bench.reporting.page.colours import dark
from pe_bench.reporting.page.content import gather
from pe_bench.reporting.page.model import Content, TableSection
from pe_bench.reporting.report_data import ReportData
from pe_bench.reporting.styles import outline, own_first
from pe_bench.reporting.tables import Table
from pe_bench.results.labels import shorten_labels
from pe_bench.system import commit
from pe_bench.system.files import write_atomic

HERE = Path(__file__).parent
STYLES = ("page.css",)
SCRIPTS = ("vendor/d3.min.js", "vendor/plot.umd.min.js", "charts.js", "downloads.js", "page.js")
NAME = "index.html"
DIGITS = 6  # significant digits of the value of a run


def write_page(folder: Path, data: ReportData) -> Path:
    """Write index.html into a folder and return its path.

    Raises:
        SavingError: the page could not be saved.
    """
    path = folder / NAME
    write_atomic(path, render(gather(data), data.tables))
    return path


def render(content: Content, tables: Sequence[Table]) -> str:
    """Return the page as HTML."""
    short = shorten_labels(one.label for one in content.encodings)
    return _template().render(
        content=content,
        short=short,
        styles=Markup("\n".join(map(_read, STYLES))),
        scripts=[Markup(_read(name)) for name in SCRIPTS],
        licences=Markup(_read("vendor/LICENSES.txt")),
        data=embed(_data(content, tables, short)),
        commit=commit.show_commit({"git": commit.find_commit()}),
        rounding=commit.UP_TO_ROUNDING,
    )


@cache
def _template() -> Template:
    """Return the template of the page, compiled once per process."""
    environment = Environment(
        loader=PackageLoader("pe_bench.reporting.page", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["prose"] = prose.inline
    environment.filters["breakable"] = prose.breakable
    environment.filters["dark"] = dark
    environment.filters["brief"] = prose.cut_letters
    environment.filters["thousands"] = "{:,}".format
    environment.globals["provenance"] = provenance
    environment.globals["commands"] = commands
    environment.globals["sizes"] = sizes
    return environment.get_template("page.html")


def embed(data: Any) -> Markup:
    """Return JSON for a script element, escaped so that no text in it ends the element."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def _data(content: Content, tables: Sequence[Table], short: Mapping[str, str]) -> dict[str, Any]:
    """Return the data of the scripts: encodings, and the charts and single runs of each table."""
    encodings = [
        {
            "label": one.label,
            "short": short[one.label],
            "id": one.id,
            "family": one.family,
            "outline": outline(one.style.marker),
        }
        for one in content.encodings
    ]
    sections = {section.id: _section_data(section, tables) for section in content.sections}
    return {"encodings": encodings, "tables": sections}


def _section_data(section: TableSection, tables: Sequence[Table]) -> dict[str, Any]:
    table = section.table
    columns = section.numbers
    runs: dict[str, list[list[Any]]] = {}
    for run in provenance.list_runs(table):
        encoding = run.pop("encoding")
        runs.setdefault(encoding, []).append(list(run.values()))
    solved = {name: [table.learned(name), table.seeds(name)] for name in table.encodings}
    commands_of_encodings = {name: _commands(table, name) for name in runs}
    about = table.about
    return {
        "heading": table.heading,
        "settings": about.settings_digest,
        "columns": [column.heading for column in columns],
        "values": _values(table, columns),
        "task": about.task,
        "commands": commands_of_encodings,
        "runs": runs,
        "ranking": own_first(table.ranking.order),
        "reference": section.comparison.reference,
        "solved": solved,
        "measuresTime": about.measures_time,
        "spread": "seeds" if table.has_seeds else "items",
        "charts": list_charts(table, tables),
    }


def _commands(table: Table, encoding: str) -> list[str]:
    """Return an explanation, and the commands that reproduce the runs of an encoding."""
    records = [record for record in table.records if record.encoding == encoding]
    found = commands.list_commands(records)
    return [commands.describe_commands(records, found), "\n".join(found)]


def _values(table: Table, shown: Sequence[NumberColumn]) -> dict[str, list[Any]]:
    """Return for each encoding and column the values of all seeds, with intervals over items."""
    rows = table.rows[table.rows["second_axis"] == ""]
    wanted = ["encoding", "subset", "metric", "length", "seed", "value", "ci_low", "ci_high", "n"]
    found: dict[tuple[Any, ...], list[Any]] = {}  # of what the columns show
    for column in shown:
        for row in column.of.values():
            found[_key(row["encoding"], row["subset"], row["metric"], row["length"])] = []
    columns = [rows[name].tolist() for name in wanted]
    for name, subset, metric, length, *value in zip(*columns, strict=True):
        own = found.get(_key(name, subset, metric, length))
        if own is not None:
            own.append([round_number(float(number), DIGITS) for number in value])
    values: dict[str, list[Any]] = {name: [] for name in table.encodings}
    for column in shown:
        for name, entries in values.items():
            number = column.of.get(name)
            if number is None:
                entries.append(None)
                continue
            key = _key(name, number["subset"], number["metric"], number["length"])
            entries.append(found[key] or None)
    return values


def _key(encoding: Any, subset: Any, metric: Any, length: Any) -> tuple[Any, ...]:
    """Return the key of a number; nan, which equals nothing, becomes None."""
    return encoding, subset, metric, None if math.isnan(length) else length


def _read(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")
