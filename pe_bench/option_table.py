"""The table of options: dataclass fields that have a help text.

The command line, the keywords of `pe_bench.run`, grid files and `pe-bench rerun` are derived from
these fields. A new option is a new field.
"""

import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import cache, cached_property
from numbers import Integral, Real
from typing import Any, Literal

from pe_bench.errors import InputError, suggest

REQUIRED = MISSING
"""Default of an option that must be given."""

LARGEST_WHOLE = 10**12
"""Limit of whole numbers that declare no other one: records cannot store any size."""


def option(default: Any, text: str, **details: Any) -> Any:
    """Return a dataclass field that is an option.

    Args:
        default: default value, or a function that returns it; REQUIRED: there is none.
        text: help text for `--help`.
        **details: other attributes of the `Option`.
    """
    metadata = {"help": text, **details}
    if callable(default):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


def argument(text: str, metavar: str, default: Any = REQUIRED) -> Any:
    """Return a dataclass field that is a positional argument of the command line."""
    return option(default, text, metavar=metavar, positional=True)


@dataclass(frozen=True)
class Option:
    """One option.

    Attributes:
        name: name of the field, and of the keyword in Python.
        annotation: type of the value.
        default: default value; REQUIRED: there is none.
        help: text for `--help`.
        flag: name on the command line and in grid files, without dashes, such as "train.lr".
        short: a second flag of one letter, without its dash.
        metavar: placeholder of the value in `--help`; None: made from the type.
        read: function that converts the words of a command line to the value. Its ValueError says
            what the value must be. None: conversion by the type.
        config: dataclass whose options are given as `--NAME.OPTION`. The value is a mapping with
            the given options, or an instance of the dataclass if the flag `--NAME` is given.
        positional: whether its words are given on the command line without a flag.
        unless: flag of another option, without dashes; if that one is given, this one need not be.
        least: smallest allowed number, see `check_values`.
        most: largest allowed number.
        above, below: limits that a number must not reach.
    """

    name: str
    annotation: Any
    default: Any
    help: str
    flag: str
    short: str | None = None
    metavar: str | None = None
    read: Callable[[Sequence[str]], Any] | None = None
    config: type[Any] | None = None
    positional: bool = False
    unless: str = ""
    least: float = 0
    most: float | None = None
    above: float | None = None
    below: float | None = None

    @property
    def is_required(self) -> bool:
        """Whether there is no default."""
        return self.default is REQUIRED

    @property
    def type(self) -> Any:
        """The annotation without None."""
        if typing.get_origin(self.annotation) not in (typing.Union, types.UnionType):
            return self.annotation
        args = typing.get_args(self.annotation)
        return next(arg for arg in args if arg is not type(None))

    @property
    def item(self) -> Any:
        """Type of one word: type of an element if the value is a tuple, else type of the value."""
        return typing.get_args(self.type)[0] if self.is_tuple else self.type

    @property
    def words(self) -> tuple[str, ...]:
        """The words that the value may be; empty: no such limit."""
        return typing.get_args(self.type) if typing.get_origin(self.type) is Literal else ()

    @property
    def is_optional(self) -> bool:
        """Whether the value may be None."""
        return type(None) in typing.get_args(self.annotation)

    @property
    def is_tuple(self) -> bool:
        """Whether the value is a tuple of any length."""
        return typing.get_origin(self.type) is tuple

    @property
    def is_mapping(self) -> bool:
        """Whether the value is a mapping."""
        return typing.get_origin(self.type) is Mapping

    @property
    def is_changes(self) -> bool:
        """Whether the value is a mapping of changed values of `config`."""
        return self.config is not None and self.is_mapping

    @property
    def is_switch(self) -> bool:
        """Whether the flag has no value. An option of a `config` always has a value."""
        if self.config is not None:
            return not self.is_mapping
        return self.annotation is bool and "." not in self.flag

    @cached_property
    def inner(self) -> "list[Option]":
        """The options of `config`, whose flags begin with this option's flag."""
        return options_of(self.config, f"{self.flag}.") if self.config else []


