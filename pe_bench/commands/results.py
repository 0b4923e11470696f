"""`pe-bench results`: the paths of committed results, also in an installed package."""

from dataclasses import dataclass
from pathlib import Path

from pe_bench.commands.command import Command, OptionGroup
from pe_bench.commands.values import Values
from pe_bench.errors import PACKAGE, InputError, suggest
from pe_bench.option_table import argument
from pe_bench.results.layout import EXPORTED
from pe_bench.system.console import info
from pe_bench.system.program import program


@dataclass(frozen=True)
class ResultsOptions:
    """The options of `pe-bench results`."""

    name: str | None = argument("one of the folders", "NAME", default=None)


def main(values: Values) -> int:
    """Print the path of one folder of committed results, or of all of them."""
    options = values.make(ResultsOptions)
    folders = committed_folders()
    if options.name is None:
        for folder in folders.values():
            info(str(folder))
        name = program()
        info(f"next: {name} merge DIR, or {name} compare tape rope --results DIR")
        return 0
    if options.name not in folders:
        hint = suggest(options.name, list(folders))
        known = ", ".join(folders) or "none"
        raise InputError(
            f"there are no committed results '{options.name}'{hint}; there are {known}"
        )
    info(str(folders[options.name]))
    return 0


def committed_folders() -> dict[str, Path]:
    """Return the folders of committed results by name; in a wheel they are in `committed`."""
    inside = PACKAGE / "committed"
    folder = inside if inside.is_dir() else PACKAGE.parent / "results"
    return {path.parent.name: path.parent for path in sorted(folder.glob(f"*/{EXPORTED}"))}


COMMAND = Command(
    name="results",
    main=main,
    help="print the paths of the committed results, to merge or compare",
    usage="pe-bench results [NAME]",
    description="""\
Print the folders of the results that come with pe-bench. They are exports, which merge, compare and
report read. With a name, print only the path of that folder, as in
pe-bench merge $(pe-bench results quick).""",
    groups=[OptionGroup(ResultsOptions)],
)
