"""The report of a results folder: leaderboard and figures, from its files alone, without torch.

Runs are compared only under equal settings: there is one table for each combination of task,
preset, protocol, data and everything else that decides a number. Missing numbers stay missing.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from itertools import chain
from multiprocessing import get_context
from pathlib import Path

import pandas as pd

from pe_bench.errors import InputError, SavingError
from pe_bench.reporting import paired, published
from pe_bench.reporting.figure_files import FigureFiles, Redraw, is_among, save_figures
from pe_bench.reporting.frames import finished_runs
from pe_bench.reporting.markdown import escape
from pe_bench.reporting.notes import describe_unfinished, write_notes
from pe_bench.reporting.page.write import write_page
from pe_bench.reporting.questions import HEADING, answer_questions
from pe_bench.reporting.ranked_table import rank_table, show_markdown
from pe_bench.reporting.report_data import ReportData
from pe_bench.reporting.selection import find_labels
from pe_bench.reporting.size_chart import save_sizes
from pe_bench.reporting.sizes import describe_sizes, find_ladders
from pe_bench.reporting.tables import Table, make_tables
from pe_bench.reporting.task_summary import describe_summary, find_summaries
from pe_bench.results.export import write_export
from pe_bench.results.reading import reading
from pe_bench.results.record import RunRecord
from pe_bench.results.store import read_records
from pe_bench.system.console import progress
from pe_bench.system.files import real_path, write_atomic
from pe_bench.system.stopping import follow_parent

Drawing = Callable[[], FigureFiles]
MANY_TABLES = 4  # fewer tables are drawn in one process, because a process takes 1 s to start


def write_report(
    results: Path | Sequence[Path],
    reference: str | None = None,
    export: Path | None = None,
    ran: Collection[Path] | None = None,
    *,
    jobs: int = 1,
) -> list[Path]:
    """Write leaderboard.csv, comparisons.csv, leaderboard.md, index.html and plots/.

    Args:
        results: the folder with the runs, or several folders; the report goes to the first.
        reference: encoding that others are compared with; None: `paired.DEFAULT_REFERENCE`.
        export: another folder for the report, together with all runs in small files that can be
            committed and reported on again. None: write to the results folder, without an export.
        ran: folders of runs; only figures that show one of these runs are drawn. None: draw all
            figures whose content has changed. An export always draws all of them.
        jobs: number of processes that draw if there are several tables.

    Returns:
        The files written.

    Raises:
        InputError: there is nothing to report, the reference has no results, or something cannot be
            written.
        SavingError: a file could not be saved.
        InputErrors: some runs cannot be read; the report of all other runs is written.
    """
    folders = [results] if isinstance(results, Path) else list(results)
    if export is not None and real_path(export) in map(real_path, folders):
        raise InputError(f"--export {export} is the results folder: give another folder")
    with reading(*folders) as records:
        if reference is not None:
            labels = sorted({record.encoding for record in finished_runs(records)})
            reference = find_labels([reference], labels)[0]
        if export is None:
            return _write(folders[0], records, reference, ran, jobs)
        exported = write_export(export, finished_runs(records))
        # Read the export again, so that its report equals a report that others make from it.
        return [*_write(export, read_records(export), reference, ran, jobs), *exported]


def _write(
    target: Path,
    records: Sequence[RunRecord],
    reference: str | None,
    ran: Collection[Path] | None,
    jobs: int,
) -> list[Path]:
    """Write the report of some runs into a folder and return its files, see `write_report`."""
    tables = make_tables(records)
    plots = _make_folder(target / "plots")
    compared_with = reference or paired.DEFAULT_REFERENCE
    is_export = any(record.exported and record.folder == target for record in records)
    due: Redraw = "everything" if is_export else "changes"
    drawings: list[Drawing] = []
    for table in tables:
        redraw = due if ran is None or is_among(table, ran) else "nothing"
        beside = tables if table.about.measures_time else ()  # sends less data to the processes
        drawings.append(partial(save_figures, table, plots, beside, compared_with, redraw=redraw))
    answers = answer_questions(target, tables)
    ladders = find_ladders(tables)
    leaderboard_csv = target / "leaderboard.csv"
    comparisons_csv = target / "comparisons.csv"
    leaderboard_md = target / "leaderboard.md"
    with _begin(drawings, jobs) as begun:
        comparisons = [paired.compare_table(table, compared_with) for table in tables]
        frames = [_flatten(table) for table in tables] or [pd.DataFrame(columns=["task"])]
        scores = pd.concat(frames)
        write_atomic(leaderboard_csv, scores.to_csv(index=False, float_format="%.6g"))
        pairs = [paired.flatten(*one) for one in zip(tables, comparisons, strict=True)]
        differences = pd.concat(pairs or [pd.DataFrame(columns=["task"])])
        write_atomic(comparisons_csv, differences.to_csv(index=False, float_format="%.6g"))
        data = ReportData(tables, comparisons, records, find_summaries(tables), answers, ladders)
        page = write_page(target, data)
        by_size = [save_sizes(ladder, plots, due) for ladder in ladders]
        figures = _wait(begun)
    shown = [f"{plots.name}/{files[0].name}" if files else "" for files in by_size]
    sizes = describe_sizes(ladders, shown)
    write_atomic(leaderboard_md, compose(data, figures, sizes))
    drawn = [path for one in figures for path in one.all_files()]
    return [leaderboard_csv, comparisons_csv, leaderboard_md, page, *drawn, *chain(*by_size)]


def compose(data: ReportData, figures: Sequence[FigureFiles], sizes: str = "") -> str:
    """Return leaderboard.md: a section for each table, and a list of runs that are in no table."""
    last = {table.task_name: table for table in data.tables}
    sections = ["# Leaderboard", *map(describe_summary, data.summaries)]
    if data.answers:
        answers = [f"- {escape(answer)}" for answer in data.answers]
        sections.append("\n".join([f"## {HEADING}", "", *answers]))
    sections.append(sizes)
    for table, comparison, drawn in zip(data.tables, data.comparisons, figures, strict=True):
        notes = "\n".join(map(escape, write_notes(table).splitlines()))
        ranked = show_markdown(rank_table(table, comparison), table.short)
        sections += [f"## {escape(table.heading)}", notes, ranked]
        sections.append(paired.describe(table, comparison))
        sections += [_embed(table, drawn, overview) for overview in drawn.overviews]
        if last[table.task_name] is table:  # once per task, below its last table
            sections.append(published.markdown(table.task_name))
    unfinished = [f"- {escape(line)}" for line in describe_unfinished(data.records)]
    if unfinished:
        sections.append("\n".join(["Not in a table:", "", *unfinished]))
    return "\n\n".join(filter(None, sections)) + "\n"


def _flatten(table: Table) -> pd.DataFrame:
    """Return the scores of a table with its settings, as written to leaderboard.csv."""
    about = table.about
    common = {
        "task": about.task,
        "preset": about.preset,
        "protocol": about.protocol,
        "data": about.data.get("label", ""),
        "settings": about.settings_digest,
    }
    scores = table.scores.astype({"length": "Int64"})  # a float would be written as 1e+06
    return scores.assign(**common)[[*common, *scores.columns]]


@contextmanager
def _begin(drawings: Sequence[Drawing], jobs: int) -> Iterator[Sequence[Drawing]]:
    """Begin to draw in other processes if there are enough tables; yield what to wait for."""
    if jobs == 1 or len(drawings) < MANY_TABLES:
        yield drawings
        return
    jobs = min(jobs, len(drawings))  # the pool starts all its processes, even unused ones
    pool = ProcessPoolExecutor(jobs, get_context("spawn"), follow_parent)
    try:
        begun = [pool.submit(drawing) for drawing in drawings]
        yield [one.result for one in begun]
    except BrokenProcessPool:
        raise SavingError(
            f"one of {jobs} drawing processes was killed, as the kernel does when memory "
            "runs out: report on fewer folders at once"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _wait(drawings: Sequence[Drawing]) -> list[FigureFiles]:
    """Return the figures of all tables, with a progress bar."""
    found = []
    with progress("report", len(drawings), unit="table") as bar:
        for drawing in drawings:
            found.append(drawing())
            bar.update()
    return found


def _embed(table: Table, drawn: FigureFiles, overview: Path) -> str:
    """Return the Markdown of an overview, with links to the figures of single encodings."""
    folder = overview.parent.name
    figure = f"![{escape(table.heading)}]({folder}/{overview.name})"
    singles = drawn.singles.get(overview, {})
    links = [
        f"[{escape(encoding)}]({folder}/{path.parent.name}/{path.name})"
        for encoding, path in singles.items()
    ]
    return f"{figure}\n\nOne by one: {', '.join(links)}." if links else figure


def _make_folder(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"cannot write to {folder} ({error.strerror}): move the file with this name"
        ) from None
    return folder
