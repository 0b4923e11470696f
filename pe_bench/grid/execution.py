"""Options for the execution of a grid: processes, devices, shards. No number depends on them."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pe_bench.errors import InputError
from pe_bench.grid.shard import Shard
from pe_bench.option_table import check_values, option

if TYPE_CHECKING:  # options are read without torch
    from pe_bench.train.process_group import Strategy


@dataclass(frozen=True)
class ExecutionOptions:
    """Options for the execution of a grid; no number depends on them.

    Raises:
        InputError: the options contradict each other.
    """

    dry_run: bool = option(False, "print the plan (runs that are done, to do and skipped) and stop")
    jobs: int | None = option(
        None,
        "execute N runs at once, each in a process with one thread; default: one at a time",
        least=1,
    )
    shard: Shard | None = option(
        None,
        "run only shard I of N, from 1/N to N/N; other machines run the others",
        metavar="I/N",
        read=Shard.read,
    )
    executor: Literal["local", "ray"] = option(
        "local", "ray: send runs to the Ray cluster of RAY_ADDRESS, or of this machine"
    )
    devices: int = option(
        1, "train each run in N processes, each on its own GPU or CPU; default: 1", least=1
    )
    strategy: Literal["auto", "ddp", "fsdp"] = option(
        "auto", "for --devices: fsdp shards weights as well as rows; auto (default): ddp"
    )

    timeout: float | None = option(
        None,
        "limit of the time of each run: a longer run fails, the other runs continue, and the next "
        "call resumes it; default: no limit",
        metavar="MINUTES",
        above=0,
    )

    def __post_init__(self) -> None:
        check_values(self)
        if self.jobs is not None and self.executor == "ray":
            raise InputError(
                "--jobs has no effect with --executor ray, where the cluster determines the number "
                "of parallel runs: leave one of them out"
            )
        self._check_devices()

    def _check_devices(self) -> None:
        if self.devices == 1:
            if self.strategy != "auto":
                raise InputError(
                    f"--strategy {self.strategy} has no effect without --devices 2 or more"
                )
            return
        if self.jobs is not None:
            raise InputError(
                f"--devices {self.devices} is for one run at a time, and --jobs {self.jobs} for "
                "several: leave one of them out"
            )
        if self.executor == "ray":
            raise InputError(
                f"--devices {self.devices} is for one machine, and --executor ray gives each run "
                "one device of the cluster: leave one of them out"
            )

    @property
    def resolved_strategy(self) -> "Strategy":
        """Strategy of distributed training: ddp unless fsdp was chosen."""
        return "fsdp" if self.strategy == "fsdp" else "ddp"
