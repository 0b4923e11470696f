"""Model, batches and configuration of a training phase.

A separate module so that importing it does not import Lightning.
"""

from collections.abc import Callable
from dataclasses import dataclass

from pe_bench.batch import Batch
from pe_bench.config import TrainConfig
from pe_bench.decoder.model import Decoder


@dataclass(frozen=True)
class Training:
    """A model and everything that determines its trained weights, the same on every rank.

    Attributes:
        model: the model; training changes it in place.
        batches: step -> batch, a pure function. Steps count from 0.
        config: the training phase.
        seed: seed of the random numbers inside the model.
        device: "cpu" or "cuda".
        precision: "fp32" or "bf16".
        title: title of the progress bar.
    """

    model: Decoder
    batches: Callable[[int], Batch]
    config: TrainConfig
    seed: int
    device: str
    precision: str
    title: str = ""
