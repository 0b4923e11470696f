"""`pe-bench compare`: compare two encodings, or rank all of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pe_bench.commands.command import Command, OptionGroup, results_option
from pe_bench.commands.values import Values
from pe_bench.errors import InputError, SavingError
from pe_bench.option_table import argument, option
from pe_bench.system.console import info, warn

if TYPE_CHECKING:
    from pe_bench.reporting.tables import Table


@dataclass(frozen=True)
class CompareOptions:
    """The options of `pe-bench compare`."""

    encoding: tuple[str, ...] = argument(
        "a label as in tables, or the path of an encoding's file", "ENCODING", default=()
    )
    all: bool = option(False, "rank all encodings instead of two")
    ask: tuple[str, ...] | None = option(
        None,
        "several questions at once, corrected among themselves only: pairs such as 'tape rope', "
        "or a file questions.toml (docs/results.md)",
        metavar="PAIR",
    )
    task: tuple[str, ...] | None = option(
        None, "only these tasks; default: all that the encodings have in common", metavar="TASK"
    )
    results: Path = results_option()
    figure: Path | None = option(
        None,
        "file of the figure, .png, .svg or .pdf; "
        "default: plots/compare-ENCODING-ENCODING.png in --results",
        metavar="FILE",
    )


def main(values: Values) -> int:
    """Compare two encodings, or rank all of them."""
    options = values.make(CompareOptions)
    if options.all and (options.encoding or options.figure):
        extra = options.encoding[0] if options.encoding else "--figure"
        raise InputError(f"--all ranks all encodings, without a figure: leave out {extra}")
    if options.ask and (options.all or options.encoding or options.figure):
        extra = "--all" if options.all else "--figure" if options.figure else options.encoding[0]
        raise InputError(f"--ask has its own encodings and no figure: leave out {extra}")
    if not options.all and not options.ask and len(options.encoding) != 2:
        raise InputError(
            f"compare takes two encodings, not {len(options.encoding)}: name two, or write --all "
            "or --ask"
        )
    if not options.results.is_dir():
        raise InputError(f"there is no folder {options.results}: give --results")
    from pe_bench.reporting.frames import describe_unused_runs
    from pe_bench.reporting.ranks import describe_ranks
    from pe_bench.reporting.selection import labels_of
    from pe_bench.reporting.tables import make_tables
    from pe_bench.reporting.verdicts import tables_to_compare
    from pe_bench.results.reading import reading

    with reading(options.results) as records:
        tables = tables_to_compare(make_tables(records), options.task)
        pair = labels_of(options.encoding, tables) if options.encoding else []
        if options.all:
            info(describe_ranks(tables))
        elif options.ask:
            _answer(tables, options.ask, options.task)
        else:
            _compare_pair(tables, pair, options)
        for line in describe_unused_runs(records, pair, options.task or ()):
            warn(line)
    return 0


def _answer(tables: "Sequence[Table]", ask: Sequence[str], tasks: Sequence[str] | None) -> None:
    """Print a sentence for each comparison that was asked.

    Raises:
        InputError: a question cannot be read, or none can be answered.
    """
    from pe_bench.reporting.questions import answer, parse_pairs, read_questions
    from pe_bench.reporting.terminal import wrap

    if len(ask) == 1 and ask[0].endswith(".toml"):
        if tasks:
            raise InputError("the questions of a file have their own tasks: leave out --task")
        questions = read_questions(Path(ask[0]))
    else:
        questions = parse_pairs(ask, tasks)
    found = answer(tables, questions)
    if not found.answers:
        raise InputError(" ".join(found.left_out))
    info("\n".join(wrap(line) for line in (*found.answers, *found.left_out)))


def _compare_pair(tables: "Sequence[Table]", pair: Sequence[str], options: CompareOptions) -> None:
    """Print sentences about two encodings, and draw a figure of them.

    Raises:
        InputError: the encodings cannot be compared, or the figure cannot be saved.
    """
    from pe_bench.reporting import forest, panels, sentences, verdicts
    from pe_bench.reporting.terminal import wrap
    from pe_bench.system.files import slug

    found = verdicts.compare_pair(tables, *pair)
    info("\n".join(wrap(line) for line in sentences.describe(found)))
    name = f"{slug(f'compare-{found.first}-{found.second}')}.png"
    path = options.figure or options.results / "plots" / name
    try:
        panels.save(forest.draw_forest(found), [path])
    except SavingError as error:
        if options.figure:
            raise InputError(str(error)) from None
        warn(f"{error}; write --figure FILE for another place")
        return
    info(f"\n{path}")


COMMAND = Command(
    name="compare",
    main=main,
    help="is one encoding better than another one? which differ significantly?",
    usage="pe-bench compare (ENCODING ENCODING | --all | --ask PAIR ...) [options]",
    description="""\
Compare two encodings on every task that both were run on, seed by seed and item by item. Prints a
sentence for each task and one for all tasks, and draws a figure. --all prints the ranks of all
encodings. --ask answers several questions, which are corrected among themselves only.""",
    groups=[OptionGroup(CompareOptions)],
)
