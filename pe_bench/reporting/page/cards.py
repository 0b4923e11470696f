"""A section for each encoding, with its description and all of its results."""

from collections.abc import Mapping, Sequence
from typing import Any

from pe_bench.reporting import published
from pe_bench.reporting.columns import show_learned, show_number, show_rank
from pe_bench.reporting.markdown import ABSENT
from pe_bench.reporting.page import prose
from pe_bench.reporting.page.descriptions import describe_labels
from pe_bench.reporting.page.model import EncodingSection, TableSection
from pe_bench.reporting.styles import family_of, own_first, styles_of
from pe_bench.reporting.task_summary import TaskSummary, standing_cells
from pe_bench.results.record import RunRecord

FACTS = {
    "prefix_consistent": ("prefix-consistent", "outputs do not depend on later tokens"),
    "shift_invariant": ("shift-invariant", "only distances matter"),
}


def list_encodings(
    sections: Sequence[TableSection], summaries: Sequence[TaskSummary], done: Sequence[RunRecord]
) -> list[EncodingSection]:
    labels = own_first(sorted({name for section in sections for name in section.table.encodings}))
    looks = styles_of(done)
    record_of = {record.encoding: record for record in done}
    said = describe_labels("encoding", done)
    taken: dict[str, int] = {}
    found = []
    for label in labels:
        anchor = prose.anchor_of(label)
        taken[anchor] = taken.get(anchor, 0) + 1
        if taken[anchor] > 1:
            anchor += f"-{taken[anchor]}"
        about = said.get(label, {})
        results = [
            (section, _result(section, label))
            for section in sections
            if label in section.table.encodings
        ]
        standings = []
        for summary in summaries:
            if summary.is_enough and label in summary.encodings:
                one = next(one for one in summary.standings if one.encoding == label)
                cells = standing_cells(one, summary.letters[label])[1:]
                standings.append((summary.title, cells))
        tasks = dict.fromkeys(section.table.task_name for section in sections)
        numbers = [(task, n) for task in tasks for n in published.find(task, encoding=label)]
        found.append(
            EncodingSection(
                f"encoding-{anchor}",
                label,
                looks[label],
                family_of(label, record_of[label]),
                prose.inline(about.get("summary", "")),
                prose.render(about.get("text", "")),
                about.get("note", ""),
                _facts(label, about, done),
                results,
                standings,
                numbers,
            )
        )
    return found


def _result(section: TableSection, label: str) -> list[str]:
    """Return headline, possible ranks and fraction of seeds that learned."""
    table = section.table
    column = section.numbers[0]
    seeds = table.seeds(label)
    rank = show_rank(section.comparison, label)
    if rank != ABSENT:
        rank += f" of {len(section.comparison.ranks)}"
    return [
        column.heading,
        show_number(column, label, seeds),
        rank,
        show_learned(table, column, label),
    ]


def _facts(
    label: str, about: Mapping[str, Any], done: Sequence[RunRecord]
) -> list[tuple[str, str, str]]:
    """Return the declarations of an encoding: name, value and explanation of each."""
    found = []
    declared = about.get("facts", {})
    for key, (name, meaning) in FACTS.items():
        if key in declared:
            found.append((name, "yes" if declared[key] else "no", meaning))
    if declared.get("max_position") is not None:
        found.append(("positions", f"{declared['max_position']:,} at most", "rows of its table"))
    if about.get("runs_on"):
        found.append(("runs on", ", ".join(about["runs_on"]), "backends of attention in training"))
    counts = {record.encoding_parameters for record in done if record.encoding == label}
    own = sorted(count for count in counts if count is not None)
    if own:
        text = f"{own[0]:,}" if len(own) == 1 else f"{own[0]:,} to {own[-1]:,}"
        found.append(("parameters", text, "of the encoding, in the models of these tables"))
    return found
