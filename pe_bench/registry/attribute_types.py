"""Types of the class attributes that declare facts about a plugin, such as `shared`."""

import inspect
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING
from types import UnionType
from typing import Any, ClassVar

from pe_bench.errors import InputError
from pe_bench.option_table import is_number, is_whole

WORDS: dict[type[Any], str] = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "a string",
    tuple: "a tuple",
    Mapping: "a mapping",
    type(None): "None",
}
"""Names of types in messages; other types appear under their own name."""


RENAMED = {"leads": "layer_kinds", "lead_of": "kind_of", "going_on": "with_training"}
"""Attributes of earlier versions that a plugin could override."""


def check_attributes(cls: type[Any], bases: Iterable[type[Any]], where: str) -> None:
    """Check that the class attributes of a plugin have the types that its bases declare.

    Properties are not checked.

    Args:
        cls: class of the plugin.
        bases: those of its bases that belong to the engine, such as `Encoding`.
        where: name or file of the plugin, for the message.

    Raises:
        InputError: an attribute, or an element of one, has another type, or an attribute has the
            name of an earlier version.
    """
    for old, new in RENAMED.items():
        if hasattr(cls, old):
            raise InputError(f"{where}: {cls.__name__}.{old} is now called {new}: rename it")
    for base in bases:
        for name, annotation in inspect.get_annotations(base).items():
            value = inspect.getattr_static(cls, name, MISSING)
            if value is MISSING or _is_computed(value):
                continue
            title = f"{where}: {cls.__name__}.{name}"
            _check_type(title, value, _types(annotation))
            for key, (element, types) in _elements(value, annotation).items():
                _check_type(f"{title}[{key!r}]", element, types)


def _check_type(title: str, value: Any, types: Sequence[type[Any]]) -> None:
    """Check the type of a value, which `title` names.

    Raises:
        InputError: it has none of the types.
    """
    if not any(_has_type(value, one) for one in types):
        words = " or ".join(WORDS.get(one, f"a {one.__name__}") for one in types)
        raise InputError(f"{title} must be {words}, not {value!r:.100}")


def _elements(value: Any, annotation: Any) -> dict[Any, tuple[Any, list[type[Any]]]]:
    """Return the elements of a mapping or tuple, each with its types, by key or index."""
    if typing.get_origin(annotation) is ClassVar:
        return _elements(value, typing.get_args(annotation)[0])
    arguments = typing.get_args(annotation)
    found = {}
    if isinstance(value, Mapping) and len(arguments) == 2 and arguments[1] is not Any:
        for key, element in value.items():
            found[key] = (element, _types(arguments[1]))
    elif isinstance(value, tuple) and len(arguments) == 2 and arguments[1] is Ellipsis:
        for index, element in enumerate(value):
            found[index] = (element, _types(arguments[0]))
    return found


def check_counts(encoding: Any) -> None:
    """Check the numbers of an instance of an encoding, which its constructor may have set.

    Raises:
        InputError: `max_position` or `eval_samples` is not a whole number of at least 1.
    """
    counts = {"eval_samples": encoding.eval_samples}
    if encoding.max_position is not None:
        counts["max_position"] = encoding.max_position
    for name, value in counts.items():
        if not _has_type(value, int) or value < 1:
            cls = type(encoding).__name__
            raise InputError(f"{cls}.{name} must be a whole number of at least 1, not {value!r}")


def _types(annotation: Any) -> list[type[Any]]:
    """Return the classes that values may have: `ClassVar[tuple[str, ...]]` -> [tuple]."""
    origin = typing.get_origin(annotation)
    if origin is ClassVar:
        return _types(typing.get_args(annotation)[0])
    if origin in (typing.Union, UnionType):
        found = []
        for one in typing.get_args(annotation):
            found += _types(one)
        return found
    return [origin or annotation]


def _is_computed(value: Any) -> bool:
    """Return whether an attribute is a property or another descriptor, but not a method."""
    return hasattr(type(value), "__get__") and not inspect.isroutine(value)


def _has_type(value: Any, expected: type[Any]) -> bool:
    if expected is int:
        return is_whole(value)
    if expected is float:
        return is_number(value)
    return isinstance(value, expected)
