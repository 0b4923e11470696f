"""Titles of the panels of curves."""

from pe_bench.reporting.tables import Table
from pe_bench.results.splits import ID
from pe_bench.results.views import Curve

GENERAL = ("all", "cells", "grid", "test")  # subsets whose names say nothing about their items
OF_LENGTHS = "-length"  # ends the name of the means of a subset over its second axis


def title_curve(table: Table, view: Curve) -> str:
    """Return the title of a panel: the view's title, or its subset or axis.

    Curves of "in-distribution" can extend beyond the training lengths. Their items are drawn as in
    training, except for the length.

    Args:
        table: the table.
        view: one of its curves.
    """
    if view.title:
        return view.title
    axis = f"by {(view.x or table.axis('length')).split(' (')[0]}"
    subset = view.subset
    subsets = {other.subset for other in table.views(Curve)}
    if subset in GENERAL or subset.startswith("by-"):
        return axis
    if subset.endswith(OF_LENGTHS):
        several = sum(other.endswith(OF_LENGTHS) for other in subsets) > 1
        return f"{subset.removesuffix(OF_LENGTHS)}, {axis}" if several else axis
    if subset == ID:
        return f"as in training, {axis}"
    return subset if len(subsets) > 1 else f"{subset}, {axis}"
