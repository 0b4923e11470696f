"""Values of options, from the words of a command line or from keywords of Python."""

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, get_origin

from pe_bench.errors import InputError
from pe_bench.option_table import Option, check_names, option_names
from pe_bench.registry.options import convert

Made = TypeVar("Made")


@dataclass(frozen=True)
class Values:
    """The values that a user gave; all other options have their defaults.

    Attributes:
        given: values by name of their option.
        file: file of grids that contains the values, if any.
    """

    given: Mapping[str, Any]
    file: Path | None = None

    def make(self, cls: type[Made]) -> Made:
        """Return a dataclass of options.

        Raises:
            InputError: values contradict each other.
        """
        return cls(**{name: self.given[name] for name in option_names(cls) if name in self.given})


def read_words(option: Option, words: Sequence[str]) -> Any:
    """Convert words of a command line to the value of an option.

    Raises:
        ValueError: the words are not a valid value. The message describes the valid ones.
    """
    if option.read is not None:
        return option.read(words)
    if option.is_tuple:
        return tuple(_read_word(option, word) for word in words)
    return _read_word(option, words[0])


def _read_word(option: Option, word: str) -> Any:
    if option.item in (str, Path):
        return option.item(word)  # "none" may be the name of a folder
    # Elements of tuples are never None.
    annotation = option.item if option.is_tuple else option.annotation
    try:
        return convert(word, annotation)
    except ValueError as error:
        raise ValueError(f"must be {error}, not '{word}'") from None


def collect(options: Sequence[Option], found: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by name of their option.

    Args:
        options: options of a command.
        found: values by flag.

    Raises:
        InputError: values contradict each other.
    """
    given: dict[str, Any] = {}
    for option in options:
        inner = {one.name: found[one.flag] for one in option.inner if one.flag in found}
        if option.is_changes:
            if inner:
                given[option.name] = inner
        elif option.flag in found:
            given[option.name] = option.config(**inner) if option.config else found[option.flag]
        elif inner:
            name = f"--{option.flag}"
            raise InputError(f"{name}.{next(iter(inner))} has no effect without {name}")
    return given


def take_keywords(
    owner: str, options: Sequence[Option], keywords: Mapping[str, Any]
) -> dict[str, Any]:
    """Convert keyword arguments of Python to the values of options.

    Args:
        owner: function or option that the keywords belong to, for messages.
        options: all options.
        keywords: given values by name. None stands for the default.

    Raises:
        InputError: an option does not exist, or its value is invalid.
    """
    known = {option.name: option for option in options}
    check_names(owner, keywords, list(known))
    return {name: _take(known[name], value) for name, value in keywords.items()}


def _take(option: Option, value: Any) -> Any:
    if value is None:
        return option.default
    if option.config is not None:
        return _take_config(option, option.config, value)
    is_spec = isinstance(value, Path) and option.item is str
    if isinstance(value, str) or is_spec or get_origin(option.type) is Literal:
        return _take_text(option, str(value))
    if option.is_mapping:
        paths = value if isinstance(value, Mapping) else {"": value}
        return {name: Path(path) for name, path in paths.items()}
    if option.is_tuple:
        elements = value if isinstance(value, Iterable) else (value,)
        taken = tuple(_take_element(option, element) for element in elements)
        return None if option.is_optional and not taken else taken
    return _take_element(option, value)


def _take_element(option: Option, value: Any) -> Any:
    """Return a value or an element of a tuple; `check_values` checks numbers."""
    if option.item is str and isinstance(value, Path):
        return str(value)
    if option.item is Path and isinstance(value, str):
        return Path(value)
    kinds = {str: "text", Path: "a path"}
    if option.item in kinds and not isinstance(value, option.item):
        raise InputError(f"{option.name} must be {kinds[option.item]}, not {value!r}")
    if option.read is not None and not option.is_tuple and not isinstance(value, option.item):
        raise InputError(f"{option.name} must be text as on the command line, not {value!r}")
    return value


def _take_config(option: Option, config: type[Any], value: Any) -> Any:
    """Return changed values, or the options of a switch that is on."""
    if not option.is_changes:
        if value is False or isinstance(value, config):
            return value or None
        if value is True:
            return config()
    if not isinstance(value, Mapping):
        raise InputError(f"{option.name} must be a mapping of options to values, not {value!r}")
    if option.is_changes:
        return dict(value)  # values may be None
    return config(**take_keywords(option.name, option.inner, value))


def _take_text(option: Option, text: str) -> Any:
    """Return the value of a text, in the notation of the command line."""
    try:
        return read_words(option, [text])
    except InputError:  # its message is already a sentence
        raise
    except ValueError as error:
        raise InputError(f"{option.name} {error}") from None


def signature(function: Any, options: Sequence[Option]) -> inspect.Signature:
    """Return the signature of a function whose `**keywords` are options."""
    own = inspect.signature(function)
    kept = [p for p in own.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    for option in options:
        if option.name not in own.parameters:
            kept.append(
                inspect.Parameter(
                    option.name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=option.default,
                    annotation=option.annotation,
                )
            )
    return own.replace(parameters=kept)
