"""JSON of untrusted sources as typed values: what each kind of value accepts, and its messages."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import pytest

from pe_bench.system.schema import (
    DEPTH,
    LARGEST,
    Count,
    FileName,
    Label,
    Line,
    Measured,
    PartOf,
    WrongError,
    read_as,
)


@dataclass(frozen=True)
class Point:
    name: Line
    size: Count = 3
    more: tuple[int, ...] = field(default_factory=tuple)


@dataclass(frozen=True)
class Ring:
    radius: float


class Loose(TypedDict):
    count: int
    note: NotRequired[str]


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


GOOD: list[tuple[Any, Any, Any]] = [
    (bool, True, True),
    (int, -5, -5),
    (int, LARGEST - 1, LARGEST - 1),
    (float, 3, 3),
    (str, "two\nlines\t", "two\nlines\t"),
    (Line, "ein Wört", "ein Wört"),
    (Label, "rope:base=2.0", "rope:base=2.0"),
    (FileName, "seed0-1a.b=c,d+e", "seed0-1a.b=c,d+e"),
    (Count, 0, 0),
    (Measured, math.inf, math.inf),
    (float | None, None, None),
    (int | str, "a", "a"),
    (Literal["a", "b"], "b", "b"),
    (tuple[int, ...], [3, 1], (3, 1)),
    (list[str], ["b", "a"], ["b", "a"]),
    (Mapping[str, int], {"a": 1}, {"a": 1}),
    (Any, {"a": [1, {"b": None}]}, {"a": [1, {"b": None}]}),
    (Any, nested(DEPTH), nested(DEPTH)),
    (object, {"a": math.nan, "b": "\x1b"}, None),  # is not checked
    (Point, {"name": "p", "other": "\x1b"}, Point("p")),
    (Point, {"name": "p", "size": 0, "more": [2]}, Point("p", 0, (2,))),
    (Point | Ring, {"kind": "ring", "radius": 1.5}, Ring(1.5)),
    (Loose, {"count": 1, "free": [0.5]}, {"count": 1, "free": [0.5]}),
    (PartOf(Point), {"size": 2}, {"size": 2}),
    (Annotated[Mapping[str, Any], Loose], {"count": 1}, {"count": 1}),
]
BAD: list[tuple[Any, Any, str]] = [
    (bool, 1, "it must be true or false"),
    (int, True, "it must be a whole number"),
    (int, 1.0, "it must be a whole number"),
    (int, LARGEST, "it must be a whole number"),
    (int, -LARGEST, "it must be a whole number"),
    (float, True, "it must be a finite number"),
    (float, math.inf, "it must be a finite number"),
    (float, "1", "it must be a finite number"),
    (str, 1, "it must be text without control characters"),
    (str, "a\x1b", "it must be text without control characters"),
    (Line, "a\nb", "it must be a line of text"),
    (Line, "a\tb", "it must be a line of text"),
    (Label, "..", "it must be a name"),
    (Label, "", "it must be a name"),
    (FileName, "a/b", "it must be a name of letters, digits and any of .=,+-_"),
    (Count, -1, "it must be a number, 0 or more"),
    (Count, False, "it must be a number, 0 or more"),
    (Measured, None, "it must be a number"),
    (float | None, "x", "it must be a finite number"),
    (int | bool, "a", "it must be a whole number or true or false"),
    (Literal["a", "b"], "c", "it must be a or b"),
    (tuple[int, ...], "12", "it must be a list"),
    (tuple[int, ...], [1, 2, "x"], "its 2 must be a whole number"),
    (Mapping[str, int], [1], "it must be an object"),
    (Mapping[str, int], {"a": 1, "b": "x"}, "its b must be a whole number"),
    (Mapping[str, int], {"a\x1b": 1}, "its a� must be text without control characters"),
    (Any, nested(DEPTH + 1), f"is nested in more than {DEPTH} levels"),
    (Any, {"a": [1, "b\x1b"]}, "its a.1 must be text without control characters"),
    (Any, {"a\x1b": 1}, "must be text without control characters"),
    (Any, [[math.nan]], "its 0.0 must be a finite number"),
    (Any, {"a": {"b": LARGEST}}, "its a.b must be a whole number"),
    (Point, [], "it is not a JSON object"),
    (Point, {"size": 1}, "it lacks name"),
    (Point, {"name": "p", "size": -1}, "its size must be a number, 0 or more"),
    (Point, {"name": "p", "more": [1, "x"]}, "its more.1 must be a whole number"),
    (Point | Ring, {"kind": "square"}, "it must be an object whose kind is point or ring"),
    (Point | Ring, {"kind": "ring", "radius": "x"}, "its radius must be a finite number"),
    (Loose, {"note": "a"}, "it lacks count"),
    (Loose, {"count": 1, "note": 2}, "its note must be text without control characters"),
    (Loose, {"count": 1, "free": math.inf}, "its free must be a finite number"),
    (PartOf(Point, ("size",)), {"name": "p"}, "it lacks size"),
    (PartOf(Point), {"size": -1}, "its size must be a number, 0 or more"),
]


@pytest.mark.parametrize(("kind", "value", "expected"), GOOD)
def test_values_of_their_type_are_read(kind: Any, value: Any, expected: Any) -> None:
    found = read_as(kind, value)
    assert found == (value if kind is object else expected)
    assert type(found) is type(value if kind is object else expected)


@pytest.mark.parametrize(("kind", "value", "says"), BAD)
def test_other_values_are_named_with_their_keys(kind: Any, value: Any, says: str) -> None:
    with pytest.raises(WrongError) as caught:
        read_as(kind, value)
    assert str(caught.value).endswith(says)


def test_fields_that_are_given_are_not_read() -> None:
    assert read_as(Point, {"name": "p", "size": "x"}, size=9) == Point("p", 9)


def test_equal_values_one_after_the_other_are_checked_each() -> None:
    for more, expected in (([1, 2], (1, 2)), ([1, 2], (1, 2)), ([2, 1], (2, 1))):
        assert read_as(Point, {"name": "p", "more": more}).more == expected
    with pytest.raises(WrongError, match=r"more\.0"):
        read_as(Point, {"name": "p", "more": ["x"]})
