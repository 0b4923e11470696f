"""Typed values from JSON of untrusted sources.

`read_as` validates the content of files: its results have their declared types, numbers are finite
and in range, and text has no control characters.
"""

import math
import re
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from pe_bench.system.files import slug
from pe_bench.system.text import FORBIDDEN, printable

DEPTH = 30  # maximum nesting of values without a declared type
LARGEST = 2**63  # integers must be smaller, as in a table

LINE = re.compile(f"[^\n\t{FORBIDDEN.pattern[1:]}*")

Read = Callable[..., Any]


class WrongError(ValueError):
    """Error for a value that does not have its declared type.

    Args:
        says: the problem, as the end of a sentence.
        path: keys that lead to the value.
    """

    def __init__(self, says: str, *path: str) -> None:
        super().__init__(f"its {'.'.join(path)} {says}" if path else f"it {says}")
        self.says = says
        self.path = path

    def below(self, name: object) -> "WrongError":
        """Return the same error for the object that contains the value under a name."""
        return WrongError(self.says, printable(str(name))[:100], *self.path)


def _must(what: str, holds: Callable[[Any], bool]) -> Read:
    """Return a reader of values that have a property."""

    def read(value: Any) -> Any:
        if not holds(value):
            raise WrongError(f"must be {what}")
        return value

    return read


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and value is not True and value is not False


def _is_integer(value: Any) -> bool:
    return type(value) is int and -LARGEST < value < LARGEST


def _is_text(value: Any) -> bool:
    # Python's `isprintable` is faster, and true for most text.
    return isinstance(value, str) and (value.isprintable() or FORBIDDEN.search(value) is None)


def is_line(value: Any) -> bool:
    """Return whether a value is a text of one line without control characters."""
    return isinstance(value, str) and (value.isprintable() or LINE.fullmatch(value) is not None)


def _is_label(value: Any) -> bool:
    return is_line(value) and value not in ("", ".", "..")


def _is_file_name(value: Any) -> bool:
    return _is_label(value) and slug(value) == value


Count = Annotated[int, _must("a number, 0 or more", lambda x: _is_integer(x) and x >= 0)]
Measured = Annotated[float, _must("a number", _is_number)]
"""A number that may be infinite or nan, such as the loss of a training that diverged."""
Line = Annotated[str, _must("a line of text", is_line)]
Label = Annotated[str, _must("a name", _is_label)]
"""The name of an encoding or a task; `slug` makes the name of a folder from it."""
FileName = Annotated[str, _must("a name of letters, digits and any of .=,+-_", _is_file_name)]


@dataclass(frozen=True)
class PartOf:
    """Kind of an object with fields of a dataclass, all optional except the needed ones."""

    cls: type[Any]
    needed: tuple[str, ...] = ()


SIMPLE: dict[Any, Read] = {
    bool: _must("true or false", lambda value: isinstance(value, bool)),
    int: _must("a whole number", _is_integer),
    float: _must("a finite number", lambda value: _is_number(value) and math.isfinite(value)),
    str: _must("text without control characters", _is_text),
    type(None): _must("null", lambda value: value is None),
    object: lambda value: value,  # validated later
}


def read_as(kind: Any, value: Any, **more: Any) -> Any:
    """Return a JSON value as a value of a type.

    Args:
        kind: the type: a simple one, a union, a `Literal`, a tuple or list of any length, a mapping
            from text, a `TypedDict` (other keys may have any value), a dataclass (other keys are
            dropped), one of the types above, `Any` (any JSON), `object` (not checked), or
            `Annotated[type, kind]`.
        value: the JSON value, as `json.loads` returns it.
        **more: values of other fields of a dataclass.

    Raises:
        WrongError: the value has another type; the message contains the keys that lead to it.
    """
    return _reader(kind)(value, **more)


@cache
def _reader(kind: Any) -> Read:
    origin, args = get_origin(kind), get_args(kind)
    if kind is Any:
        return _read_any
    if kind in SIMPLE:
        return SIMPLE[kind]
    if origin in (Required, NotRequired):
        return _reader(args[0])
    if origin is Annotated:
        return args[1] if isinstance(args[1], types.FunctionType) else _reader(args[1])
    if origin is Literal:
        return _must(" or ".join(map(str, args)), lambda value: value in args)
    if origin in (Union, types.UnionType):
        return _read_kinds(args) if all(map(is_dataclass, args)) else _read_union(args)
    if origin in (tuple, list):
        return _read_elements(origin, _reader(args[0]))
    if origin is Mapping:
        return _read_mapping(_reader(args[1]))
    if isinstance(kind, PartOf):
        return _check_keys(get_type_hints(kind.cls, include_extras=True), kind.needed)
    if is_typeddict(kind):
        needed = tuple(sorted(kind.__required_keys__))
        return _check_keys(get_type_hints(kind, include_extras=True), needed)
    assert isinstance(kind, type) and is_dataclass(kind), kind
    return _make_instance(kind)


