"""The validation examples that are measured, and the scores of their answers."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pe_bench.api import Items
from pe_bench.tasks.scrolls.documents import Record
from pe_bench.tasks.scrolls.official_scores import score_answers
from pe_bench.tasks.scrolls.prompts import Format
from pe_bench.tasks.scrolls.splits import Splits
from pe_bench.tasks.scrolls.subsets import SUBSETS
from pe_bench.tasks.scrolls.summary import find_groups
from pe_bench.tasks.scrolls.text_metrics import score


@dataclass(frozen=True)
class Questions:
    """The examples of every subset that models and baselines answer.

    Attributes:
        data: splits of each subset.
        layout: format that turns an example into tokens.
        limits: maximum number of output tokens of each subset.
        length: maximum number of tokens of a training sequence.
        items: number of examples of each split, spread evenly; 0: all.
        builtin: whether these are built-in documents of several lengths.
        cache: folder for the files of `evaluate`.
    """

    data: Mapping[str, Splits]
    layout: Format
    limits: Mapping[str, int]
    length: int
    items: int
    builtin: bool
    cache: Path

    def splits(self, subset: str) -> list[str]:
        """Return the splits of a subset that are measured."""
        return [split for split in self.data[subset] if split != "train"]

    def records(self, subset: str, split: str) -> list[Record]:
        """Return the examples of a split that are measured."""
        records = self.data[subset][split]
        total = len(records)
        wanted = min(self.items, total) if self.items else total
        return [records[i * total // wanted] for i in range(wanted)]

    def max_tokens(self, split: str) -> int:
        """Return the maximum number of tokens of a sequence of a split."""
        return int(split.partition("-")[2] or self.length)

    def axis_length(self, subset: str, split: str) -> int:
        """Return the value of a split on the axis of lengths."""
        return self.max_tokens(split) if self.builtin else self.median_tokens[subset][0]

    def score(self, subset: str, split: str, predictions: Sequence[str]) -> list[Items]:
        """Return the official score of each answer to a split, by metric."""
        length = self.axis_length(subset, split)
        return score_answers(
            subset,
            SUBSETS[subset].metric,
            predictions,
            self.records(subset, split),
            length=length,
            groups=find_groups(subset, length, self.length if self.builtin else None),
            cache=self.cache,
        )

    @cached_property
    def median_tokens(self) -> dict[str, tuple[int, int]]:
        """Median number of tokens of an input that are read and of all tokens, by subset."""
        tokenizer = self.layout.tokenizer
        medians = {}
        for name in self.data:
            records = self.records(name, "validation")
            whole = statistics.median(len(tokenizer.encode(r.input)) for r in records)
            read = min(whole, self.length - self.limits[name] - 2)
            medians[name] = (round(read), round(whole))
        return medians

    def title(self, subset: str) -> str:
        """Return the title of a subset: the part of an input that is read and the best score.

        Empty if inputs and references are not truncated.
        """
        read, whole = self.median_tokens[subset]
        ceiling = self._ceiling(subset)
        parts = []
        if read < whole:
            parts.append(f"reads {read:,} of {whole:,} tokens")
        if ceiling < 99.95:
            parts.append(f"at most {ceiling:.1f}")
        return f"{subset}: {', '.join(parts)}" if parts else ""

    def _ceiling(self, subset: str) -> float:
        """Return the score of the references, truncated to the length of outputs."""
        records = self.records(subset, "validation")
        cut = []
        for record in records:
            ids = self.layout.output(record.outputs[0], self.limits[subset])
            cut.append(self.layout.tokenizer.decode(ids).strip())
        metric = SUBSETS[subset].metric
        return score(metric, cut, [record.outputs for record in records])[metric]