def options_of(cls: type[Any], prefix: str = "") -> list[Option]:
    """Return the options of a dataclass; each flag begins with the prefix."""
    hints = typing.get_type_hints(cls)
    found = []
    for one in fields(cls):
        if "help" not in one.metadata:  # not an option: the program sets the field
            continue
        default = one.default if one.default_factory is MISSING else one.default_factory()
        flag = prefix + one.name
        if not prefix:
            flag = one.name.replace("_", "-")
            if default is True:
                flag = f"no-{flag}"
        details = {"flag": flag, **one.metadata}
        found.append(Option(one.name, hints[one.name], default, **details))
    return found


def is_whole(value: Any) -> bool:
    """Return whether a value is a whole number, of Python or of NumPy; True and False are not."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Return whether a value is a real number, of Python or of NumPy; True and False are not."""
    return isinstance(value, Real) and not isinstance(value, bool)


def check_values(options: Any, prefix: str = "") -> None:
    """Check the values in a dataclass of options: types, finiteness and limits of numbers.

    Numbers of other libraries, such as NumPy's, become those of Python, because records are JSON,
    and whole numbers become floats where the option is one, because their digests differ.

    Args:
        options: an instance of the dataclass.
        prefix: prefix of the names in messages, such as "train.".

    Raises:
        InputError: a value is wrong.
    """
    cls: Any = type(options)
    for one in _checked(cls):
        value = getattr(options, one.name)
        if value is None and one.is_optional:
            continue
        values = tuple(value) if one.is_tuple else (value,)
        for single in values:
            violated = _violated_condition(one, single)
            if violated:
                raise InputError(f"{prefix}{one.name} must {violated}, not {single!r}")
        holds_numbers = one.item in (int, float)
        if holds_numbers and any(type(single) is not one.item for single in values):
            plain = tuple(map(one.item, values))
            object.__setattr__(options, one.name, plain if one.is_tuple else plain[0])


@cache
def _checked(cls: type[Any]) -> list[Option]:
    """Return the options whose values are numbers, true or false, or one of a few words."""
    return [one for one in options_of(cls) if one.item in (int, float, bool) or one.words]


def _violated_condition(option: Option, value: Any) -> str:
    """Return the condition that a value violates, such as "be true or false"; empty: none."""
    if option.words:
        return "" if value in option.words else f"be one of {', '.join(option.words)}"
    if option.item is bool:
        return "" if isinstance(value, bool) else "be true or false"
    return _violated_limit(option, value)


def _violated_limit(option: Option, number: Any) -> str:
    """Return the condition that a number violates; empty: none."""
    whole = option.item is int
    if not (is_whole(number) if whole else is_number(number)):
        return "be a whole number" if whole else "be a number"
    if not whole and not math.isfinite(number):
        return "be a finite number"
    limited = option.most is not None or option.below is not None
    if whole and not limited and number > LARGEST_WHOLE:
        return f"be at most {LARGEST_WHOLE:,}"
    if option.above is not None and number <= option.above:
        return f"be above {option.above}"
    if option.most is not None and not option.least <= number <= option.most:
        return f"be from {option.least} to {option.most}"
    if option.below is not None and not option.least <= number < option.below:
        return f"be from {option.least} to below {option.below}"
    if number < option.least:
        return f"be at least {option.least}" if option.least else "not be negative"
    return ""


def option_names(cls: type[Any]) -> list[str]:
    """Return the names of the fields of a dataclass that are options."""
    return [one.name for one in fields(cls) if "help" in one.metadata]


def option_words(flag: str, values: Mapping[str, Any]) -> list[str]:
    """Convert values of a dataclass to words of a command line: `--FLAG.NAME VALUE`."""
    words: list[str] = []
    for name, value in values.items():
        several = value if isinstance(value, list | tuple) else [value]
        texts = [str(one).lower() if isinstance(one, bool) else str(one) for one in several]
        words += [f"--{flag}.{name}", *texts]
    return words


def check_names(owner: str, given: Iterable[str], known: Sequence[str]) -> None:
    """Check that options exist.

    Args:
        owner: function or option that the options belong to, for the message.
        given: names to check.
        known: names that exist.

    Raises:
        InputError: a name does not exist.
    """
    for name in given:
        if name not in known:
            hint = suggest(name, list(known))
            raise InputError(f"{owner} has no '{name}'{hint}; it has {', '.join(known)}")
