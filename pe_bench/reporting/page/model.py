"""The sections of the page: what each of them shows."""

from dataclasses import dataclass, field

from markupsafe import Markup

from pe_bench.reporting.columns import NumberColumn
from pe_bench.reporting.page.bars import Bar
from pe_bench.reporting.paired import Comparison
from pe_bench.reporting.published import Published, Source
from pe_bench.reporting.styles import Style
from pe_bench.reporting.tables import Table
from pe_bench.results.record import RunRecord


@dataclass(frozen=True)
class Row:
    """A line of a table.

    Attributes:
        label: encoding or reference.
        cells: texts behind the label.
        bars: an interval for some cells, by their place.
        shares: of some cells, by their place, how good from 0 to 1.
        learned: whether at least one seed passed the gate of the task.
        below: whether it is not better than a reference.
        is_baseline: whether it is one.
    """

    label: str
    cells: list[str]
    bars: dict[int, Bar] = field(default_factory=dict)
    shares: dict[int, float] = field(default_factory=dict)
    learned: bool = True
    below: bool = False
    is_baseline: bool = False


@dataclass(frozen=True)
class Overview:
    """The leaderboard over the tasks of a preset and protocol.

    Attributes:
        title, preset: of its tables.
        notes: how to read it.
        header, rows: means over tasks, then a column for each task.
        columns: of each cell behind the label, the table and column that it is from.
        first: place of the first task among the cells.
        correlations: heading and cells of the table of tasks.
        about_correlations: what these say.
    """

    title: str
    preset: str
    notes: list[str]
    header: list[str]
    rows: list[Row]
    columns: list[str | None]
    first: int
    correlations: list[list[str]]
    about_correlations: str


@dataclass(frozen=True)
class TableSection:
    """Runs under equal settings, with notes and comparisons.

    Attributes:
        id: its anchor.
        table, comparison: what it is made of.
        header, rows: the ranked table.
        columns: of each cell behind the label, the place of its column in `numbers`.
        sorted: place of the headline in the header.
        numbers: what the cells are made of, the headline first.
        notes: how to read it.
        differences, difference_header, difference_notes: against the reference.
    """

    id: str
    table: Table
    comparison: Comparison
    header: list[str]
    rows: list[Row]
    columns: list[str | None]
    sorted: int
    numbers: list[NumberColumn]
    notes: list[str]
    differences: list[Row]
    difference_header: list[str]
    difference_notes: list[str]

    @property
    def chips(self) -> list[str]:
        """What the heading says behind the task."""
        about = self.table.about
        chips = [f"preset {about.preset}", f"protocol {about.protocol}"]
        chips.append(f"data {about.data.get('label', '')}")
        chips += ["learning rates tuned"] if about.tuning else []
        chips += [f"{key}={value}" for key, value in self.table.differences.items()]
        return chips


@dataclass(frozen=True)
class TaskSection:
    """A task with all of its tables and published numbers."""

    id: str
    name: str
    summary: Markup
    text: Markup
    note: str
    sections: list[TableSection]
    sources: list[Source]


@dataclass(frozen=True)
class EncodingSection:
    """An encoding with all of its results."""

    id: str
    label: str
    style: Style
    family: str
    summary: Markup
    text: Markup
    note: str
    facts: list[tuple[str, str, str]]
    results: list[tuple[TableSection, list[str]]]
    standings: list[tuple[str, list[str]]]
    sources: list[tuple[str, Published]]


@dataclass(frozen=True)
class Content:
    """Everything on the page."""

    overviews: list[Overview]
    tasks: list[TaskSection]
    encodings: list[EncodingSection]
    unfinished: list[RunRecord]

    @property
    def counts(self) -> str:
        """Counts of encodings, tasks, seeds and runs, and the latest date."""
        runs = [record for section in self.sections for record in section.table.records]
        seeds = {record.seed for record in runs}
        parts = [
            (len(self.encodings), "encoding"),
            (len(self.tasks), "task"),
            (len(seeds), "seed"),
            (len(runs), "run"),
        ]
        words = [f"{count:,} {name}{'' if count == 1 else 's'}" for count, name in parts]
        latest = max((record.finished[:10] for record in runs), default="")
        return ", ".join(words) + (f"; the latest of {latest}" if latest else "")

    @property
    def families(self) -> list[str]:
        """Families of its encodings."""
        return sorted({one.family for one in self.encodings})

    @property
    def presets(self) -> list[str]:
        """Presets of its tables."""
        return sorted({section.table.about.preset for section in self.sections})

    @property
    def sections(self) -> list[TableSection]:
        """The tables of all tasks."""
        return [section for task in self.tasks for section in task.sections]
