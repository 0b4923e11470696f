"""Options of plugins: the parameters of a constructor, converted from text to their types."""

import dataclasses
import inspect
import keyword
import math
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pe_bench.errors import InputError, suggest
from pe_bench.option_table import is_number


class NestedSpec(str):
    """A spec as the value of an option: colons separate its options, instead of commas."""


class EncodingSpec(NestedSpec):
    """Type of an option that names an encoding: `abacus:base=rope:base=5e5:rotary=0.5`."""


class TaskSpec(NestedSpec):
    """Type of an option that names a task: `scrolls:start=perplexity:corpus=pg19`."""


TABLES = "option_tables"
"""Class attribute with dataclasses for the values of an option, see `plugin_options`."""

DOTTED_CLASS = r"[^\W\d]\w*(?:\.\w+)+:[^\W\d]\w*(?!\w|=|\.py)"
"""package.module:Class"""


def split_spec(spec: str) -> tuple[str, dict[str, str]]:
    """Return the name or path of a spec and the text of each option.

    Raises:
        InputError: the syntax is wrong, or an option is given twice.
    """
    # The plugin's path is before the first "=". In name:base=./mine.py, the path is a value.
    match = re.fullmatch(
        rf"(?P<where>{DOTTED_CLASS}|[^=]*?\.py|[^:]*)(?::(?P<options>.*))?", spec, re.DOTALL
    )
    where, text = (match["where"], match["options"]) if match else (spec, None)
    if re.fullmatch(DOTTED_CLASS, where):
        where = where.replace(":", ".")
    if any(len(part.encode()) > 255 for part in where.split("/")):
        raise InputError(
            f"'{where[:40]}...' is too long for a name or a path: names have at most 255 bytes"
        )
    separator = ":" if isinstance(spec, NestedSpec) else ","
    options: dict[str, str] = {}
    for pair in (text or "").split(separator):
        if not pair:
            continue
        key, equals, value = (part.strip() for part in pair.partition("="))
        if not (key and equals and value):
            example = f"name:key=value{separator}key=value"
            raise InputError(f"'{spec}' is not a spec: write {example}")
        if key in options:
            raise InputError(f"'{spec}' gives the option '{key}' twice: leave one of them out")
        options[key] = value
    return where, {parameter_of(key): value for key, value in options.items()}


def with_option(spec: str, name: str, value: str) -> str:
    """Return a spec with one more option."""
    separator = ":" if isinstance(spec, NestedSpec) else ","
    return f"{spec}{separator if split_spec(spec)[1] else ':'}{name}={value}"


def parameter_of(option: str) -> str:
    """Return the parameter of an option; a keyword of Python gets an underscore: `global_`."""
    return f"{option}_" if keyword.iskeyword(option) else option


def option_of(parameter: str) -> str:
    """Return the option of a parameter, in the notation of a spec."""
    return parameter.removesuffix("_")


def plugin_options(cls: type[Any]) -> list[inspect.Parameter]:
    """Return a plugin's options: the keyword-only parameters of its constructor, types resolved.

    If the constructor passes `**options` to its parent, the parent's options follow. If the class
    attribute `option_tables` contains dataclasses for the values of an option, their fields with a
    default follow this option. An option without annotation has the type of its default.

    Raises:
        InputError: an option has no annotation, and its default does not determine a type; or its
            type or default cannot be written in a spec.
    """
    found: dict[str, inspect.Parameter] = {}
    tables: Mapping[str, Mapping[str, type[Any]]] = getattr(cls, TABLES, {})
    for ancestor in cls.__mro__:
        constructor = vars(ancestor).get("__init__")
        if constructor is None:
            continue
        parameters = _parameters(constructor)
        for p in parameters:
            if p.kind is inspect.Parameter.KEYWORD_ONLY:
                has_type = p.annotation is not p.empty
                option = p if has_type else p.replace(annotation=_type_of_default(cls, p))
                found.setdefault(p.name, option)
                for choice in tables.get(p.name, {}).values():
                    for field in _fields(choice):
                        found.setdefault(field.name, field)
        if all(p.kind is not inspect.Parameter.VAR_KEYWORD for p in parameters):
            break
    for option in found.values():
        _check_option(cls, option)
    return list(found.values())


def _check_option(cls: type[Any], option: inspect.Parameter) -> None:
    """Check that a spec can give the values of an option.

    Raises:
        InputError: the type is not one of those that `convert` supports, or the default is not a
            single value or is NaN.
    """
    if not all(map(_is_supported, members(option.annotation))):
        raise InputError(
            f"the option '{option.name}' of {cls.__name__} has the type {option.annotation}: "
            "annotate it with bool, int, float, str, Path, Literal, or one of these or None"
        )
    default = option.default
    single = default is option.empty or default is None
    single = single or isinstance(default, bool | int | float | str | Path | NestedSpec)
    if not single or default != default:
        raise InputError(
            f"the option '{option.name}' of {cls.__name__} has the default {default!r}, which a "
            "spec cannot contain: use a number, a text or None"
        )
    if default is option.empty or default is None:
        return
    types = members(option.annotation)
    if not any(_is_value(default, annotation) for annotation in types):
        raise InputError(
            f"the option '{option.name}' of {cls.__name__} has the default {default!r}, which is "
            f"not one of its values: {' or '.join(map(show_type, types))}"
        )


