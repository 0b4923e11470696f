"""Equal tuning for every encoding: which learning rates are tried, on what."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pe_bench.errors import InputError

FACTORS = (1 / 3, 1, 3)  # of the preset's learning rate
SEEDS = (1000,)
BATCHES = 16  # held-out batches that a model is judged by


@dataclass(frozen=True)
class Tuning:
    """The learning rates that are tried for every phase.

    Attributes:
        lr: in ascending order; of a command, empty stands for the default.
        seeds: of the models that are trained to choose one. They are never reported.
        batches: number of held-out batches that a model is judged by.

    Raises:
        InputError: a rate that is none, fewer than two, one twice, or no seed.
    """

    lr: tuple[float, ...] = ()
    seeds: tuple[int, ...] = SEEDS
    batches: int = BATCHES

    def __post_init__(self) -> None:
        for rate in self.lr:
            if not (rate > 0 and math.isfinite(rate)):
                raise InputError(f"tune.lr must be above 0 and finite, not {rate:g}")
        if self.lr and len(set(self.lr)) < 2:
            raise InputError("tune.lr needs two different learning rates or more to choose from")
        if not self.seeds:
            raise InputError("tune.seeds needs a seed or more")
        for seed in self.seeds:
            if seed < 0:
                raise InputError(f"tune.seeds must not be negative, not {seed}")
        object.__setattr__(self, "lr", tuple(sorted(set(self.lr))))
        object.__setattr__(self, "seeds", tuple(sorted(set(self.seeds))))

    def check_reported(self, seeds: Sequence[int]) -> None:
        """Check that no seed is both reported and used for choosing.

        Raises:
            InputError: one is.
        """
        both = sorted({*seeds} & {*self.seeds})
        if both:
            raise InputError(
                f"seed {both[0]} chooses learning rates and is not reported: give other --seeds, "
                "or others as --tune.seeds"
            )


def default_rates(lr: float) -> tuple[float, ...]:
    """Return a third, one and three times a learning rate, with a single digit where rounded."""
    return tuple(lr if factor == 1 else _round(lr * factor) for factor in FACTORS)


def _round(lr: float) -> float:
    """Return a number with one significant digit; 9 becomes 10, as 1, 3, 10 have equal steps."""
    digits, _, exponent = f"{lr:.3e}".partition("e")
    digit = int(float(digits) + 0.5)
    return float(f"{10 if digit == 9 else digit}e{exponent}")
