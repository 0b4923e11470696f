"""The summary after a run: its table, the report, where the files are, and the next command."""

import contextlib
import shlex
import time
from collections.abc import Sequence
from pathlib import Path

from pe_bench.errors import InputError, InputErrors, SavingError, describe_error
from pe_bench.system.console import info, show_duration, warn
from pe_bench.system.program import program


def summarize_runs(
    folders: Sequence[Path], results: Path, *, seconds: float, wide: bool, report: bool
) -> list[str]:
    """Print the table of the runs together with earlier results, and update the report.

    Return a sentence for everything in the results folder that cannot be read.

    Args:
        folders: folders of the runs.
        results: the results folder.
        seconds: duration of the runs.
        wide: whether tables have all columns.
        report: whether leaderboard and figures are written.
    """
    from pe_bench.reporting.new_runs import summarize
    from pe_bench.reporting.tables import make_tables
    from pe_bench.results.reading import read_with_problems
    from pe_bench.results.record import RunRecord
    from pe_bench.results.store import read_record

    earlier: list[RunRecord] = []
    try:
        earlier, problems = read_with_problems(results)
    except InputError as error:
        problems = [str(error)]
    info(f"\n{summarize(folders, earlier, wide=wide)}\n")
    info(f"took {show_duration(seconds)}; rows are in {results}/runs")
    option = "" if results == Path("results") else f" --results {shlex.quote(str(results))}"
    if report:
        _refresh(folders, results)
    else:
        info(f"for tables and figures: {program()} report{option}")
    ran = {read_record(folder).settings_digest for folder in folders}
    tables = [t for t in make_tables(earlier) if t.about.settings_digest in ran]
    if tables:
        largest = max(tables, key=lambda table: len(table.encodings))
        about = largest.about
        own = set(about.sources) - {"tokenizer"}  # the user's files and data
        simple = about.preset == "quick" and not own and "from" not in about.settings
        info(f"next: {_suggest(largest.encodings, about.task if simple else None, option)}")
    return problems


def _refresh(folders: Sequence[Path], results: Path) -> None:
    """Write the report. An error here is a warning, because the runs are done.

    Files that cannot be read are not reported here, but at the end of the command.
    """
    from pe_bench.reporting.report import write_report

    started = time.monotonic()
    info("writing the report")
    try:
        with contextlib.suppress(InputErrors):
            write_report(results, ran=folders)
    except (InputError, SavingError) as error:
        for line in str(error).splitlines():
            warn(f"report: {line}")
    except Exception as error:
        warn(f"no report, {describe_error(error)}: pe-bench report tries again")
    else:
        took = show_duration(time.monotonic() - started)
        info(f"tables and figures are in {results}/leaderboard.md, index.html and plots ({took})")


def _suggest(encodings: Sequence[str], task: str | None, option: str) -> str:
    """Return a command that compares the encodings, or that runs another one for a comparison.

    Args:
        encodings: labels of the encodings.
        task: label of the task; None: the user gave further options, so the suggestion is not a
            full command.
        option: option for the results folder, or empty.
    """
    from pe_bench.reporting.paired import DEFAULT_REFERENCE

    if len(encodings) > 2:
        return f"{program()} compare --all{option}"
    if len(encodings) == 2:
        return f"{program()} compare {shlex.join(encodings)}{option}"
    if encodings[0] == DEFAULT_REFERENCE:
        return f"the same command with another encoding ({program()} list)"
    if task is None:
        return f"the same command with --encoding {DEFAULT_REFERENCE}, for comparison"
    return f"{program()} run --encoding {DEFAULT_REFERENCE} --task {shlex.quote(task)}{option}"
