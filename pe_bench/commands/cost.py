"""`pe-bench cost`: estimate the cost of training before anything is read, loaded or trained."""

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

HEADER = ("", "parameters", "tokens", "operations", "memory", "time")
ABOUT = """For one seed. Tokens: as if all rows were as long as the longest. Operations: of matrix
products, forward and backward. Memory: of weights, gradients and optimizer, and of what the
backward pass needs of the rows that go through the model at once. Time: of the operations alone,
{speed:g} x 10^12 a second ({why}); all other work comes on top, evaluation and --tune too."""
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
        rows = _rows(costs, encodings, phases, speed)
        if rows:
            info(f"{spec} · {options.preset}\n\n{plain_table(HEADER, rows)}\n")
            shown = True
    if shown:
        why = "given" if asked.speed else f"{whose}; --speed"
        info(wrap(ABOUT.format(speed=speed, why=why)))
    return BAD_INPUT if wrong else 0


def _rows(
    costs: "Costs", encodings: list[plugins.Plugin], phases: "list[Phase]", speed: float
) -> list[list[str]]:
    """Return a row for each encoding that fits the task's model."""
    from pe_bench.grid.display import show_duration

    rows = []
    for encoding in encodings:
        try:
            cost = costs.of_run(encoding, phases)
        except InputError as error:
            warn(f"{encoding.label}: {error}")
            continue
        numbers = [_short(cost.parameters), _short(cost.tokens), f"{_short(cost.operations)}FLOP"]
        time = show_duration(cost.operations / speed / 1e12)
        rows.append([encoding.label, *numbers, f"{_short(cost.memory)}B", time])
    return rows


def _short(number: float) -> str:
    """Return a number of three digits, with the prefix of a power of 1000."""
    power = min(len(PREFIXES) - 1, int(math.log10(max(1.0, number)) // 3))
    return f"{number / 1000**power:.3g} {PREFIXES[power]}"


COMMAND = Command(
    name="cost",
    main=main,
    help="operations, memory and hours of training, before anything runs",
    usage="pe-bench cost --encoding SPEC ... --task SPEC ... [options]",
    description="Count the operations and the memory of each training; no text is read or loaded.",
    groups=[
        OptionGroup(GridOptions, only=("encodings", "tasks")),
        OptionGroup(
            RunOptions,
            only=("preset", "subsets", "tokenizer", "train", "pretrain", "model"),
        ),
        OptionGroup(CostOptions),
    ],
)
