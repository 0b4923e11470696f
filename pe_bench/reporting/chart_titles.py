"""Titles of the panels of curves."""

from pe_bench.reporting.tables import Table
from pe_bench.results.views import Curve

GENERAL = ("all", "cells", "grid", "test")  # subsets whose names say nothing about their items
TRAINED = "in-distribution"


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
    if subset in GENERAL or subset.startswith("by-") or subset.endswith("-length"):
        return axis
    if subset == TRAINED:
        return f"as in training, {axis}"
    subsets = {other.subset for other in table.views(Curve)}
    return subset if len(subsets) > 1 else f"{subset}, {axis}"
