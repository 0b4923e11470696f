"""The encodings and the baselines of a table by its headline."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from pe_bench.results.baselines import find_chance, find_strongest
from pe_bench.results.metrics import Metric


@dataclass(frozen=True)
class Ranking:
    """The encodings of a table from best to worst, by the mean of the headline over all seeds.

    Attributes:
        metric: the metric of the headline.
        scores: the scores of the encodings in the headline, without partial means: the mean if
            there is one, else points of a curve.
        baselines: the score of each baseline in the headline, in file order.
        encodings: all encodings of the table, in alphabetical order.
    """

    metric: Metric
    scores: pd.DataFrame
    baselines: dict[str, float]
    encodings: Sequence[str]

    @property
    def higher_is_better(self) -> bool:
        """Whether larger values of the headline are better."""
        return bool(self.metric.higher_is_better)

    @property
    def unit(self) -> str:
        """The unit of a difference: "points" of a percentage, else as of the metric.

        A metric without a unit is its own.
        """
        return "points" if self.metric.is_percent else self.metric.unit or self.metric.title

    @property
    def digits(self) -> int:
        """Decimals of scores and of their differences in a comparison."""
        return 2 if self.metric.is_percent else 3

    @cached_property
    def means(self) -> dict[str, float]:
        """The score of each ranked encoding, if finite."""
        ranked = self.scores[self.scores["status"] == "ranked"]
        pairs = zip(ranked["encoding"], ranked["mean"].astype(float), strict=True)
        return {str(encoding): mean for encoding, mean in pairs if math.isfinite(mean)}

    @cached_property
    def names(self) -> list[str]:
        """The encodings with a complete and finite score, from best to worst."""
        means = self.means
        return sorted(means, key=lambda encoding: means[encoding], reverse=self.higher_is_better)

    @property
    def order(self) -> list[str]:
        """All encodings: those in `names`, then the others in alphabetical order."""
        return [*self.names, *(name for name in self.encodings if name not in self.names)]

    @property
    def shown_baselines(self) -> list[str]:
        """Names of the baselines that reports show: chance and the strongest baseline."""
        if not self.baselines:
            return []
        chance = find_chance([*self.baselines])
        strongest = find_strongest(self.baselines, higher_is_better=self.higher_is_better)
        return list(dict.fromkeys([chance, strongest]))

    @property
    def best_baseline(self) -> float | None:
        """The best score of a baseline; None without baselines."""
        if not self.baselines:
            return None
        strongest = find_strongest(self.baselines, higher_is_better=self.higher_is_better)
        return self.baselines[strongest]

    @property
    def below_baselines(self) -> list[str]:
        """The encodings that do not beat every baseline."""
        best = self.best_baseline
        if best is None:
            return []
        means = self.scores["mean"]
        worse = means <= best if self.higher_is_better else means >= best
        return list(self.scores["encoding"][worse])
