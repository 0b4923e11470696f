"""The options of `--tune`. `pe_bench.runs.rate_search` does the search."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pe_bench.errors import InputError
from pe_bench.option_table import check_values, option
from pe_bench.runs.seeds import LARGEST_SEED, read_seeds

FACTORS = (1 / 3, 1, 3)  # multiples of the preset's learning rate
SEEDS = (1000, 1001, 1002)
BATCHES = 16  # held-out batches to evaluate a model on
VERSION = 2
"""Increase it when the search changes, since another search may lead to other models."""


@dataclass(frozen=True)
class Tuning:
    """The options of the search for learning rates, the same for every encoding.

    Attributes:
        lr: learning rates that are tried first, in ascending order; if empty in the options of a
            command, the default rates are tried.
        seeds: seeds of the models that are trained for the search. They are never reported.
        batches: number of held-out batches to evaluate a model on.
        values: whether an encoding's own constant is searched too, see `Encoding.tunable`.
        version: version of the search; version 1 usually had one seed and chose the smallest mean
            loss.

    Raises:
        InputError: a rate is not positive and finite, there are fewer than two, or no seed.
    """

    lr: tuple[float, ...] = option(
        (),
        "learning rates to begin with; default: a third, one and three times the preset's",
        above=0,
    )
    seeds: tuple[int, ...] = option(
        SEEDS,
        "seeds of the search, different from --seeds; default: 1000 1001 1002",
        metavar="N",
        read=read_seeds,
        most=LARGEST_SEED,
    )
    batches: int = BATCHES
    values: bool = True
    version: int = VERSION

    def __post_init__(self) -> None:
        check_values(self, "tune.")
        if self.lr and len(set(self.lr)) < 2:
            raise InputError("tune.lr needs at least two different learning rates")
        if not self.seeds:
            raise InputError("tune.seeds needs at least one seed")
        object.__setattr__(self, "lr", tuple(sorted(set(self.lr))))
        object.__setattr__(self, "seeds", tuple(sorted(set(self.seeds))))

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> "Tuning":
        """Return the search in the settings of a run; without a version in them it is version 1."""
        given = {"values": False, "version": 1, **settings}
        return cls(**{**given, "lr": tuple(given["lr"]), "seeds": tuple(given["seeds"])})

    @property
    def settings(self) -> dict[str, Any]:
        """The entry for the search in the settings of a run."""
        found = asdict(self)
        if self.version == 1:
            del found["values"], found["version"]
        return found

    def check_reported(self, seeds: Sequence[int]) -> None:
        """Check that no seed is both reported and used for the search.

        Raises:
            InputError: a seed is used for both.
        """
        both = sorted({*seeds} & {*self.seeds})
        if both:
            raise InputError(
                f"seed {both[0]} is used to choose learning rates, so it cannot be reported: give "
                "other --seeds or other --tune.seeds"
            )


def default_rates(lr: float) -> tuple[float, ...]:
    """Return a third, one and three times a learning rate; rounded rates have a single digit."""
    return tuple(lr if factor == 1 else round_rate(lr * factor) for factor in FACTORS)


def round_rate(lr: float) -> float:
    """Return a number with one significant digit; 9 becomes 10, to keep the steps 1, 3, 10."""
    digits, _, exponent = f"{lr:.3e}".partition("e")
    digit = int(float(digits) + 0.5)
    return float(f"{10 if digit == 9 else digit}e{exponent}")
