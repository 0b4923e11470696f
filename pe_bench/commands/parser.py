"""The parser of `pe-bench`, made from the options of its commands.

Errors are one sentence, with a suggestion for a misspelt name, and exit code 2.
"""

import argparse
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args, get_origin

from pe_bench import __version__
from pe_bench.commands.command import Command
from pe_bench.commands.grid_file import SUFFIX, read_grids
from pe_bench.commands.values import Values, collect, read_words
from pe_bench.errors import InputError, suggest
from pe_bench.option_table import Option
from pe_bench.system.console import write

BAD_INPUT = 2

INSTEAD = {
    "--resume": "runs resume automatically: leave it out",
    "--gpu": "write --device cuda, or --device cuda:1 for the second one",
    "--workers": "write --jobs N, which executes N runs at once",
}


def parse(commands: Sequence[Command], args: Sequence[str]) -> tuple[Command, list[Values]]:
    """Return the command of a command line, and the values of its options.

    The values are a list with one item, or with an item per grid if a file of grids is given.

    Args:
        commands: all commands.
        args: words of the command line, without the program's name.

    Raises:
        InputError: values contradict each other.
        SystemExit: an option or a value does not exist. A sentence on standard error says which.
    """
    parser = _Parser("pe-bench", description="Compare positional encodings for transformers.")
    parser.add_argument("--version", action="version", version=f"pe-bench {__version__}")
    adding = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    parsers: dict[str, _Parser] = {}
    for each in commands:
        parsers[each.name] = adding.add_parser(
            each.name,
            help=each.help,
            usage=each.usage,
            description=each.description,
            epilog=each.epilog,
        )
        _add_options(parsers[each.name], each)

    name = next((word for word in args if not word.startswith("-")), "")
    if name and name not in parsers:
        there = ", ".join(parsers)
        parser.error(
            f"there is no command '{name}'{suggest(name, list(parsers))}; there are {there}"
        )
    if not name:
        parser.check_options(args, ())
        parser.parse_args(args)  # exits: with a help text, or because there is no command
    chosen = parsers[name]
    chosen.check_options(args, parser.flags)
    command = next(each for each in commands if each.name == name)
    file, lines = _read_file(args, command, chosen)
    found = []
    for number, words in enumerate(lines, 1):
        if file is not None:
            chosen.source = f"{file}: " if len(lines) == 1 else f"{file}, grid {number}: "
        namespace, rest = parser.parse_known_args(words)
        if rest:
            chosen.error(f"'{rest[0]}' is one argument too many")
        chosen.check_required(command.options, vars(namespace))
        found.append(Values(collect(command.options, vars(namespace)), file))
    return command, found


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one sentence and exit code 2. Abbreviated options are errors."""

    def __init__(self, prog: str | None = None, **kwargs: Any) -> None:
        super().__init__(
            prog,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            **kwargs,
        )
        self.source = ""  # the file of grids from which the words come, for errors

    def error(self, message: str) -> NoReturn:
        if self.source:
            message = re.sub(r"^argument --([^ :]+):", r"\1", message)
        self.exit(BAD_INPUT, f"{self.prog}: {self.source}{message}; see {self.prog} --help\n")

    def _print_message(self, message: str, file: Any = None) -> None:
        write(message, file or sys.stderr)

    @property
    def flags(self) -> list[str]:
        """All flags, with their dashes."""
        return list(self._option_string_actions)

    def check_options(self, args: Iterable[str], more: Iterable[str]) -> None:
        """Exit with a suggestion if a flag is neither known here nor in `more`.

        Otherwise argparse would report missing options instead.
        """
        known = [*more, *self.flags]
        for word in args:
            name = word.partition("=")[0]
            if re.match("--?[A-Za-z]", name) and name not in known:
                self.error(_unknown_option(name, known))

    def check_required(self, options: Iterable[Option], given: Iterable[str]) -> None:
        """Exit if neither a required option nor the one that replaces it is given."""
        flags = set(given)
        for option in options:
            if option.is_required and option.unless and not {option.flag, option.unless} & flags:
                instead = f", or --{option.unless}" if f"--{option.unless}" in self.flags else ""
                self.error(f"the following arguments are required: --{option.flag}{instead}")


class _Store(argparse.Action):
    """Action that stores the value of an option; giving the option twice is an error."""

    def __init__(self, *, option: Option, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.option = option

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        if hasattr(namespace, self.dest):
            several = ", or write all values after one flag" if self.nargs == "+" else ""
            parser.error(f"{option_string} is given twice: leave one of them out{several}")
        if self.nargs == 0:
            setattr(namespace, self.dest, not self.option.default)
            return
        words = values if isinstance(values, list) else [values]
        try:
            setattr(namespace, self.dest, read_words(self.option, words))
        except ValueError as error:
            raise argparse.ArgumentError(self, str(error)) from None


def _add_options(parser: argparse.ArgumentParser, command: Command) -> None:
    """Add the options of a command; the inner options of an option get a separate heading."""
    for group in command.groups:
        title = group.title
        target = parser.add_argument_group(title, group.about) if title else parser
        for option in group.options:
            if option.config is None:
                _add_option(target, option)
    for outer in command.options:
        if outer.is_changes:
            about = f"{outer.help}; default: the preset's"
            target = parser.add_argument_group(f"--{outer.flag}.*", about)
        elif outer.config is not None:
            target = parser.add_argument_group(f"--{outer.flag}")
            _add_option(target, outer)
        for option in outer.inner:
            _add_option(target, option)


def _add_option(target: argparse._ActionsContainer, option: Option) -> None:
    several = option.is_tuple or option.is_mapping
    optional = option.default is None or option.default == ()
    kwargs: dict[str, Any] = {"metavar": _metavar(option)}
    if option.is_switch:
        kwargs = {"nargs": 0}
    elif option.positional:
        kwargs["nargs"] = ("*" if optional else "+") if several else "?" if optional else None
    elif several:
        kwargs["nargs"] = "+"
    names = [option.name]
    if not option.positional:
        names = [*([f"-{option.short}"] if option.short else []), f"--{option.flag}"]
        required = option.is_required and not option.unless
        kwargs |= {"dest": option.flag, "required": required}
    target.add_argument(
        *names,
        action=_Store,
        option=option,
        default=argparse.SUPPRESS,  # only given options are stored
        help=option.help,
        **kwargs,
    )


def _metavar(option: Option) -> str:
    """Return the placeholder of the value in the help text."""
    if option.metavar:
        return option.metavar
    if get_origin(option.item) is Literal:
        return f"{{{','.join(map(str, get_args(option.item)))}}}"
    names: Mapping[Any, str] = {bool: "{true,false}", int: "N", float: "X", Path: "DIR"}
    return names.get(option.item, option.name.upper())


def _read_file(
    args: Sequence[str], command: Command, chosen: _Parser
) -> tuple[Path | None, list[list[str]]]:
    """Return the file of grids in a command line, if any, and a command line per grid.

    The options of a grid replace the name of the file.
    """
    name, *words = args
    if not command.reads_grids or not words or words[0].startswith("-"):
        return None, [list(args)]
    if not words[0].endswith(SUFFIX):
        chosen.error(
            f"'{words[0]}' is not a file of runs, whose name ends in {SUFFIX}: write --encoding "
            "NAME ... --task NAME ..."
        )
    file = Path(words[0])
    given = [word.partition("=")[0] for word in words[1:]]
    try:
        grids = read_grids(file, command.options, given)
    except InputError as error:
        chosen.exit(BAD_INPUT, f"{chosen.prog}: {error}\n")
    return file, [[name, *found, *words[1:]] for found in grids]


def _unknown_option(name: str, known: list[str]) -> str:
    """Return a sentence about an option that does not exist."""
    if name in INSTEAD:
        return f"there is no option '{name}': {INSTEAD[name]}"
    hint = suggest(name, known)
    if not name.startswith("--"):  # a single dash
        long = [option for option in known if option.startswith(f"-{name[:2]}")]
        hint = f" (did you mean '{long[0]}'?)" if long else ""
    return f"there is no option '{name}'{hint}"
