"""A parser whose errors are one sentence, with a suggestion where a name is misspelt."""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from pe_bench.commands.grid_file import SUFFIX, read_grids
from pe_bench.errors import InputError, suggest

BAD_INPUT = 2
INSTEAD = {
    "--resume": "runs go on where they stopped by themselves: leave it out",
    "--gpu": "write --device cuda, or --device cuda:1 for the second one",
    "--workers": "write --jobs N, which runs N cells at once",
}


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one sentence and exit code 2. Abbreviated options are errors."""

    def __init__(self, prog: str | None = None, **kwargs: Any) -> None:
        super().__init__(prog, allow_abbrev=False, **kwargs)
        self.formatter_class = argparse.RawDescriptionHelpFormatter
        self.register("action", None, _StoreOnce)

    def error(self, message: str) -> NoReturn:
        self.exit(BAD_INPUT, f"{self.prog}: {message}; see {self.prog} --help\n")

    def parse(self, args: Sequence[str]) -> argparse.Namespace:
        """Return the values of all options; exit with a suggestion for what does not exist.

        A file of grids is named in `_file`; `_more` has the values of all its grids but the first.
        """
        commands = _subparsers(self)
        command = next((word for word in args if not word.startswith("-")), "")
        if command and command not in commands:
            there = ", ".join(commands)
            hint = suggest(command, list(commands))
            self.error(f"there is no command '{command}'{hint}; there are {there}")
        chosen = commands.get(command, self)
        known = [*self._option_string_actions, *chosen._option_string_actions]
        for word in args:  # before argparse, which would complain of what is missing instead
            name = word.partition("=")[0]
            if re.match("--?[A-Za-z]", name) and name not in known:
                chosen.error(_unknown_option(name, known))
        file, commands_of_file = self._with_file(args, chosen)
        grids = []
        for words in commands_of_file:
            parsed, rest = self.parse_known_args(words)
            if rest:
                chosen.error(f"'{rest[0]}' is one argument too many")
            grids.append(parsed)
        if file:
            grids[0]._file, grids[0]._more = file, grids[1:]
        return grids[0]

    def _with_file(
        self, args: Sequence[str], chosen: argparse.ArgumentParser
    ) -> tuple[Path | None, list[list[str]]]:
        """Return the file of grids that a command names, if one, and words without a file.

        The options of each grid of the file stand in the place of its name.
        """
        command, *words = args or [""]
        if command != "run" or not words or not words[0].endswith(SUFFIX):
            return None, [list(args)]
        file = Path(words[0])
        given = [word.partition("=")[0] for word in words[1:]]
        try:
            grids = read_grids(file, chosen._option_string_actions, given)
        except InputError as error:
            self.exit(BAD_INPUT, f"{chosen.prog}: {error}\n")
        return file, [[command, *found, *words[1:]] for found in grids]


class _StoreOnce(argparse.Action):
    """Stores a value; a second one would silently take the place of the first."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        given: set[str] = vars(namespace).setdefault("_given", set())
        if self.dest in given:
            several = ", or write all values behind one" if self.nargs == "+" else ""
            parser.error(f"{option_string} is given twice: leave one of them out{several}")
        given.add(self.dest)
        setattr(namespace, self.dest, self.stored(values))

    def stored(self, values: Any) -> Any:
        """Return what is stored of the values given."""
        return values


class StoreSeeds(_StoreOnce):
    """Stores the seeds of several numbers and ranges as one list."""

    def stored(self, values: Any) -> list[int]:
        """Return one list of several."""
        return [seed for part in values for seed in part]


def _subparsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    actions = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    return {name: sub for action in actions for name, sub in action.choices.items()}


def _unknown_option(name: str, known: list[str]) -> str:
    """Return a sentence about an option that does not exist."""
    if name in INSTEAD:
        return f"there is no option '{name}': {INSTEAD[name]}"
    hint = suggest(name, known)
    if not name.startswith("--"):  # short options do not exist
        long = [option for option in known if option.startswith(f"-{name[:2]}")]
        hint = f" (did you mean '{long[0]}'?)" if long else ""
    return f"there is no option '{name}'{hint}"
