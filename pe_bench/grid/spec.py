"""The specification of a grid: its runs and their execution."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pe_bench.grid.execution import ExecutionOptions
from pe_bench.runs.options import RunOptions


@dataclass(frozen=True, kw_only=True)
class GridSpec:
    """Every encoding on every task with every seed.

    Attributes:
        options: options of all runs.
        encodings, tasks: specs; "all" stands for every shipped one.
        seeds: seeds of weights, batches and evaluation.
        results: folder to write to.
        device: "cpu" or "cuda".
        execution: options for the execution of the runs.
        earlier_results: further folders with finished runs, for estimates of time.
        copies_earlier: whether the command copies the runs of these folders, so that a dry run
            counts them as done.
        committed: folders of committed results, for times relative to each other.
    """

    options: RunOptions
    encodings: Sequence[str]
    tasks: Sequence[str]
    seeds: Sequence[int] = (0,)
    results: Path = Path("results")
    device: str = "cpu"
    execution: ExecutionOptions = field(default_factory=ExecutionOptions)
    earlier_results: Sequence[Path] = ()
    copies_earlier: bool = False
    committed: Sequence[Path] = ()

    @property
    def weight_shards(self) -> int:
        """Number of devices that the weights of a model are distributed over."""
        sharded = self.execution.resolved_strategy == "fsdp" and self.device == "cuda"
        return self.execution.devices if sharded else 1
