"""From specs and options to a run."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pe_bench.errors import InputError
from pe_bench.pretrained.rotation import with_rotation
from pe_bench.registry import catalogue, plugins
from pe_bench.registry.plugins import Plugin
from pe_bench.results.labels import plugin_name
from pe_bench.runs.adaptation import adapt, continue_from_origin
from pe_bench.runs.command_words import command_words
from pe_bench.runs.fitting import reason_to_skip
from pe_bench.runs.initial_weights import Pretrained, load_origin, options_from
from pe_bench.runs.options import RunOptions
from pe_bench.runs.resolve import ResolvedTask, resolve
from pe_bench.runs.run import Run
from pe_bench.runs.timing_context import find_conditions


class RunFactory:
    """Factory of runs from specs, under the options of one command.

    A task is made once for each spec, since opening its data takes time.

    Args:
        options: options common to all runs.
        results: folder to write to.
        device: "cpu" or "cuda".

    Attributes:
        origin: the encoding or checkpoint that models are initialised from, None without
            `options.origin`.

    Raises:
        InputError: `options.origin` cannot be loaded, or another option has no effect with it.
    """

    def __init__(
        self, options: RunOptions, results: Path = Path("results"), device: str = "cpu"
    ) -> None:
        self.origin = load_origin(options.origin) if options.origin else None
        self._given = options
        if isinstance(self.origin, Pretrained):
            options = options_from(options, self.origin.checkpoint)
        self.options = options
        self.results = results
        self.device = device
        self._tasks: dict[str, ResolvedTask] = {}

    def encoding(self, spec: str) -> Plugin:
        """Return an encoding, completed with the options that a checkpoint gives it.

        Raises:
            InputError: there is no such encoding.
        """
        plugin = plugins.load("encoding", spec)
        if not isinstance(self.origin, Pretrained):
            return plugin
        checkpoint = self.origin.checkpoint
        full = checkpoint.spec(spec)
        label = plugin.label
        shipped = plugin_name(label) in catalogue.names("encoding")
        if shipped and with_rotation(label, checkpoint.config)[0] != full:
            label = spec  # the spec states a default of the encoding; the checkpoint's differs
        # Workers build the same run from `given`, so it must not have the checkpoint's options.
        return replace(plugins.load("encoding", full), label=label, given=plugin.given)

    def task(self, spec: str) -> ResolvedTask:
        """Return a task with its data opened.

        Args:
            spec: name or file of the task, with options.

        Raises:
            InputError: there is no such task, its data are missing, or an option does not fit it.
        """
        if spec not in self._tasks:
            shape = self.origin.checkpoint.model if isinstance(self.origin, Pretrained) else None
            task = resolve(self.options, spec, shape=shape)
            if task.task.measures_time:
                task = task.with_conditions(self._conditions)
            made = task if self.origin is None else self._continue_from_origin(task, self.origin)
            is_searched = task.tuning is not None or made.tuning is not None
            words = command_words(self._given, task, is_searched=is_searched)
            self._tasks[spec] = replace(made, words=words)
        return self._tasks[spec]

    def adapted(self, encoding: Plugin, task: ResolvedTask) -> Plugin:
        """Return the encoding, or its adaptation of `origin`, for a task."""
        return encoding if self.origin is None else adapt(encoding, self.origin, task)

    def make(self, encoding: Plugin, task: ResolvedTask, seed: int) -> Run:
        """Return the run of an encoding that `adapted` has returned."""
        return Run(
            task,
            encoding,
            seed,
            self.results,
            self.device,
            self.options.precision,
            self.options.keep,
            logger=self.options.logger,
        )

    def make_from_specs(self, encoding: str, task: str, seed: int) -> Run:
        """Return the run of two specs.

        Raises:
            InputError: a spec is wrong.
        """
        made = self.task(task)
        return self.make(self.adapted(self.encoding(encoding), made), made, seed)

    @cached_property
    def _conditions(self) -> Mapping[str, Any]:
        return find_conditions(self.device)

    def _continue_from_origin(self, task: ResolvedTask, origin: Plugin) -> ResolvedTask:
        """Return the task as it continues from a model that was trained with `origin`."""
        reason = reason_to_skip(origin, task, fits=True)
        if reason and not isinstance(origin, Pretrained):
            raise InputError(f"{origin.label} cannot be trained there: {reason}")
        return continue_from_origin(task, origin, self.options)
