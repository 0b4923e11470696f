"""The variant with real data, on each subset of which a language model is fine-tuned."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from pe_bench.api import (
    Batch,
    Column,
    Corpus,
    Headline,
    Measurement,
    TaskContext,
    Tokenizer,
    View,
    load_tokenizer,
)
from pe_bench.tasks.scrolls.fine_tuning import FineTuning
from pe_bench.tasks.scrolls.output_limits import check_limits, find_limits
from pe_bench.tasks.scrolls.prompts import PaperFormat, StrictFormat
from pe_bench.tasks.scrolls.questions import Questions
from pe_bench.tasks.scrolls.splits import download, open_subsets
from pe_bench.tasks.scrolls.subsets import SPLITS, SUBSETS
from pe_bench.tasks.scrolls.summary import summarize
from pe_bench.tasks.scrolls.variant import Settings, Variant


class RealData(Variant):
    """The published documents or the user's. A row is an input and its output.

    Args:
        settings: settings of the task.

    Raises:
        DataError: no subset can be read.
        InputError: an output is too long for the training length.
    """

    headline = Headline("score", "all")
    trains_each_subset = True
    length_title = "tokens read of each input, median"

    def __init__(self, settings: Settings) -> None:
        context, length = settings.context, settings.length
        self.tokenizer = _find_tokenizer(context)
        kind = StrictFormat if context.protocol == "strict" else PaperFormat
        self.layout = kind(self.tokenizer)

        def find_folder(name: str) -> Path:
            return context.data or download(name, context.cache)

        self.data, self.unavailable = open_subsets(
            settings.subsets, SPLITS, find_folder, context.cache
        )
        self.limits = find_limits(self.data, self.layout, settings)
        check_limits(self.limits, length)
        digests = [r.sha256 for splits in self.data.values() for r in splits.values()]
        self.fingerprint = hashlib.sha256("".join(digests).encode()).hexdigest()
        self.data_label = f"scrolls-{self.fingerprint[:8]}"
        self.max_eval_tokens = length
        self.fine_tuning = FineTuning(
            self.data,
            self.layout,
            self.limits,
            length=length,
            batch_size=settings.train.batch_size,
            hold_out=context.hold_out,
        )

    def views(self, questions: Questions) -> tuple[View, ...]:
        return tuple(
            Column(name, SUBSETS[name].metric, questions.title(name)) for name in self.data
        )

    def batch(self, subset: str | None, seed: int, step: int) -> Batch:
        assert subset is not None
        return self.fine_tuning.batch(subset, seed, step)

    def held_out_batch(self, subset: str | None, step: int) -> Batch:
        assert subset is not None
        return self.fine_tuning.held_out_batch(subset, step)

    def summarize(self, measured: Sequence[Measurement]) -> list[Measurement]:
        return summarize(measured)


def _find_tokenizer(context: TaskContext) -> Tokenizer:
    if context.start is None:  # use the tokenizer of the checkpoint to start from
        return load_tokenizer(context.tokenizer, Corpus("scrolls"), context.cache)
    assert isinstance(context.start.vocabulary, Tokenizer)  # as in `perplexity`
    return context.start.vocabulary
