"""Training phases of a run that several processes train together."""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pe_bench.train.process_group import ProcessGroup, Strategy


@dataclass(frozen=True)
class PhaseMessage:
    """A training phase of a run, as the first rank describes it to the others.

    Attributes:
        identity: digest of every setting that determines the weights.
        subset: the subset that the phase trains for; None: all subsets.
        seed: seed of weights and batches.
        lr: learning rate.
        value: value of the encoding's tunable option; None: its default.
        folder: folder of the phase's checkpoints.
        resumes: whether the phase starts from a checkpoint in `folder`.
    """

    identity: str
    subset: str | None
    seed: int
    lr: float
    value: str | None
    folder: Path
    resumes: bool = False


class Ranks(Protocol):
    """The other processes that train with this one, the first rank.

    Attributes:
        devices: number of processes, this one included.
        strategy: distributed strategy of these processes.
    """

    devices: int
    strategy: Strategy

    def start(self, phase: PhaseMessage) -> AbstractContextManager[ProcessGroup]:
        """Let the other ranks start a phase, and wait at the end until they have finished it."""
        ...
