"""Means over points, the gate, and effective lengths."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

from pe_bench.results.measurement import Measurement, Status
from pe_bench.results.splits import FAR, ID, OOD
from pe_bench.sequences.effective_length import LengthCurve
from pe_bench.sequences.eval_points import EvalPoint

Groups = Mapping[str, Sequence[Measurement]]
"""The rows of each mean, by the mean's name."""


class Mean(Protocol):
    """Returns the mean of a group of points."""

    def __call__(
        self, name: str, rows: Sequence[Measurement], status: Status = "ranked"
    ) -> Measurement: ...


@dataclass(frozen=True)
class Summary:
    """Summarises the rows of points.

    Attributes:
        points: the points of each subset of the run.
        group_names: returns the names of the means that include a point of a subset.
        mean: returns the mean of a group.
        gate: mean in distribution from which means out of distribution are ranked.
        each_subset: whether every subset has separate means and a gate.
        expected: number of points of each mean out of distribution, over the subsets that the
            headline needs. A mean over fewer points is partial; other means need all points of the
            subsets of the run.
    """

    points: Mapping[str, Sequence[EvalPoint]]
    group_names: Callable[[str, EvalPoint], Sequence[str]]
    mean: Mean
    gate: float
    each_subset: bool
    expected: Mapping[str, int]

    def summarize(
        self, measured: Sequence[Measurement], metrics: Sequence[str], headline: str
    ) -> list[Measurement]:
        """Return the means of all metrics and the effective lengths.

        Args:
            measured: rows of points.
            metrics: metrics of the points; the gate applies to the first.
            headline: metric of the effective lengths.
        """
        rows = []
        learned = self._groups([row for row in measured if row.metric == metrics[0]])
        for metric in metrics:
            points = [row for row in measured if row.metric == metric]
            for name, group in self._groups(points).items():
                rows.append(self.mean(name, group, self._status(name, learned)))
            curves: list[LengthCurve] = []
            for subset in self.points:
                curves += self._curves(subset, points)
            for curve in curves:
                if curve.name != curve.subset:  # otherwise its rows are in `measured`
                    rows += [*curve.rows, *curve.far]
            if metric == headline:
                rows += self._effective_lengths(curves, learned)
        return rows

    def _groups(self, measured: Sequence[Measurement]) -> dict[str, list[Measurement]]:
        """Return the rows of each mean."""
        found = {(row.subset, row.length, row.second_axis): row for row in measured}
        groups: dict[str, list[Measurement]] = {}
        for subset, points in self.points.items():
            for point in points:
                row = found.get((subset, point.length, point.second_axis))
                if row is None:
                    continue
                for name in self.group_names(subset, point):
                    groups.setdefault(name, []).append(row)
        return groups

    def _curves(self, subset: str, measured: Sequence[Measurement]) -> list[LengthCurve]:
        """Return the curves of a subset, from rows of one metric."""
        found = {(row.length, row.second_axis): row for row in measured if row.subset == subset}
        points: dict[str, dict[int, list[Measurement]]] = {}
        far: dict[str, dict[int, list[Measurement]]] = {}
        trained: dict[str, list[Measurement]] = {}
        for point in self.points[subset]:
            row = found.get((point.length, point.second_axis))
            name = _curve_of(point, subset)
            if row is None or not name:
                continue
            lengths = (far if point.split == FAR else points).setdefault(name, {})
            lengths.setdefault(point.length, []).append(row)
            if point.split == ID:
                trained.setdefault(name, []).append(row)
        curves = []
        for name, lengths in points.items():
            rows = self._means(name, lengths)
            beyond = self._means(name, far.get(name, {}))
            curves.append(LengthCurve(name, subset, rows, trained.get(name, []), beyond))
        return curves

    def _means(self, name: str, lengths: Mapping[int, Sequence[Measurement]]) -> list[Measurement]:
        """Return the mean of each length."""
        return [replace(self.mean(name, rows), length=n) for n, rows in lengths.items()]

    def _effective_lengths(
        self, curves: Sequence[LengthCurve], learned: Groups
    ) -> list[Measurement]:
        """Return the effective length of each curve with trained lengths, and their mean.

        Args:
            curves: curves of the headline's metric.
            learned: rows of each mean, for the metric of the gate.
        """
        rows = []
        for curve in curves:
            if curve.trained:
                group = f"{curve.subset}-{OOD}" if self.each_subset else OOD
                name = curve.subset
                if len(_trained_curves(self.points[curve.subset], curve.subset)) > 1:
                    name += f"-{curve.name}"
                rows.append(curve.effective_length(name, learned=self._has_learned(group, learned)))
        if not rows:
            return []
        status: Status = "ranked"
        if any(row.status == "not_learned" for row in rows):
            status = "not_learned"
        overall = self.mean(OOD, rows, status)
        return [overall] if len(rows) == 1 else [overall, *rows]

    def _has_learned(self, name: str, groups: Groups) -> bool:
        """Return whether the means in distribution that `name` depends on reach the gate."""
        trained = [f"{name.removesuffix(OOD).removesuffix(FAR)}{ID}"]
        if name in (OOD, FAR) and self.each_subset:
            trained = [f"{subset}-{ID}" for subset in self.points]
        means = [self.mean(group, groups[group]).value for group in trained if group in groups]
        return all(mean >= self.gate for mean in means)

    def _status(self, name: str, groups: Groups) -> Status:
        """Return the status of a mean."""
        extrapolates = name in (OOD, FAR)
        if self.each_subset:
            extrapolates |= name in [f"{s}-{split}" for s in self.points for split in (OOD, FAR)]
        expected = self.expected if extrapolates else self._own_counts
        if len(groups[name]) != expected[name]:
            return "partial"
        if extrapolates and not self._has_learned(name, groups):
            return "not_learned"
        return "ranked"

    @cached_property
    def _own_counts(self) -> Counter[str]:
        """Number of points of each mean, over the subsets of the run."""
        found: Counter[str] = Counter()
        for subset, points in self.points.items():
            for point in points:
                found.update(self.group_names(subset, point))
        return found


def _curve_of(point: EvalPoint, subset: str) -> str:
    """Return the name of the curve of a point; empty: it is on no curve."""
    return point.curve or ("" if point.second_axis else subset)


def _trained_curves(points: Sequence[EvalPoint], subset: str) -> set[str]:
    """Return the names of the curves of a subset with trained lengths, measured or not."""
    return {_curve_of(point, subset) for point in points if point.split == ID} - {""}