def _read_any(value: Any, depth: int = 0) -> Any:
    """Check JSON of any structure."""
    if isinstance(value, dict | list):
        if depth == DEPTH:
            raise WrongError(f"is nested in more than {DEPTH} levels")
        for name, one in value.items() if isinstance(value, dict) else enumerate(value):
            try:
                SIMPLE[str](str(name))
                _read_any(one, depth + 1)
            except WrongError as error:
                raise error.below(name) from None
    elif isinstance(value, str):
        SIMPLE[str](value)
    elif isinstance(value, float):
        SIMPLE[float](value)
    elif isinstance(value, int) and not isinstance(value, bool):
        SIMPLE[int](value)
    return value


def _read_union(args: tuple[Any, ...]) -> Read:
    readers = [_reader(arg) for arg in args if arg is not type(None)]
    has_none = type(None) in args

    def read(value: Any) -> Any:
        if value is None and has_none:
            return None
        wrong = []
        for reader in readers:
            try:
                return reader(value)
            except WrongError as error:
                wrong.append(error)
        if len(wrong) == 1:
            raise wrong[0]
        kinds = [error.says.removeprefix("must be ") for error in wrong]
        raise WrongError(f"must be {' or '.join(kinds)}")

    return read


def _read_kinds(args: tuple[Any, ...]) -> Read:
    """Return a reader of several dataclasses; the key "kind" has the class name in lower case."""
    readers = {arg.__name__.lower(): _reader(arg) for arg in args}

    def read(value: Any) -> Any:
        kind = value.get("kind") if isinstance(value, dict) else None
        if not isinstance(kind, str) or kind not in readers:
            raise WrongError(f"must be an object whose kind is {' or '.join(readers)}")
        return readers[kind](value)

    return read


def _read_elements(origin: Any, reader: Read) -> Read:
    def read(value: Any) -> Any:
        if not isinstance(value, list | tuple):
            raise WrongError("must be a list")
        found = []
        for index, one in enumerate(value):
            try:
                found.append(reader(one))
            except WrongError as error:
                raise error.below(index) from None
        return origin(found)

    return read


def _read_mapping(reader: Read) -> Read:
    def read(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise WrongError("must be an object")
        found = {}
        for name, one in value.items():
            try:
                found[SIMPLE[str](name)] = reader(one)
            except WrongError as error:
                raise error.below(name) from None
        return found

    return read


class _Readers(dict[str, Read]):
    """The readers of declared keys, made on demand, since a type may contain itself."""

    def __init__(self, hints: Mapping[str, Any]) -> None:
        super().__init__()
        self.hints = hints

    def __missing__(self, name: str) -> Read:
        if name not in self.hints:
            SIMPLE[str](name)
            return _read_any
        reader = self[name] = _reader(self.hints[name])
        return reader


def _check_keys(hints: Mapping[str, Any], needed: tuple[str, ...]) -> Read:
    """Return a reader that checks the declared keys of an object and returns it unchanged."""
    readers = _Readers(hints)

    def read(value: Any) -> Any:
        _check_needed(value, needed)
        for name, one in value.items():
            try:
                readers[name](one)
            except WrongError as error:
                raise error.below(name) from None
        return value

    return read


def _make_instance(cls: type[Any]) -> Read:
    """Return the reader of a dataclass."""
    names = [field.name for field in fields(cls)]
    needed = tuple(f.name for f in fields(cls) if f.default is f.default_factory is MISSING)
    readers = _Readers(get_type_hints(cls, include_extras=True))
    last: dict[str, tuple[Any, Any]] = {}  # a cache: the runs of a folder share most settings

    def read(value: Any, **more: Any) -> Any:
        _check_needed(value, needed)
        found = dict(more)
        for name in names:
            if name in more or name not in value:
                continue
            one = value[name]
            if name in last and (one is last[name][0] or one == last[name][0]):
                found[name] = last[name][1]
                continue
            try:
                found[name] = readers[name](one)
                if isinstance(one, dict | list):
                    last[name] = one, found[name]
            except WrongError as error:
                raise error.below(name) from None
        return cls(**found)

    return read


def _check_needed(value: Any, needed: tuple[str, ...]) -> None:
    if not isinstance(value, Mapping):
        raise WrongError("is not a JSON object")
    absent = [name for name in needed if name not in value]
    if absent:
        raise WrongError(f"lacks {', '.join(absent)}")
