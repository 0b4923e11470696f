"""The tiny model on which every task is checked, and records of its evaluations."""

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from pe_bench.checks.shortcuts import ShortcutScore, search
from pe_bench.config import ModelConfig
from pe_bench.decoder.cache import Cache
from pe_bench.decoder.model import Decoder
from pe_bench.encoding import Encoding
from pe_bench.errors import InputError
from pe_bench.registry import plugins
from pe_bench.registry.options import plugin_options
from pe_bench.registry.plugins import Plugin
from pe_bench.results.items import Items
from pe_bench.results.journal import Journal
from pe_bench.results.measurement import Measurement
from pe_bench.task import Evaluation, Task, TaskContext

TINY = ModelConfig(layers=1, heads=2, width=16, mlp_width=16, init_std=0.2)


class Recorder(Decoder):
    """An untrained model that records its inputs."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config, Encoding)
        self.inputs: list[Tensor] = []
        self.last: Tensor | None = None
        self.longest = 0

    def hidden(self, tokens: Tensor, cache: Cache | None = None, *args: Any, **more: Any) -> Tensor:
        held = 0 if cache is None else int(cache.lengths.max())
        if not held and not self._continues(tokens):
            self.inputs.append(tokens.clone())
        self.longest = max(self.longest, held + tokens.shape[1])
        return super().hidden(tokens, cache, *args, **more)

    def _continues(self, tokens: Tensor) -> bool:
        """Return whether tokens begin with the last ones: the model may have generated the rest."""
        last, self.last = self.last, tokens.clone()
        if last is None or len(last) != len(tokens):
            return False
        length = last.shape[1]
        return length < tokens.shape[1] and torch.equal(last, tokens[:, :length])


class Observed(NamedTuple):
    """One evaluation of a subset.

    Attributes:
        rows: the measurements.
        items: the scores of single items, if the task keeps them.
        again: the rows of a second evaluation, from the journal of the first.
        inputs: token ids of the inputs of the model, (B, T) each.
        longest: number of tokens of the longest sequence, generated tokens included.
    """

    rows: list[Measurement]
    items: Sequence[Items]
    again: list[Measurement]
    inputs: list[Tensor]
    longest: int


@dataclass(frozen=True)
class TaskSubject:
    """A task under test.

    Attributes:
        plugin: the task with the options of its spec. `check_options` make the evaluation small
            unless the spec sets the same options.
        context: settings of a run for the task.
    """

    plugin: Plugin
    context: TaskContext

    @classmethod
    def of(cls, plugin: Plugin, cache: Path, data: Path | None = None) -> Self:
        """Return a task under its smallest preset.

        Args:
            plugin: the task with the options of its spec.
            cache: folder for derived data.
            data: folder with data, as in `--data`.

        Raises:
            InputError: the task lacks a required attribute.
        """
        _refuse_missing(plugin.label, plugin.cls, ("headline", "presets"))
        preset = next(iter(plugin.cls.presets))
        base = plugin.cls.presets[preset].starts_from
        start = cls.of(plugins.load("task", base, preset), cache).make() if base else None
        return cls(plugin, TaskContext(preset=preset, cache=cache, data=data, start=start))

    @cached_property
    def task(self) -> Task:
        """The instance that most checks share."""
        return self.make()

    def make(self, *, small: bool = True) -> Task:
        """Return a fresh instance.

        Args:
            small: whether to make the evaluation small with the task's `check_options`, if its
                constructor accepts them.

        Raises:
            InputError: the task lacks a required attribute or refuses its options.
        """
        cls = self.plugin.cls
        if small:
            known = {option.name for option in plugin_options(cls)}
            options = {name: cls.check_options[name] for name in known & set(cls.check_options)}
            with suppress(InputError):
                return self._make({**options, **self.plugin.options})
        return self._make(self.plugin.options)

    def _make(self, options: Mapping[str, Any]) -> Task:
        task: Task = self.plugin.cls.make(self.context, **options)
        _refuse_missing(self.plugin.label, task, ("vocabulary", "all_subsets"))
        return task

    @cached_property
    def shortcut_scores(self) -> list[ShortcutScore]:
        """The score of each shortcut, on the same number of items as in a run.

        Raises:
            NotApplicable: see `shortcuts.search`.
        """
        return search(self.make(small=False))

    @property
    def model_subsets(self) -> tuple[str | None, ...]:
        """Subsets that models are trained for; None: all subsets. Empty without training."""
        if not self.task.train.steps:
            return ()
        return self.task.subsets if self.task.trains_each_subset else (None,)

    @cached_property
    def observed(self) -> dict[str, Observed]:
        """One evaluation of each subset."""
        return {subset: observe(self.task, subset, seed=0) for subset in self.task.subsets}

    @property
    def rows(self) -> list[Measurement]:
        """Rows of all subsets, without their summary."""
        return [row for observed in self.observed.values() for row in observed.rows]


def _refuse_missing(label: str, stated: object, names: Iterable[str]) -> None:
    missing = [name for name in names if not hasattr(stated, name)]
    if missing:
        raise InputError(f"{label} does not state its {' and '.join(missing)}, as every task does")


def observe(task: Task, subset: str, seed: int) -> Observed:
    """Evaluate a tiny untrained model on a subset, twice with one journal.

    Args:
        task: the task.
        subset: one of its subsets.
        seed: seed of the model and of the evaluation.

    Raises:
        InputError: the task returns no evaluation.
    """
    config = replace(
        TINY,
        vocab_size=task.vocabulary.vocab_size,
        train_length=task.train_length,
        digit_ids=task.vocabulary.digit_ids,
        separator_ids=task.vocabulary.separator_ids,
    )
    silence = redirect_stderr(StringIO())  # hide progress bars
    with _seeded(seed), TemporaryDirectory() as folder, torch.inference_mode(), silence:
        model = Recorder(config).eval()
        path = Path(folder, "journal.jsonl")
        found = task.evaluate(model, subset, seed, Journal(path))
        if not isinstance(found, Evaluation):
            raise InputError(f"evaluate must return an Evaluation, not {found!r:.60}")
        inputs = [*model.inputs]
        again = task.evaluate(model, subset, seed, Journal(path)).rows
    return Observed(found.rows, found.items, again, inputs, model.longest)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed the global generators, to reveal tasks that use them, and restore their states."""
    of_numpy = np.random.get_state()
    of_python = random.getstate()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        try:
            yield
        finally:
            np.random.set_state(of_numpy)
            random.setstate(of_python)
