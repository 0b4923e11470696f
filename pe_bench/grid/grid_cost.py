"""Counting of the costs of encodings on tasks, with one preset or with all presets."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from pe_bench.checks.model_cost import ModelCost
from pe_bench.config import ModelConfig
from pe_bench.errors import CRASHES, InputError, describe_error
from pe_bench.grid.cost import CostCounter, TrainingShape, assumed_speed, find_phases
from pe_bench.grid.cost_rows import CostRow, GenerationCost
from pe_bench.registry import plugins
from pe_bench.registry.plugins import Plugin
from pe_bench.runs.options import RunOptions
from pe_bench.system.console import info, warn

ALL = "all"


@dataclass
class GridCost:
    """Counter of the costs of encodings on one task after the other.

    Attributes:
        encodings: the encodings.
        options: options of the runs; the preset "all" stands for every preset of a task.
        precision: "fp32", "bf16" or "auto".
        speed: speed of the device in 10^12 operations per second; None: an assumption.
        lengths: lengths of generated rows; empty: the training length.
        shape: shape of the model; None: the preset's.
        devices: the device of each assumed speed.
        warnings: warnings printed so far, for encodings without a row.
    """

    encodings: Sequence[Plugin]
    options: RunOptions
    precision: Literal["auto", "fp32", "bf16"]
    speed: float | None = None
    lengths: tuple[int, ...] = ()
    shape: ModelConfig | None = None
    devices: dict[float, str] = field(default_factory=dict)
    warnings: set[str] = field(default_factory=set)
    _costs: dict[str, CostCounter] = field(default_factory=dict)

    @property
    def several(self) -> bool:
        """Whether all presets are counted."""
        return self.options.preset == ALL

    def rows_of(self, spec: str) -> list[CostRow]:
        """Return a row for each preset and each encoding that fits the model of a task.

        Raises:
            InputError: bad input.
        """
        presets = [self.options.preset]
        if self.several:
            presets = list(plugins.load("task", spec).cls.presets)
        rows = []
        for preset in presets:
            rows += self._rows_of_preset(spec, preset)
        return rows

    def _rows_of_preset(self, spec: str, preset: str) -> list[CostRow]:
        precision = self._precision_of(preset)
        options = replace(self.options, preset=preset, precision=precision)
        phases = [self._shaped(phase) for phase in find_phases(options, spec)]
        if not any(phase.train.steps for phase in phases):
            info(f"{spec} · {preset}: trains nothing\n")
            return []
        assumed, device = assumed_speed(precision, on_cpu=self._is_for_cpu(preset))
        speed = self.speed or assumed
        self.devices[speed] = "given" if self.speed else device
        costs = self._costs.setdefault(precision, CostCounter(precision))
        rows = []
        for encoding in self.encodings:
            name = f"{encoding.label} · {preset}" if self.several else encoding.label
            try:
                training = costs.of_run(encoding, phases)
            except InputError as error:
                self._warn_once(f"{name}: {error}")
                continue
            except CRASHES as error:  # of the encoding
                self._warn_once(f"{name}: {describe_error(error)}")
                continue
            model = costs.of_model(encoding, phases[-1])
            generation = self._generation(name, model, phases[-1].length)
            shape = phases[-1].model
            label = encoding.label
            rows.append(CostRow(preset, spec, label, precision, speed, shape, training, generation))
        return rows

    def _warn_once(self, message: str) -> None:
        """Print a warning, unless another task had the same one."""
        if message not in self.warnings:
            warn(message)
        self.warnings.add(message)

    def _precision_of(self, preset: str) -> Literal["fp32", "bf16"]:
        if self.precision != "auto":
            return self.precision
        return "fp32" if self._is_for_cpu(preset) else "bf16"

    def _is_for_cpu(self, preset: str) -> bool:
        """Return whether the models of a preset are for a CPU; a given shape is for a GPU."""
        return preset == "quick" and self.shape is None

    def _shaped(self, phase: TrainingShape) -> TrainingShape:
        """Return a phase with the vocabulary of the given shape; its options have the rest.

        Raises:
            InputError: the task needs a larger vocabulary.
        """
        if self.shape is None:
            return phase
        words = self.shape.vocab_size
        if self.options.tokenizer and words < phase.model.vocab_size:
            raise InputError(
                f"it has {phase.model.vocab_size} tokens, but {self.options.tokenizer} has "
                f"{words}: leave out --tokenizer"
            )
        return replace(phase, model=replace(phase.model, vocab_size=words))

    def _generation(self, name: str, model: ModelCost, length: int) -> tuple[GenerationCost, ...]:
        """Return the cost of each length; print a warning for each that is too long."""
        found = []
        for tokens in self.lengths or (length,):
            if model.max_position is not None and tokens > model.max_position:
                self._warn_once(f"{name} has {model.max_position} positions, not {tokens}")
                continue
            found.append(GenerationCost.of(model, tokens))
        return tuple(found)
