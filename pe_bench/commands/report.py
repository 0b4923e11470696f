"""`pe-bench report`: leaderboard and plots, or figures for a paper."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pe_bench.commands.command import Command, OptionGroup, results_option
from pe_bench.commands.values import Values
from pe_bench.errors import InputError, SavingError
from pe_bench.option_table import argument, check_values, option
from pe_bench.system.console import info
from pe_bench.system.files import real_path

WIDTH = 5.5  # inches: the text of a page in one column
FIGURES = "figures"


@dataclass(frozen=True)
class ReportOptions:
    """The options of `pe-bench report`."""

    folders: tuple[Path, ...] = argument(
        "results folders; one report on all of them is written to the first; default: --results",
        "DIR",
        default=(),
    )
    results: Path = results_option()
    reference: str | None = option(
        None, "encoding that others are compared with (default: rope)", metavar="ENCODING"
    )
    export: Path | None = option(
        None, "folder for the report, with all runs in small files that can be committed"
    )


@dataclass(frozen=True)
class FigureOptions:
    """The options of figures for a paper."""

    encoding: tuple[str, ...] | None = option(
        None, "only these encodings, in this order; default: all, the best first"
    )
    task: tuple[str, ...] | None = option(
        None, "only these tasks; default: all that train encodings", metavar="TASK"
    )
    width: float = option(
        WIDTH, f"width of the figures in inches (default: {WIDTH})", metavar="INCHES", least=2,
        most=20,
    )  # fmt: skip
    label: tuple[str, ...] = option(
        (), "display names, as in mine.py=Mine; default: declared by the encoding",
        metavar="ENCODING=NAME",
    )  # fmt: skip
    figures: Path | None = option(
        None, f"folder of the figures; default: {FIGURES} in the results folder"
    )

    def __post_init__(self) -> None:
        check_values(self, "--")


def main(values: Values) -> int:
    """Write the report or the figures, and print the paths of the files."""
    options = values.make(ReportOptions)
    if "folders" in values.given and "results" in values.given:
        raise InputError("both folders and --results are given: leave out --results")
    folders = options.folders or (options.results,)
    for number, folder in enumerate(folders):
        if real_path(folder) in map(real_path, folders[:number]):
            raise InputError(f"{folder} is given twice: leave one of them out")
    figures = values.make(FigureOptions)
    chosen = [one.name for one in OptionGroup(FigureOptions).options if one.name in values.given]
    if chosen:
        for name in ("reference", "export"):
            if name in values.given:
                raise InputError(
                    f"--{name} is for a whole report, and --{chosen[0]} for figures: give one"
                )
    try:
        paths = _draw_figures(folders, figures) if chosen else _write_report(folders, options)
    except SavingError as error:
        raise InputError(str(error)) from None
    for path in paths:
        info(str(path))
    if chosen:
        info("each also as .svg and .png, with a caption in .txt")
    return 0


def _write_report(folders: Sequence[Path], options: ReportOptions) -> list[Path]:
    from pe_bench.reporting.report import write_report

    return write_report(folders, options.reference, options.export, jobs=os.cpu_count() or 1)


def _draw_figures(folders: Sequence[Path], options: FigureOptions) -> list[Path]:
    from pe_bench.reporting.display_names import read_names
    from pe_bench.reporting.paper_figures import save_paper_figures
    from pe_bench.reporting.selection import find_labels, select_tables
    from pe_bench.reporting.tables import make_tables
    from pe_bench.results.reading import reading

    with reading(*folders) as records:
        tables = select_tables(make_tables(records), options.task, options.encoding)
        labels = list(dict.fromkeys(name for table in tables for name in table.encodings))
        return save_paper_figures(
            tables,
            options.figures or folders[0] / FIGURES,
            options.width,
            encodings=find_labels(options.encoding or (), labels),
            names=read_names(options.label, labels),
        )


COMMAND = Command(
    name="report",
    main=main,
    help="leaderboard and plots of finished runs, or figures for a paper",
    description="""\
Write index.html, leaderboard.md and .csv, and plots/ from the runs. With an option of figures,
write only figures, to another folder.""",
    groups=[
        OptionGroup(ReportOptions),
        OptionGroup(
            FigureOptions,
            "figures for papers",
            """\
Any of these writes each figure as .pdf, .svg and .png in exactly this width, with texts of at
least 7 points, and its caption as .txt.""",
        ),
    ],
)
