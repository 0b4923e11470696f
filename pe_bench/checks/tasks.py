"""Properties that every task must have; `pe-bench check NAME` and the tests check them.

A check takes a `TaskSubject`. It returns None if the property holds and a sentence if it does not.
It raises `NotApplicable` if it cannot decide. The first line of its docstring is shown in the
legend.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import astuple
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pe_bench.checks.findings import Finding, NotApplicable, run_check
from pe_bench.checks.names import find_misspelt
from pe_bench.checks.shortcuts import explained, find_problem
from pe_bench.checks.task_subject import TaskSubject, observe
from pe_bench.config import IGNORE
from pe_bench.errors import InputError
from pe_bench.option_table import is_number
from pe_bench.results.items import RowKey, recompute
from pe_bench.results.measurement import Measurement
from pe_bench.results.metrics import find_metric
from pe_bench.results.row_checks import check_baselines, check_rows
from pe_bench.task import Batch, Task
from pe_bench.train.batch_check import find_wrong_batch

STEPS = 10  # number of training batches to inspect
ROWS = 10  # minimum number of distinct training rows of a length for a comparison
DISTINCT = 0.5  # minimum fraction of evaluation rows that differ
LEAKED = 0.1  # fraction of evaluation rows in training that is too large for chance


def names(subject: TaskSubject) -> str | None:
    """No method or attribute of the class has a misspelt name of the interface."""
    return "; ".join(find_misspelt(type(subject.task))) or None


def batch(subject: TaskSubject) -> str | None:
    """Training batches are a function of subset, seed and step."""
    for subset in subject.model_subsets:
        expected = [subject.task.batch(subset, 0, step) for step in (0, 1, 5)]
        other = subject.make()
        for step, batch in ((5, expected[2]), (0, expected[0]), (1, expected[1])):
            again = subject.task.batch(subset, 0, step)
            fresh = other.batch(subset, 0, step)
            if not _equal(again, batch):
                return f"step {step} of seed 0 gives another batch in a second call"
            if not _equal(fresh, batch):
                return f"step {step} of seed 0 gives another batch in a new instance of the task"
    return None


def steps(subject: TaskSubject) -> str | None:
    """Training batches differ from step to step."""
    for subset in subject.model_subsets:
        if _equal(subject.task.batch(subset, 0, 0), subject.task.batch(subset, 0, 1)):
            return "steps 0 and 1 of seed 0 give the same batch"
    return None


def ids(subject: TaskSubject) -> str | None:
    """Token ids lie in the vocabulary, batches are (B, T) of integers, some targets count."""
    size = subject.task.vocabulary.vocab_size
    for subset in subject.model_subsets:
        for step in range(STEPS):
            batch = subject.task.batch(subset, 0, step)
            wrong = find_wrong_batch(batch, size)
            if wrong:
                return f"the batch of step {step} {wrong}"
            if not (batch.targets != IGNORE).any():
                return f"the batch of step {step} has no target that counts"
    for subset, observed in subject.observed.items():
        for tokens in observed.inputs:
            wrong = _outside(tokens, size)
            if wrong:
                return f"the tokens that {subset} is evaluated on {wrong}"
    return None


def lengths(subject: TaskSubject) -> str | None:
    """No batch is longer than `train_length`, no evaluation longer than `max_far_tokens`."""
    task = subject.task
    for subset in subject.model_subsets:
        longest = max(task.batch(subset, 0, step).tokens.shape[1] for step in range(STEPS))
        if longest > task.train_length:
            return f"a batch has {longest} tokens, train_length is {task.train_length}"
    for subset, observed in subject.observed.items():
        if observed.longest > task.max_far_tokens:
            stated = "max_eval_tokens"
            if task.max_far_tokens > task.max_eval_tokens:
                stated = "max_far_tokens"
            return (
                f"{subset} is evaluated on {observed.longest} tokens, {stated} is "
                f"{task.max_far_tokens}"
            )
    return None


def items(subject: TaskSubject) -> str | None:
    """Items differ, and do not depend on the weights and the seed of a model."""
    if subject.task.measures_time:
        raise NotApplicable("it measures time, with its own models")
    other = subject.make()
    for subset, observed in subject.observed.items():
        inputs = observe(other, subset, seed=1).inputs
        if len(inputs) != len(observed.inputs):
            return f"{subset} gives another model {len(inputs)} inputs, not {len(observed.inputs)}"
        if not all(map(torch.equal, inputs, observed.inputs)):
            return f"{subset} gives another model, of another seed, other items"
        # A task may send the same items through the model for several metrics.
        different = {(tokens.shape, tokens.numpy().tobytes()): tokens for tokens in inputs}
        rows = [row for tokens in different.values() for row in _rows(tokens)]
        if len(set(rows)) < DISTINCT * len(rows):
            return (
                f"only {len(set(rows))} of {len(rows)} rows that {subset} is evaluated on differ, "
                "although all count as independent items"
            )
    return None


def apart(subject: TaskSubject) -> str | None:
    """No evaluation row occurs in the first training batches, except by chance."""
    compared = 0
    for subset, observed in subject.observed.items():
        trained = subset if subject.task.trains_each_subset else None
        seeds = [_train_rows(subject.task, trained, seed) for seed in (0, 1)]
        evaluated = [row for tokens in observed.inputs for row in _rows(tokens)]
        found = 0
        here = 0
        for length, rows in _by_length(evaluated).items():
            prefixes = Counter(_prefixes([*seeds[0], *seeds[1]], length))
            if len(prefixes) < ROWS or prefixes.most_common(1)[0][1] > 1:
                continue  # too few rows of this length, or rows repeat by chance
            here += len(rows)
            found += sum(row in prefixes for row in rows)
        if found > LEAKED * here:
            return (
                f"{found} of {here} rows that {subset} is evaluated on are in the first {STEPS} "
                "training batches"
            )
        compared += here
    if not compared:
        raise NotApplicable(
            "no evaluation row is as short as training rows, or rows repeat by chance"
        )
    return None


def headline(subject: TaskSubject) -> str | None:
    """The headline is measured, is a number, and has a direction."""
    task = subject.task
    wanted = task.headline
    metric = find_metric(wanted.metric, task.metrics)
    if metric.higher_is_better is None:
        return f"the metric {wanted.metric} has no direction: add it to `metrics`"
    rows = [*subject.rows, *task.summarize(subject.rows)]
    found = _of_headline(task, rows)
    if not found and set(task.subsets) != set(task.all_subsets):
        raise NotApplicable("not every subset is measured")
    if not found:
        return f"the headline, {wanted.metric} of {wanted.subset}, is not among the rows"
    if not any(math.isfinite(row.value) for row in found):
        return f"the headline, {wanted.metric} of {wanted.subset}, is {found[0].value}"
    return None


def numbers(subject: TaskSubject) -> str | None:
    """Measurements have possible values, and each one occurs once."""
    try:
        check_rows([*subject.rows, *subject.task.summarize(subject.rows)], subject.task.metrics)
    except InputError as error:
        return str(error)
    return None


def summary(subject: TaskSubject) -> str | None:
    """Rows of some subsets, or of none, can be summarized, since subsets may fail."""
    task = subject.task
    for rows in ([], *(observed.rows for observed in subject.observed.values())):
        if not all(isinstance(row, Measurement) for row in task.summarize(rows)):
            return "summarize returns something other than measurements"
    return None


def resume(subject: TaskSubject) -> str | None:
    """An evaluation that resumes from its journal gives the same rows."""
    if subject.task.measures_time:
        raise NotApplicable("it measures time")
    for subset, observed in subject.observed.items():
        if _comparable(observed.again) != _comparable(observed.rows):
            return f"{subset} gives other rows when it resumes from its journal"
    return None


def scores(subject: TaskSubject) -> str | None:
    """The scores of single items, if a task keeps them, give the rows that they name."""
    rows = {}
    for row in [*subject.rows, *subject.task.summarize(subject.rows)]:
        rows[RowKey(row.subset, row.metric, row.length, row.second_axis)] = row.value
    kept = [point for observed in subject.observed.values() for point in observed.items]
    for key, value in recompute(kept).items():
        name = f"{key.metric} of {key.subset}"
        if key not in rows:
            return f"items name {name}, which is not among the rows"
        if not math.isclose(value, rows[key], rel_tol=1e-6, abs_tol=1e-6):
            return f"{name} is {rows[key]:g} and its items give {value:g}"
    return None


def baselines(subject: TaskSubject) -> str | None:
    """Baselines have possible values, and each one has the headline."""
    task = subject.task
    if task.measures_time:
        raise NotApplicable("it measures time")
    found = task.baselines()
    try:
        check_baselines(found, task.metrics)
    except InputError as error:
        return str(error)
    if not _of_headline(task, [*subject.rows, *task.summarize(subject.rows)]):
        return None
    for name, rows in found.items():
        if not _of_headline(task, rows):
            return (
                f"the baseline '{name}' lacks the headline, {task.headline.metric} of "
                f"{task.headline.subset}: return the rows of `summarize` with the others"
            )
    return None


def shortcuts(subject: TaskSubject) -> str | None:
    """Every shortcut that comes halfway from chance to the ceiling is explained."""
    reasons = explained(subject.plugin.cls)
    return find_problem(subject.shortcut_scores, reasons, default=not subject.plugin.options)


CHECKS: dict[str, Callable[[TaskSubject], str | None]] = {
    "names": names,
    "batch": batch,
    "steps": steps,
    "ids": ids,
    "lengths": lengths,
    "items": items,
    "apart": apart,
    "numbers": numbers,
    "headline": headline,
    "summary": summary,
    "resume": resume,
    "scores": scores,
    "baselines": baselines,
    "shortcuts": shortcuts,
}


def examine(subject: TaskSubject) -> dict[str, Finding]:
    """Run every check. An error in one check does not stop the others.

    Raises:
        InputError: the task cannot be built.
    """
    return {name: run_check(check, subject) for name, check in CHECKS.items()}


def _of_headline(task: Task, rows: Iterable[Measurement]) -> list[Measurement]:
    wanted = task.headline
    return [row for row in rows if (row.subset, row.metric) == (wanted.subset, wanted.metric)]


def _equal(one: Batch, other: Batch) -> bool:
    return torch.equal(one.tokens, other.tokens) and torch.equal(one.targets, other.targets)


def _outside(ids: Tensor, size: int) -> str:
    """Return a sentence if ids are not integers or outside the vocabulary, else ""."""
    if ids.is_floating_point():
        return f"are {ids.dtype}, not integers"
    low = int(ids.min())
    high = int(ids.max())
    return "" if low >= 0 and high < size else f"range from {low} to {high}, vocab_size is {size}"


def _train_rows(task: Task, subset: str | None, seed: int) -> list[bytes]:
    """Return the rows of the first batches, including the last target."""
    rows = []
    for step in range(STEPS):
        tokens, targets = task.batch(subset, seed, step)
        last = torch.where(targets[:, -1:] == IGNORE, 0, targets[:, -1:])
        rows += _rows(torch.cat([tokens, last], dim=1))
    return rows


def _rows(tokens: Tensor) -> list[bytes]:
    """Return the ids of each row without padding, as bytes."""
    return [_as_bytes(np.trim_zeros(row, "b")) for row in tokens.cpu().numpy()]


def _as_bytes(ids: Any) -> bytes:
    return bytes(ids.astype("<i8").tobytes())


def _by_length(rows: Iterable[bytes]) -> dict[int, list[bytes]]:
    found: dict[int, list[bytes]] = {}
    for row in rows:
        found.setdefault(len(row), []).append(row)
    return found


def _prefixes(rows: Iterable[bytes], length: int) -> list[bytes]:
    """Return the first `length` bytes of all rows that are long enough."""
    return [row[:length] for row in rows if len(row) >= length > 0]


def _comparable(rows: Iterable[Measurement]) -> list[str]:
    """Return rows as text, so that nan equals nan, and numbers of NumPy those of JSON."""
    found = []
    for row in rows:
        found.append(repr([float(x) if is_number(x) else x for x in astuple(row)]))
    return found
