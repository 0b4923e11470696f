"""The points of an evaluation over lengths."""

from typing import NamedTuple

ID = "in-distribution"
OOD = "out-of-distribution"
FAR = "far"
"""Lengths far beyond those of OOD, for encodings that have positions there."""


class EvalPoint(NamedTuple):
    """One point of an evaluation. All of its items have the same weight.

    Attributes:
        length: place on the task's axis `length`.
        second_axis: place on its second axis; empty: it has none.
        split: ID where such items are in training, OOD where they are not, FAR where they are so
            long that an encoding of limited positions leaves them out; empty: in none of the means.
        groups: more means that the point counts in.
        curve: name of a curve over `length`, whose value here is the mean over its points of this
            length; empty: none. (A subset without a second axis is a curve without that.)
    """

    length: int
    second_axis: str = ""
    split: str = ""
    groups: tuple[str, ...] = ()
    curve: str = ""
