"""How the runs of a grid are executed: processes, devices, shards. No number depends on it."""

from dataclasses import dataclass
from typing import Literal

from pe_bench.errors import InputError
from pe_bench.grid.shard import Shard
from pe_bench.train.process_group import Strategy


@dataclass(frozen=True)
class ExecutionOptions:
    """How the cells of a grid are worked through; no number depends on it.

    Attributes:
        jobs: cells that run at once, in processes of their own; None: one after the other, here.
        executor: "local", or "ray" for an existing Ray cluster.
        devices: processes that train each cell together, each on a device of its own.
        strategy: of theirs: "ddp", "fsdp", or "auto", which is "ddp".
        shard: the share of the grid to run; None: all of it.
        dry_run: show what there is to do, and do nothing.

    Raises:
        InputError: these do not go together.
    """

    jobs: int | None = None
    executor: Literal["local", "ray"] = "local"
    devices: int = 1
    strategy: Literal["auto", "ddp", "fsdp"] = "auto"
    shard: Shard | None = None
    dry_run: bool = False

    def __post_init__(self) -> None:
        if self.jobs is not None and self.jobs < 1:
            raise InputError(f"jobs must be at least 1, not {self.jobs}")
        if self.executor not in ("local", "ray"):
            raise InputError(f"executor must be local or ray, not '{self.executor}'")
        if self.jobs is not None and self.executor == "ray":
            raise InputError(
                "--jobs has no effect with --executor ray, where the cluster decides how many "
                "cells run at once: leave one of them out"
            )
        self._check_devices()

    def _check_devices(self) -> None:
        if self.devices < 1:
            raise InputError(f"devices must be at least 1, not {self.devices}")
        if self.strategy not in ("auto", "ddp", "fsdp"):
            raise InputError(f"strategy must be auto, ddp or fsdp, not '{self.strategy}'")
        if self.devices == 1:
            if self.strategy != "auto":
                raise InputError(
                    f"--strategy {self.strategy} has no effect without --devices 2 or more"
                )
            return
        if self.jobs is not None:
            raise InputError(
                f"--devices {self.devices} is for one cell at a time, and --jobs {self.jobs} for "
                "several: leave one of them out"
            )
        if self.executor == "ray":
            raise InputError(
                f"--devices {self.devices} is for one machine, and --executor ray gives each cell "
                "one device of the cluster: leave one of them out"
            )

    @property
    def together(self) -> Strategy:
        """The strategy of processes that train together."""
        return "fsdp" if self.strategy == "fsdp" else "ddp"


ONE_BY_ONE = ExecutionOptions()
