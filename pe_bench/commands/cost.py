"""`pe-bench cost`: estimate the costs of models, without reading data, loading or training."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pe_bench.commands.command import Command, OptionGroup
from pe_bench.commands.parser import BAD_INPUT
from pe_bench.commands.run import GridOptions
from pe_bench.commands.values import Values
from pe_bench.errors import InputError, SavingError
from pe_bench.grid.model_shape import SIZES, VOCABULARY, choose_shape, count_parameters, read_size
from pe_bench.option_table import check_values, option
from pe_bench.registry import catalogue, plugins
from pe_bench.reporting.terminal import plain_table, wrap
from pe_bench.runs.options import RunOptions
from pe_bench.system.console import info, show_duration, warn

if TYPE_CHECKING:
    from pe_bench.config import ModelConfig
    from pe_bench.grid.cost_rows import CostRow

TRAINING = ("training", "parameters", "tokens", "operations", "memory", "time")
GENERATION = ("generation", "tokens", "cache", "per token", "prefill", "decoding", "reads")
ABOUT = """All numbers are for one seed, and each layer is counted with its window. Operations are
those of matrix products; attention counts the keys that a query may attend to. Training: forward
and backward pass, as if all rows were as long as the longest. Memory: weights, gradients,
optimizer, and the activations for one slice of a batch. Time: of these operations only, {speed};
other work, such as evaluation and --tune, is not included. Generation: one row in {precision}.
Cache: at this length, and for each further token; 0: no cache can be used. Prefill: a prompt of
this length. Decoding: the last token, which reads the weights and the cache."""
LONGEST = 2**27
MOST_PARAMETERS = 10**12
PREFIXES = ("", "k", "M", "G", "T", "P", "E")
FILES = (".json", ".csv")


@dataclass(frozen=True)
class CostOptions:
    """The options that `pe-bench cost` has in addition to those of `pe-bench run`."""

    params: int | None = option(
        None,
        "parameters of the model, such as 350M or 7B, instead of the preset's shape",
        read=read_size,
        metavar="N",
        least=1,
        most=MOST_PARAMETERS,
    )
    precision: Literal["auto", "fp32", "bf16"] = option(
        "auto", "auto (default): bf16, but fp32 for the preset quick without --params"
    )
    speed: float | None = option(
        None,
        "speed of the device in training, in 10^12 operations per second; default: an assumption",
        above=0,
    )
    lengths: tuple[int, ...] = option(
        (),
        "lengths of generated texts, in tokens; default: the training length",
        least=2,
        most=LONGEST,
    )
    output: Path | None = option(
        None,
        "also write all numbers to a .json or .csv file; its keys name the units",
        metavar="FILE",
    )

    def __post_init__(self) -> None:
        check_values(self, "--")
        if self.output and self.output.suffix not in FILES:
            raise InputError(f"--output writes {' or '.join(FILES)}, not {self.output.name}")


def main(values: Values) -> int:
    """Print two tables for each task; return the exit code."""
    from pe_bench.grid.grid_cost import GridCost

    asked = values.make(CostOptions)
    grid = values.make(GridOptions)
    options = values.make(RunOptions)
    shape = None
    if asked.params is not None:
        shape = _choose_shape(asked.params, options)
        sizes = {name: getattr(shape, name) for name in SIZES}
        options = replace(options, model={**options.model, **sizes})
    encodings = [
        plugins.load("encoding", spec) for spec in catalogue.expand(grid.encodings, "encoding")
    ]
    counter = GridCost(encodings, options, asked.precision, asked.speed, asked.lengths, shape)
    if shape:
        info(wrap(_describe(shape)) + "\n")
    refused = False
    shown: list[CostRow] = []
    for spec in catalogue.expand(grid.tasks, "task"):
        try:
            rows = counter.rows_of(spec)
        except InputError as error:
            warn(f"{spec}: {error}")
            refused = refused or spec in grid.tasks
            continue
        if rows:
            info(f"{spec} · {'all presets' if counter.several else options.preset}\n")
            info(_training(rows, counter.several) + "\n")
            if any(row.generation for row in rows):
                info(_generation(rows, counter.several) + "\n")
            shown += rows
    if shown:
        info(wrap(_about(shown, counter.devices)))
    if asked.output:
        _write(asked.output, shown)
    return BAD_INPUT if refused or (counter.warnings and not shown) else 0


def _choose_shape(parameters: int, options: RunOptions) -> "ModelConfig":
    """Return the shape of a model with about this number of parameters.

    Raises:
        InputError: there is none.
    """
    from pe_bench.grid.cost import vocab_size_of

    vocab_size = vocab_size_of(options.tokenizer) if options.tokenizer else VOCABULARY
    return choose_shape(parameters, vocab_size, options.model)


def _describe(shape: "ModelConfig") -> str:
    """Return a sentence about the shape that was chosen."""
    keys = "" if shape.kv_heads == shape.heads else f" ({shape.kv_heads} for keys and values)"
    return (
        f"Model: {shape.layers} layers of width {shape.width:,}, {shape.heads} heads{keys} of "
        f"{shape.head_dim}, MLP of width {shape.mlp_width:,}, "
        f"vocabulary of {shape.vocab_size:,} tokens: "
        f"{count_parameters(shape):,} parameters without the encoding"
    )


def _training(rows: "Sequence[CostRow]", several: bool) -> str:
    """Return the table of training; with several presets, it has a column for them."""

    cells = []
    for row in rows:
        cost = row.training
        numbers = [_short(cost.parameters), _short(cost.tokens), f"{_short(cost.operations)}FLOP"]
        time = show_duration(row.seconds)
        cells.append([*_names(row, several), *numbers, f"{_short(cost.memory)}B", time])
    return plain_table(_headings(TRAINING, several), cells)


def _generation(rows: "Sequence[CostRow]", several: bool) -> str:
    """Return the table of generation: a row for each length."""
    cells = []
    for row in rows:
        for cost in row.generation:
            numbers = [f"{cost.tokens:,}", f"{_short(cost.cache)}B", f"{_short(cost.per_token)}B"]
            numbers += [f"{_short(cost.prefill)}FLOP", f"{_short(cost.decoding)}FLOP"]
            cells.append([*_names(row, several), *numbers, f"{_short(cost.reads)}B"])
    return plain_table(_headings(GENERATION, several), cells)


def _names(row: "CostRow", several: bool) -> list[str]:
    return [row.encoding, row.preset] if several else [row.encoding]


def _headings(names: Sequence[str], several: bool) -> list[str]:
    first, *others = names
    return [first, "preset", *others] if several else [first, *others]


def _about(rows: "Sequence[CostRow]", devices: Mapping[float, str]) -> str:
    """Return the notes below the tables."""
    speeds: dict[str, str] = {}
    precisions: dict[str, str] = {}
    for row in rows:
        speeds[row.preset] = f"{row.speed:g} x 10^12 a second ({devices[row.speed]})"
        precisions[row.preset] = row.precision
    hint = "" if "given" in devices.values() else "; --speed changes it"
    return ABOUT.format(speed=_of_presets(speeds) + hint, precision=_of_presets(precisions))


def _of_presets(texts: Mapping[str, str]) -> str:
    """Return the text of all presets, or of each preset where they differ."""
    presets: dict[str, list[str]] = {}
    for preset, text in texts.items():
        presets.setdefault(text, []).append(preset)
    if len(presets) == 1:
        return next(iter(presets))
    return ", ".join(f"{text} for {', '.join(names)}" for text, names in presets.items())


def _write(target: Path, rows: "Sequence[CostRow]") -> None:
    """Write all numbers to a file.

    Raises:
        InputError: there are no numbers, or the file cannot be saved.
    """
    from pe_bench.grid.cost_rows import write_costs

    if not rows:
        raise InputError(f"{target} is not written: there are no costs to write")
    try:
        records = write_costs(target, rows)
    except SavingError as error:
        raise InputError(str(error)) from None
    info(f"\n{target}: {records} records")


def _short(number: float) -> str:
    """Format a number with three digits and the prefix of a power of 1000."""
    power = min(len(PREFIXES) - 1, int(math.log10(max(1.0, number)) // 3))
    return f"{number / 1000**power:.3g} {PREFIXES[power]}"


COMMAND = Command(
    name="cost",
    main=main,
    help="operations, memory and hours of training, and costs of generation, before anything runs",
    usage="pe-bench cost --encoding SPEC ... --task SPEC ... [options]",
    description="""\
Count the operations and the memory of training and generation; no text is read. --preset all
prints a row for each preset. --params 1B counts a decoder of that size, with equal numbers of
layers and heads, heads of 64 channels (128 from 800M on), an MLP of 8/3 of the width, and 32,000
tokens unless --tokenizer is given. --model.* sets single values; the others follow.""",
    groups=[
        OptionGroup(GridOptions, only=("encodings", "tasks")),
        OptionGroup(
            RunOptions,
            only=("preset", "subsets", "tokenizer", "train", "pretrain", "model"),
        ),
        OptionGroup(CostOptions),
    ],
)
