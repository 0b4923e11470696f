"""A command of `pe-bench`: its name, its help texts, its options, and the function that runs it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pe_bench.option_table import Option, option, options_of


@dataclass(frozen=True)
class OptionGroup:
    """Options of a command that are defined by one dataclass.

    Attributes:
        cls: the dataclass.
        title, about: heading in `--help`; "": the options have no separate heading.
        only: names of the fields that are options of the command; empty: all fields.
    """

    cls: type[Any]
    title: str = ""
    about: str = ""
    only: Sequence[str] = ()

    @cached_property
    def options(self) -> list[Option]:
        """The options, in the order of the fields."""
        found = options_of(self.cls)
        return [one for one in found if one.name in self.only] if self.only else found


@dataclass(frozen=True)
class Command:
    """A command.

    Attributes:
        name: name on the command line.
        main: function that takes `Values` and returns the exit code.
        help: one line for the list of commands.
        description, usage, epilog: texts for the help of the command; usage None: made from the
            options.
        groups: options of the command.
        reads_grids: whether a file of grids may replace options.
    """

    name: str
    main: Callable[..., int]
    help: str
    description: str
    groups: Sequence[OptionGroup]
    usage: str | None = None
    epilog: str | None = None
    reads_grids: bool = False

    @cached_property
    def options(self) -> list[Option]:
        """The options of all groups."""
        return [one for group in self.groups for one in group.options]


def results_option(text: str = "default: ./results") -> Any:
    """Return the dataclass field for the option of the results folder."""
    return option(Path("results"), text, metavar="DIR", read=_read_folder)


def _read_folder(words: Sequence[str]) -> Path:
    """Return the folder that one word names.

    Raises:
        ValueError: the word is empty, such as a shell variable that is not set.
    """
    if not words[0]:
        raise ValueError("must be the name of a folder, not ''")
    return Path(words[0])
