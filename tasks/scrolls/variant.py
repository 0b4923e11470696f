"""What the task needs from its two variants: built-in documents and real data."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from pe_bench.api import Batch, Headline, Measurement, TaskContext, Tokenizer, TrainConfig, View
from pe_bench.tasks.scrolls.prompts import Format
from pe_bench.tasks.scrolls.questions import Questions
from pe_bench.tasks.scrolls.splits import Splits


@dataclass(frozen=True)
class Settings:
    """Settings that both variants need.

    Attributes:
        context: context of the task.
        train: settings of the training.
        subsets: names of the subsets.
        length: maximum number of tokens of a training sequence.
        answer_tokens: maximum number of tokens of an answer; 0: the length of the training
            references, but at most a quarter of `length`.
        summary_tokens: maximum number of tokens of a summary; 0: as for `answer_tokens`.
    """

    context: TaskContext
    train: TrainConfig
    subsets: Sequence[str]
    length: int
    answer_tokens: int
    summary_tokens: int


class Variant(ABC):
    """Data, training and scores of one variant of the task.

    Attributes:
        headline: the number that ranks.
        trains_each_subset: whether a model is trained for each subset.
        length_title: title of the axis of lengths.
        tokenizer: tokenizer of all texts.
        layout: format that turns an example into tokens.
        data: splits of each readable subset.
        unavailable: reasons for the unreadable subsets.
        limits: maximum number of output tokens of each subset.
        data_label, fingerprint: label and digest of the data.
        max_eval_tokens: maximum number of tokens of an evaluated sequence.
    """

    headline: Headline
    trains_each_subset: bool
    length_title: str
    tokenizer: Tokenizer
    layout: Format
    data: dict[str, Splits]
    unavailable: dict[str, str]
    limits: dict[str, int]
    data_label: str
    fingerprint: str
    max_eval_tokens: int

    @abstractmethod
    def views(self, questions: Questions) -> tuple[View, ...]:
        """Return the columns and curves of the tables."""

    @abstractmethod
    def batch(self, subset: str | None, seed: int, step: int) -> Batch:
        """Return a training batch."""

    @abstractmethod
    def held_out_batch(self, subset: str | None, step: int) -> Batch:
        """Return a batch for the learning rate search."""

    @abstractmethod
    def summarize(self, measured: Sequence[Measurement]) -> list[Measurement]:
        """Return the summary rows of the rows of all subsets."""
