"""`pe-bench cost`: estimate the costs of models, without reading data, loading or training."""

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from pe_bench.commands.command import Command, OptionGroup
from pe_bench.commands.parser import BAD_INPUT
from pe_bench.commands.run import GridOptions
from pe_bench.commands.values import Values
from pe_bench.errors import InputError
from pe_bench.option_table import check_numbers, option
from pe_bench.registry import plugins
from pe_bench.runs.options import RunOptions
from pe_bench.system.console import info, warn

if TYPE_CHECKING:
    from pe_bench.grid.cost import Costs, Phase

TRAINING = ("training", "parameters", "tokens", "operations", "memory", "time")
GENERATION = ("generation", "tokens", "cache", "per token", "prefill", "decoding", "reads")
ABOUT = """Each layer is counted as it is, with its window. Operations: of matrix products, in
attention those with keys that a query may attend to. For one seed. Training: forward and backward,
as if all rows were as long as the longest. Memory: of weights, gradients and optimizer, and of what
the backward pass needs of the rows that go through the model at once. Time: of the operations
alone, {speed:g} x 10^12 a second ({why}); all other work comes on top, evaluation and --tune too.
Generation: one row in {precision}. Cache: at this length, and for one more token; 0: no cache can
be used. Prefill: of a prompt of this length. Decoding: of the last token, which reads the weights
and the cache."""
LONGEST = 2**27
PREFIXES = ("", "k", "M", "G", "T", "P", "E")


@dataclass(frozen=True)
class CostOptions:
    """The options that `pe-bench cost` has in addition to those of `pe-bench run`."""

    precision: Literal["auto", "fp32", "bf16"] = option(
        "auto", "auto (default): bf16, but fp32 for the preset quick"
    )
    speed: float | None = option(
        None,
        "10^12 operations a second that the device does in training; default: an assumption",
        above=0,
    )
    lengths: tuple[int, ...] = option(
        (),
        "lengths of generated texts, in tokens; default: the training length",
        least=2,
        most=LONGEST,
    )

    def __post_init__(self) -> None:
        check_numbers(self, "--")


def main(values: Values) -> int:
    """Print a table for each task; return the exit code."""
    from pe_bench.grid.cost import Costs, assumed_speed, find_phases
    from pe_bench.reporting.terminal import plain_table, wrap
    from pe_bench.runs.factory import RunFactory

    asked = values.make(CostOptions)
    grid = values.make(GridOptions)
    options = values.make(RunOptions)
    precision = asked.precision
    if precision == "auto":
        precision = "fp32" if options.preset == "quick" else "bf16"
    options = replace(options, precision=precision)
    assumed, whose = assumed_speed(options.preset, options.precision)
    speed = asked.speed or assumed
    costs = Costs(options.precision)
    factory = RunFactory(options)
    encodings = [factory.encoding(spec) for spec in plugins.expand(grid.encodings, "encoding")]
    wrong = False
    shown = False
    for spec in plugins.expand(grid.tasks, "task"):
        try:
            phases = find_phases(factory, spec)
        except InputError as error:
            warn(f"{spec}: {error}")
            wrong = wrong or spec in grid.tasks
            continue
        if not any(phase.train.steps for phase in phases):
            info(f"{spec} · {options.preset}: trains nothing\n")
            continue
        fitting = _those_that_fit(costs, encodings, phases)
        if fitting:
            info(f"{spec} · {options.preset}\n")
            info(plain_table(TRAINING, _training(costs, fitting, phases, speed)) + "\n")
            info(plain_table(GENERATION, _generation(costs, fitting, phases, asked.lengths)) + "\n")
            shown = True
    if shown:
        why = "given" if asked.speed else f"{whose}; --speed"
        info(wrap(ABOUT.format(speed=speed, why=why, precision=precision)))
    return BAD_INPUT if wrong else 0


def _those_that_fit(
    costs: "Costs", encodings: list[plugins.Plugin], phases: "list[Phase]"
) -> list[plugins.Plugin]:
    """Return the encodings that fit the model of a task; print a warning for each other one."""
    fitting = []
    for encoding in encodings:
        try:
            costs.of_run(encoding, phases)
        except InputError as error:
            warn(f"{encoding.label}: {error}")
            continue
        fitting.append(encoding)
    return fitting


def _training(
    costs: "Costs", encodings: list[plugins.Plugin], phases: "list[Phase]", speed: float
) -> list[list[str]]:
    """Return a row for the training of each encoding."""
    from pe_bench.grid.display import show_duration

    rows = []
    for encoding in encodings:
        cost = costs.of_run(encoding, phases)
        numbers = [_short(cost.parameters), _short(cost.tokens), f"{_short(cost.operations)}FLOP"]
        time = show_duration(cost.operations / speed / 1e12)
        rows.append([encoding.label, *numbers, f"{_short(cost.memory)}B", time])
    return rows


def _generation(
    costs: "Costs",
    encodings: list[plugins.Plugin],
    phases: "list[Phase]",
    lengths: tuple[int, ...],
) -> list[list[str]]:
    """Return a row for each encoding and length of the text."""
    rows = []
    for encoding in encodings:
        cost = costs.of_model(encoding, phases[-1])
        for length in lengths or (phases[-1].length,):
            if cost.max_position is not None and length > cost.max_position:
                warn(f"{encoding.label} has {cost.max_position} positions, not {length}")
                continue
            cache = cost.cache(length)
            numbers = [f"{length:,}", f"{_short(cache)}B"]
            numbers.append(f"{_short(cost.cache(length + 1) - cache)}B")
            numbers += [f"{_short(n)}FLOP" for n in (cost.prefill(length), cost.decode(length))]
            rows.append([encoding.label, *numbers, f"{_short(cost.weights + cache)}B"])
    return rows


def _short(number: float) -> str:
    """Format a number with three digits and the prefix of a power of 1000."""
    power = min(len(PREFIXES) - 1, int(math.log10(max(1.0, number)) // 3))
    return f"{number / 1000**power:.3g} {PREFIXES[power]}"


COMMAND = Command(
    name="cost",
    main=main,
    help="operations, memory and hours of training, and costs of generation, before anything runs",
    usage="pe-bench cost --encoding SPEC ... --task SPEC ... [options]",
    description="Count the operations and the memory of training and generation; no text is read.",
    groups=[
        OptionGroup(GridOptions, only=("encodings", "tasks")),
        OptionGroup(
            RunOptions,
            only=("preset", "subsets", "tokenizer", "train", "pretrain", "model"),
        ),
        OptionGroup(CostOptions),
    ],
)
