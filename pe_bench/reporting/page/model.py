"""The sections of the page and their contents."""

from dataclasses import dataclass, field

from markupsafe import Markup

from pe_bench.reporting.columns import NumberColumn, show_number
from pe_bench.reporting.page.bars import Bar
from pe_bench.reporting.paired import Comparison
from pe_bench.reporting.published import Published, Source
from pe_bench.reporting.sizes import Ladder
from pe_bench.reporting.styles import Style
from pe_bench.reporting.tables import Table
from pe_bench.results.record import RunRecord


@dataclass(frozen=True)
class Row:
    """A row of a table.

    Attributes:
        label: encoding or baseline.
        cells: texts after the label.
        bars: intervals of some cells, by index of the cell.
        shares: quality of some cells from 0 to 1, by index of the cell.
        learned: whether at least one seed passed the gate of the task.
        below: whether it does not beat a baseline.
        is_baseline: whether it is a baseline.
    """

    label: str
    cells: list[str]
    bars: dict[int, Bar] = field(default_factory=dict)
    shares: dict[int, float] = field(default_factory=dict)
    learned: bool = True
    below: bool = False
    is_baseline: bool = False


@dataclass(frozen=True)
class SummarySection:
    """The summary over the tasks of a preset and protocol.

    Attributes:
        title, preset: title and preset of its tables.
        notes: notes on how to read it.
        header, rows: means over tasks, then a column for each task.
        columns: source of each cell after the label: a table and a column.
        first: index of the first task among the cells.
        correlations: heading and cells of the correlations between tasks.
        about_correlations: explanation of the correlations.
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
        id: anchor of the section.
        table, comparison: sources of the section.
        header, rows: the ranked table.
        columns: for each cell after the label, the index of its column in `numbers`; None: it is
            not a score.
        sorted: index of the headline in the header.
        numbers: columns with the numbers of the cells, the headline first.
        notes: notes on how to read it.
        differences, difference_header, difference_notes: comparison with the reference.
    """

    id: str
    table: Table
    comparison: Comparison
    header: list[str]
    rows: list[Row]
    columns: list[int | None]
    sorted: int
    numbers: list[NumberColumn]
    notes: list[str]
    differences: list[Row]
    difference_header: list[str]
    difference_notes: list[str]

    @property
    def chips(self) -> list[str]:
        """Texts of the heading after the task."""
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

    summaries: list[SummarySection]
    tasks: list[TaskSection]
    encodings: list[EncodingSection]
    unfinished: list[RunRecord]
    answers: tuple[str, ...] = ()
    ladders: tuple[Ladder, ...] = ()

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
    def own(self) -> list[tuple[TableSection, list[tuple[str, str]]]]:
        """Tables with runs of the folder itself, and the headlines of these runs' encodings.

        Empty if the folder has no exports, because all runs are its own then.
        """
        runs = [record for section in self.sections for record in section.table.records]
        if not any(record.exported for record in runs):
            return []
        found = []
        for section in self.sections:
            records = section.table.records
            own = dict.fromkeys(one.encoding for one in records if not one.exported)
            seeds = max(section.table.seeds(label) for label in section.table.encodings)
            column = section.numbers[0]
            scores = [(label, show_number(column, label, seeds)) for label in own]
            if scores:
                found.append((section, scores))
        return found

    @property
    def families(self) -> list[str]:
        """Families of the encodings."""
        return sorted({one.family for one in self.encodings})

    @property
    def presets(self) -> list[str]:
        """Presets of the tables."""
        return sorted({section.table.about.preset for section in self.sections})

    @property
    def sections(self) -> list[TableSection]:
        """The tables of all tasks."""
        return [section for task in self.tasks for section in task.sections]