def _is_value(default: Any, annotation: Any) -> bool:
    """Return whether a default is a value of a type; paths and specs may be given as texts."""
    if typing.get_origin(annotation) is Literal:
        return True  # a default outside of the choices may stand for none of them
    if issubclass(annotation, bool):
        return default in (False, True)
    if issubclass(annotation, int):
        return is_number(default) and float(default).is_integer()
    if issubclass(annotation, float):
        return is_number(default)
    return isinstance(default, Path | str)


def members(annotation: Any) -> list[Any]:
    """Return the types of a union without None, or the type itself."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return [arg for arg in typing.get_args(annotation) if arg is not type(None)]
    return [annotation]


def _is_supported(annotation: Any) -> bool:
    if typing.get_origin(annotation) is Literal:
        return True
    if not isinstance(annotation, type):
        return False
    return issubclass(annotation, bool | int | float | str | Path | NestedSpec)


def _type_of_default(cls: type[Any], option: inspect.Parameter) -> type[Any]:
    """Return the type of an option that has no annotation.

    Raises:
        InputError: its default does not determine a type.
    """
    kind = type(option.default)
    if kind not in (bool, int, float, str):
        raise InputError(
            f"the option '{option.name}' of {cls.__name__} has no type: annotate it, as in "
            f"`{option.name}: float`"
        )
    return kind


def convert_options(
    where: str, known: Mapping[str, inspect.Parameter], given: Mapping[str, str]
) -> dict[str, Any]:
    """Return options with their values converted to the types of the constructor.

    Args:
        where: name of the plugin, for messages.
        known: options of the plugin by name.
        given: texts of the options in a spec, by name.

    Raises:
        InputError: an option does not exist, or a value has the wrong type.
    """
    options: dict[str, Any] = {}
    for key, text in given.items():
        if key not in known:
            pairs = [f"{option_of(name)}={show(p.default)}" for name, p in known.items()]
            has = ", ".join(pairs) or "none"
            key = option_of(key)
            hint = suggest(key, list(map(option_of, known)))
            instead = hint or f"; its options are: {has}"
            raise InputError(f"{where} has no option '{key}'{instead}")
        try:
            options[key] = convert(text, known[key].annotation)
        except ValueError as error:
            raise InputError(f"{where}:{option_of(key)} must be {error}, not '{text}'") from None
    return options


def convert(text: str, annotation: Any) -> Any:
    """Convert a text to the type of an annotation.

    Supported are bool, int (also as 5e5), float, str, Path, Literal and unions of these with None.

    Raises:
        ValueError: the text is not a valid value; the message describes the valid ones.
    """
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        if text.lower() == "none":
            return None
        return _convert_to_first(text, members(annotation))
    if origin is Literal:
        values = {str(arg): arg for arg in args}
        if text not in values:
            raise ValueError(f"one of {', '.join(values)}{suggest(text, list(values))}")
        return values[text]
    if annotation is bool:
        if text.lower() not in ("true", "false"):
            raise ValueError("true or false")
        return text.lower() == "true"
    if annotation is int:
        return _whole_number(text)
    if annotation is float:
        return _number(text)
    return annotation(text)


def _convert_to_first(text: str, annotations: Sequence[Any]) -> Any:
    """Convert a text to the first of several types of which it is a value.

    Raises:
        ValueError: it is a value of none.
    """
    wrong = []
    for annotation in annotations:
        try:
            return convert(text, annotation)
        except ValueError as error:
            wrong.append(str(error))
    raise ValueError(" or ".join(wrong))


def show(value: Any) -> str:
    """Return the text of an option's value, in the notation of a spec."""
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, float):
        return str(value)
    short = f"{value:.12g}"
    return short if float(short) == value else repr(value)


def show_type(annotation: Any) -> str:
    """Return a description of the valid values of a type, for messages."""
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return " or ".join("none" if arg is type(None) else show_type(arg) for arg in args)
    if origin is Literal:
        return ", ".join(map(str, args))
    names = {bool: "true, false", int: "a whole number", float: "a number"}
    names |= {EncodingSpec: "an encoding", TaskSpec: "a task"}
    return names.get(annotation, "a text")


def _whole_number(text: str) -> int:
    try:
        number = float(text)
        if number == int(number):
            return int(text) if text.lstrip("+-").isdigit() else int(number)
    except (ValueError, OverflowError):
        pass
    raise ValueError("a whole number")


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if math.isnan(value):
        raise ValueError("a number")
    return value


@cache  # resolving types takes most of the time of loading a plugin
def _parameters(constructor: Callable[..., Any]) -> tuple[inspect.Parameter, ...]:
    """Return the parameters of a constructor, types resolved where they are annotated."""
    hints = typing.get_type_hints(constructor)
    return tuple(
        p.replace(annotation=hints.get(p.name, p.empty))
        for p in inspect.signature(constructor).parameters.values()
    )


def _fields(cls: type[Any]) -> list[inspect.Parameter]:
    """Return the fields of a dataclass that have a default, as parameters."""
    fields = dataclasses.fields(cls)
    names = {field.name for field in fields if field.default is not dataclasses.MISSING}
    return [
        p.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for p in _parameters(vars(cls)["__init__"])
        if p.name in names
    ]
