"""Estimated costs of runs, before any of them runs: operations, memory and hours."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pe_bench.checks.model_cost import ModelCost, measure
from pe_bench.config import ModelConfig, TrainConfig
from pe_bench.registry import plugins
from pe_bench.registry.plugins import Plugin
from pe_bench.runs.memory import BYTES_PER_PARAMETER
from pe_bench.runs.options import RunOptions
from pe_bench.runs.resolve import (
    ResolvedTask,
    preset_of,
    resolve,
    spec_of_start,
    train_config_of,
)
from pe_bench.runs.run import Run
from pe_bench.system.console import show_duration
from pe_bench.system.files import cache_folder
from pe_bench.text.builtin_corpora import stdlib_corpus
from pe_bench.text.load_tokenizer import load_tokenizer

BYTES = "bytes"  # the tokenizer of tasks that make their own text
GPU_SPEED = {"bf16": 150.0, "fp32": 25.0}
"""Assumed training speed of an H100 in 10^12 operations per second; not measured."""

CPU_SPEED = 0.04
"""Approximate speed of two server cores with models of preset quick, in 10^12 operations per
second; measured on SCROLLS with `rope`."""


@dataclass(frozen=True)
class TrainingShape:
    """What determines the cost of a training phase of a task.

    Attributes:
        task: label of the task.
        train: configuration of the training.
        model: shape of the model.
        times: number of trainings per seed.
    """

    task: str
    train: TrainConfig
    model: ModelConfig
    times: int = 1

    @property
    def length(self) -> int:
        """Tokens of the longest row."""
        return self.train.length or self.model.train_length

    @property
    def tokens(self) -> int:
        """Tokens of all rows, if each is as long as the longest."""
        return self.times * self.train.steps * self.train.batch_size * self.length


@dataclass(frozen=True)
class RunCost:
    """The cost of one encoding on one task with one seed.

    Attributes:
        parameters: number of parameters of the model.
        tokens: number of training tokens, including the phase that the task starts from.
        operations: floating-point operations of the training.
        memory: bytes of weights, gradients, optimizer states and the activations of a slice of a
            batch.
    """

    parameters: int
    tokens: int
    operations: float
    memory: float


def assumed_speed(precision: str, *, on_cpu: bool) -> tuple[float, str]:
    """Return a speed in 10^12 operations per second, and the device that it is assumed for."""
    if on_cpu:
        return CPU_SPEED, "assumed for two cores, not measured"
    return GPU_SPEED[precision], f"assumed for an H100 in {precision}, not measured"


def phases_of(resolved: ResolvedTask) -> list[TrainingShape]:
    """Return the training phases of a task whose data are available."""
    before = phases_of(resolved.start) if resolved.start else []
    times = len(resolved.model_subsets)
    return [*before, TrainingShape(resolved.label, resolved.train, resolved.model, times)]


def describe_training_cost(runs: Sequence[Run]) -> str:
    """Return a line with a lower bound of the operations, memory and time of training runs.

    Only the first encoding of each task is counted, since counting takes seconds. The others are
    assumed to cost the same.
    """
    operations = 0.0
    memory = 0.0
    for label in dict.fromkeys(run.resolved.label for run in runs):
        of_task = [run for run in runs if run.resolved.label == label]
        first = of_task[0]
        cost = CostCounter(first.precision).of_run(first.encoding, phases_of(first.resolved))
        operations += len(of_task) * cost.operations
        memory = max(memory, cost.memory)
    quick = runs[0].resolved.task.context.preset == "quick"
    speed, assumed_for = assumed_speed(runs[0].precision, on_cpu=quick)
    time = show_duration(operations / speed / 1e12)
    return (
        f"training: about {operations / 1e15:.3g} PFLOP, up to {memory / 1e9:.3g} GB; {time} at "
        f"{speed:g} TFLOP/s ({assumed_for}; see pe-bench cost)"
    )


def find_phases(options: RunOptions, spec: str) -> list[TrainingShape]:
    """Return the training phases of a task; first the phase that it starts from, if any.

    Texts are neither read nor downloaded: the vocabulary size follows from the tokenizer.

    Args:
        options: options of the command.
        spec: name or file of the task, with options.

    Raises:
        InputError: bad input.
    """
    plugin = plugins.load("task", spec, options.preset)
    preset = preset_of(options, plugin)
    start = spec_of_start(options, plugin, preset)
    if start is None and preset.tokenizer == BYTES:
        return phases_of(resolve(options, spec))
    train = train_config_of(options, plugin, preset)
    if start is None:
        model = (preset.model or ModelConfig()).changed(**options.model)
        words = vocab_size_of(options.tokenizer or preset.tokenizer)
        model = replace(model, vocab_size=words, train_length=train.length or model.train_length)
        return [TrainingShape(plugin.label, train, model)]
    before = find_phases(options.for_start(), start)
    subsets = options.subsets or plugin.cls.all_subsets  # each one has a separate fine-tuning
    return [*before, TrainingShape(plugin.label, train, before[-1].model, len(subsets))]


class CostCounter:
    """Counter of the costs of models; a model of several tasks is counted once.

    Args:
        precision: "fp32" or "bf16".
    """

    def __init__(self, precision: str) -> None:
        self.precision = precision
        self._counted: dict[tuple[str, ModelConfig, bool], ModelCost] = {}

    def of_run(self, encoding: Plugin, phases: Sequence[TrainingShape]) -> RunCost:
        """Return the cost of training an encoding.

        Args:
            encoding: the encoding.
            phases: return value of `find_phases`.

        Raises:
            InputError: the encoding does not fit the model.
        """
        parameters = 0
        operations = 0.0
        memory = 0.0
        for phase in phases:
            if not phase.train.steps:
                continue
            found = self.of_model(encoding, phase)
            rows = min(phase.train.micro_batch or phase.train.batch_size, phase.train.batch_size)
            needed = BYTES_PER_PARAMETER * found.parameters + found.saved * rows * phase.length
            parameters = found.parameters
            operations += found.training(phase.length, rows) * phase.tokens
            memory = max(memory, needed)
        return RunCost(parameters, sum(phase.tokens for phase in phases), operations, memory)

    def of_model(self, encoding: Plugin, phase: TrainingShape) -> ModelCost:
        """Return the cost of the model of a phase.

        Raises:
            InputError: the encoding does not fit the model.
        """
        key = (encoding.label, phase.model, phase.train.recompute)
        if key not in self._counted:
            self._counted[key] = measure(
                encoding.make,
                phase.model,
                narrow=self.precision == "bf16",
                recompute=phase.train.recompute,
            )
        return self._counted[key]


def vocab_size_of(spec: str) -> int:
    """Return the vocabulary size of a tokenizer, even if it is not fitted yet.

    Raises:
        InputError: there is no such tokenizer.
    """
    fitted = re.fullmatch(r"bpe:(\d{1,7})", spec)
    if fitted:
        return int(fitted[1])
    return load_tokenizer(spec, stdlib_corpus(), cache_folder()).vocab_size
