"""Base class of tasks that generate sequences, train on short and evaluate on longer ones."""

import hashlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from pe_bench.decoder.generation import NotFiniteError
from pe_bench.decoder.model import Decoder
from pe_bench.errors import InputError
from pe_bench.results.intervals import mean_of
from pe_bench.results.items import Items, RowKey
from pe_bench.results.journal import Journal
from pe_bench.results.measurement import Measurement, Status
from pe_bench.results.metrics import Metric, find_metric
from pe_bench.results.splits import FAR, ID, OOD
from pe_bench.results.views import View
from pe_bench.sequences.baselines import BASELINES, Baselines
from pe_bench.sequences.eval_points import EvalPoint, check_points
from pe_bench.sequences.rows import Sequences, Turn, collate, stack
from pe_bench.sequences.scoring import (
    TEACHER_FORCED,
    Scores,
    decoding_tokens,
    exact_match,
    item_scores,
    teacher_forced,
)
from pe_bench.sequences.summary import Summary
from pe_bench.sequences.views import make_views
from pe_bench.system.console import progress
from pe_bench.task import Batch, Evaluation, Task, TaskContext

EVAL_SEED = 20_250_107  # seed of the items made by `sample`
BASELINE_ROWS = 4096  # training rows that baselines are fitted to


class LengthGeneralizationTask(Task):
    """Base class of synthetic tasks that train on short sequences and evaluate longer ones.

    Subclasses define `eval_points`, and `sample` for one row. To make many rows at once or in other
    proportions, they override `items` and `batch` instead of `sample`. The evaluation points
    determine the means (one for each split and group), the lengths and the views.

    Extrapolation by a model that has not learned the task says nothing about its encoding. If a
    mean in distribution is below `gate`, the mean out of distribution therefore has the status
    "not_learned". It is "partial" if subsets are missing. A run has one effective length, see
    `LengthCurve`: the mean over its curves with trained lengths.

    Points of the split FAR are many times as long as any training sequence. They are expensive, and
    not every encoding supports their positions. They therefore have few items and a separate mean,
    `far`, with the same gate. Headlines and effective lengths do not depend on them. If the
    `max_position` of an encoding is too small for a point, the point is skipped with a note.

    Args:
        context: settings of the run.
        samples: number of items of each point; at a far length about `far_samples` items in total.
        gate: minimum in-distribution score, in per cent, of a model that has learned the task.

    Raises:
        InputError: an option is out of range, the gate is an attribute of the class, the task does
            not take the given data, or lower values of its first metric or its headline are better.
    """

    autoregressive: ClassVar[bool] = True
    """Whether the model generates the answer; False: scored tokens are part of a given text."""

    averages_each_subset: ClassVar[bool] = False
    """Whether every subset has means `<subset>-in-distribution` and so on, and a gate."""

    point_metrics: ClassVar[tuple[str, ...]] = ("exact_match",)
    """Metrics of every point and mean, see `item_scores`; the gate applies to the first."""

    all_subsets: tuple[str, ...] = ("cells",)
    version = 2
    check_options: ClassVar[Mapping[str, Any]] = {"samples": 8}
    far_samples: ClassVar[int] = 50
    """Maximum number of items of a far length, divided between its points."""

    takes_data: ClassVar[bool] = False
    """Whether `--data` is accepted. A task that sets it must reject data that have no effect."""

    def __init__(self, context: TaskContext, *, samples: int = 100, gate: float = 99.0) -> None:
        super().__init__(context)
        self.check_range(samples=(samples, 1, 100_000))
        if type(self).gate is not None:
            raise InputError(
                f"{self.name}.gate has no effect, because the gate is an option: give its value in "
                f"the options of a Preset, as in {{'gate': {type(self).gate}}}"
            )
        if not 0 <= gate <= 100:
            raise InputError(f"{self.name}:gate must be a percentage, not {gate}")
        if context.data is not None and not self.takes_data:
            raise InputError(f"{self.name} makes its own sequences: leave out --data")
        if not self.point_metrics:
            raise InputError(f"{self.name} has no point_metrics: name one, such as exact_match")
        for name in (self.point_metrics[0], self.headline.metric):
            metric = find_metric(name, self.metrics)
            if metric.higher_is_better is False:
                raise InputError(
                    f"lower values of {name} are better, but the gate and the effective length "
                    "need a metric of which higher ones are: give for example its complement"
                )
        self.samples = samples
        self.gate = gate
        unit = self.axes["length"].partition(" ")[0]  # "tokens of the prompt" -> "tokens"
        effective = Metric("effective length", unit, higher_is_better=True)
        self.metrics = {"effective_length": effective, **self.metrics}

    def check_kinds(self, known: Sequence[str]) -> None:
        """Check `all_subsets` of a task whose option `kinds` selects them.

        Args:
            known: all that can be selected.

        Raises:
            InputError: a subset is unknown, or is selected twice.
        """
        kinds = self.all_subsets
        if not set(kinds) <= set(known) or len(set(kinds)) < len(kinds):
            raise InputError(
                f"{self.name}:kinds must be all, or some of {', '.join(known)}, joined by +, not "
                f"{'+'.join(kinds)}"
            )

    def eval_points(self, subset: str) -> Sequence[EvalPoint]:
        """Return the points of a subset, grouped by length."""
        raise NotImplementedError

    def sample(self, rng: np.random.Generator, subset: str, point: EvalPoint) -> list[Turn]:
        """Return one row: prompts and the expected answers."""
        raise NotImplementedError

    def items(self, subset: str, point: EvalPoint) -> Sequences:
        """Return the items of a point. They are the same for every encoding and seed.

        Raises:
            InputError: an item has no answer or no prompt, or an id that is not in the vocabulary.
        """
        identity = (self.all_subsets.index(subset), point.length, *point.second_axis.encode())
        rng = np.random.default_rng([EVAL_SEED, *identity])
        samples = []
        for _ in range(self.count(subset, point)):
            samples.append(self.sample(rng, subset, point))
        found = collate(samples)
        if not found.scored.any(1).all():
            raise InputError(
                f"{self.name}: an item of {subset} at length {point.length} has no answer"
            )
        if found.scored[:, 0].any():
            raise InputError(
                f"{self.name}: an item of {subset} at length {point.length} begins with an answer, "
                "whose first token nothing predicts: begin with a prompt"
            )
        size = self.vocabulary.vocab_size
        if found.ids.size and not 0 <= found.ids.min() <= found.ids.max() < size:
            raise InputError(
                f"{self.name}: an item of {subset} at length {point.length} has the ids "
                f"{found.ids.min()} to {found.ids.max()}, but the vocabulary has 0 to {size - 1}"
            )
        return found

    def count(self, subset: str, point: EvalPoint) -> int:
        """Return the number of items of a point."""
        if point.split != FAR:
            return self.samples
        points = [p for p in self.eval_points(subset) if p.split == FAR]
        same_length = [p for p in points if p.length == point.length]
        return min(self.samples, math.ceil(self.far_samples / len(same_length)))

    def batch(self, subset: str | None, seed: int, step: int) -> Batch:
        trained: list[tuple[str, EvalPoint]] = []
        for name in self._needed_subsets if subset is None else (subset,):
            trained += [(name, point) for point in self.eval_points(name) if point.split == ID]
        rng = np.random.default_rng([seed, step])
        samples = []
        for _ in range(self.train.batch_size):
            name, point = trained[rng.integers(len(trained))]
            samples.append(self.sample(rng, name, point))
        return collate(samples).batch()

    def score(self, model: Decoder, items: Sequence[Sequences]) -> list[Scores]:
        """Score the items of points of one length, separately for each point."""
        together = stack(items)
        if self.autoregressive:
            scores = exact_match(model, together)
        else:
            scores = teacher_forced(model, together)
        if scores.correct is None and TEACHER_FORCED.intersection(self.point_metrics):
            scores = replace(scores, correct=teacher_forced(model, together).correct)
        return scores.split([len(each) for each in items])

    def measure(self, subset: str, point: EvalPoint, scores: Scores) -> list[Items]:
        """Return the scores of a point's items, for each of `point_metrics`."""
        groups = [RowKey(name) for name in self.group_names(subset, point)]
        if point.curve:
            groups.append(RowKey(point.curve, length=point.length))
        found = []
        for metric in self.point_metrics:
            values, weights = item_scores(metric, scores)
            items = Items(
                subset,
                metric,
                100.0 * values,
                None if (weights == 1).all() else weights.astype(np.float64),
                point.length,
                point.second_axis,
                groups=tuple(groups),
            )
            found.append(items)
        return found

    def group_names(self, subset: str, point: EvalPoint) -> list[str]:
        """Return the names of the means that include a point."""
        names = [*point.groups]
        if point.split:
            names.append(point.split)
            if self.averages_each_subset:
                names.append(f"{subset}-{point.split}")
        return names

    def mean(
        self, name: str, rows: Sequence[Measurement], status: Status = "ranked"
    ) -> Measurement:
        """Return the mean of a group of points."""
        return mean_of(name, rows, status)

    def max_tokens(self, subset: str, point: EvalPoint) -> int:
        """Return the maximum number of tokens of a sequence of a point."""
        return int(self.items(subset, point).lengths.max())

    def evaluation_sequences(self) -> Mapping[int, int]:
        sequences: Counter[int] = Counter()
        for subset in self.subsets:
            for point in self.eval_points(subset):
                sequences[self.max_tokens(subset, point)] += self.count(subset, point)
        return sequences

    @cached_property
    def views(self) -> tuple[View, ...]:
        """Columns for means, curves for subsets with one axis, maps for subsets with two axes."""
        return make_views(
            self._points,
            self.axes,
            self.point_metrics,
            self.headline.metric,
            each_subset=self.averages_each_subset,
            max_trained=self.max_train_axis,
        )

    @cached_property
    def train_length(self) -> int:
        return self._longest_row(ID)

    @cached_property
    def max_eval_tokens(self) -> int:
        return self._longest_row(ID, OOD, "")

    @cached_property
    def max_far_tokens(self) -> int:
        return max(self.max_eval_tokens, self._longest_row(ID, FAR))

    @cached_property
    def max_train_axis(self) -> float:
        points = [point for subset in self.all_subsets for point in self.eval_points(subset)]
        return max((point.length for point in points if point.split == ID), default=0)

    def evaluate(self, model: Decoder, subset: str, seed: int, journal: Journal) -> Evaluation:
        by_length: dict[int, list[EvalPoint]] = {}
        reachable, notes = self._reachable(model, subset)
        for point in reachable:
            by_length.setdefault(point.length, []).append(point)
        items: list[Items] = []
        lost: dict[int, int] = {}  # length -> tokens
        forward = 0
        decoding = 0
        with progress(f"{self.name} · {subset}", len(by_length), unit="length") as bar:
            for length, points in by_length.items():
                if str(length) not in journal.items:
                    journal.add({str(length): self._measured(model, subset, points)})
                entry = journal.items[str(length)]
                for point, scores in zip(points, entry["scores"], strict=True):
                    if scores is None:
                        lost[length] = entry["finite_tokens"]
                    else:
                        items += self.measure(subset, point, Scores.from_json(scores))
                forward += entry["forward_tokens"]
                decoding += entry["decoding_tokens"]
                bar.update(1)
        if lost:
            names = " and ".join(map(str, lost))
            reason = NotFiniteError(min(lost.values()))
            notes.append(f"{subset}: left out {names} {self.axes['length']}: {reason}")
        rows = self._point_rows(items)
        if decoding > forward:
            notes.append(
                f"{subset}: {forward:,} tokens in forward passes, 1/{decoding / forward:.0f} of "
                f"the {decoding:,} tokens of decoding without a cache"
            )
        return Evaluation(rows, tuple(notes), items)

    def _point_rows(self, items: Sequence[Items]) -> list[Measurement]:
        """Return the row of each evaluation point."""
        return [each.row(self.metrics.get(each.metric)) for each in items]

    def summarize(self, measured: list[Measurement]) -> list[Measurement]:
        expected: Counter[str] = Counter()
        for subset in self._needed_subsets:
            for point in self.eval_points(subset):
                expected.update(self.group_names(subset, point))
        summary = Summary(
            self._points,
            self.group_names,
            self.mean,
            self.gate or 0.0,
            self.averages_each_subset,
            expected,
        )
        return summary.summarize(measured, self.point_metrics, self.headline.metric)

    def baselines(self) -> Mapping[str, list[Measurement]]:
        rows: dict[str, list[Measurement]] = {name: [] for name in BASELINES}
        shared = None if self.trains_each_subset else self._baselines(None)
        for subset in self.subsets:
            baselines = shared or self._baselines(subset)
            for point in self.eval_points(subset):
                batch = self.items(subset, point).batch()
                found = {**baselines.scores(batch), **self.own_baselines(subset, point)}
                for name, scores in found.items():
                    measured = self._point_rows(self.measure(subset, point, scores))
                    rows.setdefault(name, []).extend(measured)
        for some in rows.values():
            some += [replace(row, status="ranked") for row in self.summarize(some)]
        return rows

    def own_baselines(self, subset: str, point: EvalPoint) -> Mapping[str, Scores]:
        """Return the scores of further baselines on the items of a point, by name.

        The names must be the same for all points.
        """
        return {}

    def baseline_batch(self, subset: str | None, step: int) -> Batch:
        """Return a training batch for the baselines; by default, the batch of the first seed.

        Override this if training begins with rows that differ from the rows of the evaluation.
        """
        return self.batch(subset, 0, step)

    def _baselines(self, subset: str | None) -> Baselines:
        """Return baselines fitted to the training batches of a phase."""
        steps = range(math.ceil(BASELINE_ROWS / self.train.batch_size))
        batches = (self.baseline_batch(subset, step) for step in steps)
        size = self.vocabulary.vocab_size
        ordered = "string_match_all" not in self.point_metrics
        return Baselines(batches, size, consecutive=self.autoregressive, ordered=ordered)

    def provenance(self) -> dict[str, Any]:
        return {**super().provenance(), **self._items_digests}

    @cached_property
    def _items_digests(self) -> dict[str, str]:
        """A digest of the items, and one of the far items, which a run may leave out."""
        digests = {"items_sha256": hashlib.sha256()}
        for subset in self.subsets:
            for point in self.eval_points(subset):
                name = "far_items_sha256" if point.split == FAR else "items_sha256"
                digest = digests.setdefault(name, hashlib.sha256())
                items = self.items(subset, point)
                self._check_length(subset, point, items)
                for array in items.batch():
                    digest.update(str(tuple(array.shape)).encode())
                    digest.update(array.numpy().astype("<i4").tobytes())
        return {name: digest.hexdigest() for name, digest in digests.items()}

    @property
    def _needed_subsets(self) -> tuple[str, ...]:
        """Subsets whose mean is the headline."""
        return self.subsets if self.trains_each_subset else self.all_subsets

    @property
    def _points(self) -> dict[str, Sequence[EvalPoint]]:
        """The points of each subset of the run."""
        points = {subset: self.eval_points(subset) for subset in self.subsets}
        for subset in self.subsets:
            check_points(points[subset], subset)
        return points

    def _reachable(self, model: Decoder, subset: str) -> tuple[list[EvalPoint], list[str]]:
        """Return the points whose positions the model supports, and notes on skipped points."""
        limit = model.encoding.max_position
        points: list[EvalPoint] = []
        left_out: list[str] = []
        for point in self.eval_points(subset):
            if limit is None or point.split != FAR or self.max_tokens(subset, point) <= limit:
                points.append(point)
            elif str(point.length) not in left_out:
                left_out.append(str(point.length))
        if not left_out:
            return points, []
        unit = self.axes["length"]
        return points, [
            f"{subset}: left out {' and '.join(left_out)} {unit} (far), which take more than the "
            f"encoding's {limit:,} positions"
        ]

    def _longest_row(self, *splits: str) -> int:
        """Return the number of tokens of the longest row of some splits."""
        found = 0
        for subset in self._needed_subsets:
            points = self.eval_points(subset)
            check_points(points, subset)
            points = [point for point in points if point.split in splits]
            longest = max((point.length for point in points), default=0)
            for point in points:
                if point.length == longest:
                    found = max(found, self.max_tokens(subset, point))
        if not found:
            raise InputError(
                f"{self.name} has no evaluation point in distribution: give one of them split=ID"
            )
        return found

    def _check_length(self, subset: str, point: EvalPoint, items: Sequences) -> None:
        """Check that no item is longer than the task declares.

        Raises:
            InputError: an item is longer.
        """
        longest = int(items.lengths.max())
        declared = self.max_far_tokens if point.split == FAR else self.max_eval_tokens
        if longest > declared:
            raise InputError(
                f"items of {subset} have {longest} tokens and `max_eval_tokens` is {declared}, for "
                "which encodings are made: the points with the largest `length` must have the "
                "longest rows"
            )

    def _measured(self, model: Decoder, subset: str, points: list[EvalPoint]) -> dict[str, Any]:
        """Return the journal entry of points of one length."""
        items = [self.items(subset, point) for point in points]
        content: dict[str, Any] = {}
        scores: Sequence[Scores | None]
        try:
            scores = self.score(model, items)
        except NotFiniteError as error:
            content["finite_tokens"] = error.tokens
            scores = [self._score_one(model, *each) for each in zip(points, items, strict=True)]
        forward_tokens = sum(each.forward_tokens for each in scores if each)
        return content | {
            "scores": [each and each.to_json() for each in scores],
            "forward_tokens": forward_tokens,
            "decoding_tokens": sum(map(decoding_tokens, items)) if self.autoregressive else 0,
        }

    def _score_one(self, model: Decoder, point: EvalPoint, items: Sequences) -> Scores | None:
        """Score the items of a point; None for non-finite logits at a point out of distribution.

        Raises:
            NotFiniteError: logits in distribution are not finite.
        """
        try:
            return self.score(model, [items])[0]
        except NotFiniteError:
            if point.split == ID:
                raise
            return None
