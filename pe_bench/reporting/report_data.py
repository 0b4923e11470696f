"""What a report shows, computed once for all of its files."""

from collections.abc import Sequence
from dataclasses import dataclass

from pe_bench.reporting.paired import Comparison
from pe_bench.reporting.sizes import Ladder
from pe_bench.reporting.tables import Table
from pe_bench.reporting.task_summary import TaskSummary
from pe_bench.results.record import RunRecord


@dataclass(frozen=True)
class ReportData:
    """What a report shows.

    Attributes:
        tables: the tables.
        comparisons: one for each table.
        records: records of all runs, including runs that are in no table.
        summaries: summaries over tasks.
        answers: sentences that answer the questions of the folder.
        ladders: tasks that have tables at several sizes of the model.
    """

    tables: Sequence[Table]
    comparisons: Sequence[Comparison]
    records: Sequence[RunRecord]
    summaries: Sequence[TaskSummary]
    answers: Sequence[str] = ()
    ladders: Sequence[Ladder] = ()
