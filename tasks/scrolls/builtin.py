"""The variant with built-in documents, on which one model for all subsets is trained."""

from collections.abc import Sequence

from pe_bench.api import (
    HELD_OUT_SEED,
    ID,
    OOD,
    Batch,
    Column,
    Curve,
    Headline,
    InputError,
    Measurement,
    View,
)
from pe_bench.tasks.scrolls.builtin_rows import draw_batch
from pe_bench.tasks.scrolls.output_limits import find_limits
from pe_bench.tasks.scrolls.prompts import QuestionLastFormat
from pe_bench.tasks.scrolls.questions import Questions
from pe_bench.tasks.scrolls.splits import BuiltinDocuments, open_subsets
from pe_bench.tasks.scrolls.styles import tokenizer
from pe_bench.tasks.scrolls.subsets import SUBSETS
from pe_bench.tasks.scrolls.summary import summarize_lengths
from pe_bench.tasks.scrolls.variant import Settings, Variant

LENGTH_FACTORS = (1, 2, 4)  # lengths of the evaluated documents relative to training


class Builtin(Variant):
    """Built-in documents of several lengths. A row is a document, questions, and one answer.

    Args:
        settings: settings of the task. `length` is that of a training document with a question.
        items: number of validation examples of each subset and length.
        gate: score at the training length from which the headline is ranked.
        version: version of the task.

    Raises:
        InputError: an option has no effect on built-in documents, or there are no such documents.
    """

    headline = Headline("score", OOD)
    trains_each_subset = False
    length_title = "tokens of document, question and answer"

    def __init__(self, settings: Settings, *, items: int, gate: float, version: int) -> None:
        context, length = settings.context, settings.length
        if context.tokenizer != "bytes":
            raise InputError(
                f"--tokenizer {context.tokenizer} has no effect on the built-in documents, "
                "which have a token for each word: give it with --data"
            )
        if context.protocol != "strict":
            raise InputError("protocol paper needs the published documents: give them as --data")
        self.train = settings.train
        self.length = length
        self.gate = gate
        self.tokenizer = tokenizer()
        self.layout = self._rows = QuestionLastFormat(self.tokenizer)
        self.lengths = [factor * length for factor in LENGTH_FACTORS]
        documents = BuiltinDocuments(context.cache, self.lengths, items)
        self.data, self.unavailable = open_subsets(
            settings.subsets, [*documents.sizes], documents.write, context.cache
        )
        self.limits = find_limits(self.data, self.layout, settings)
        self.data_label = self.fingerprint = f"builtin-v{version}"
        self.max_eval_tokens = self.lengths[-1] + max(self.limits.values())

    def views(self, questions: Questions) -> tuple[View, ...]:
        columns = [Column(ID, "score", at_trained_length=True)]
        curves = [Curve("all", "score", "all seven subsets")]
        for name, subset in SUBSETS.items():
            columns.append(Column(f"{name}-{OOD}", subset.metric))
            curves.append(Curve(name, subset.metric))
        return (*columns, *curves)

    def batch(self, subset: str | None, seed: int, step: int) -> Batch:
        return self._draw(seed, step, step / self.train.steps)

    def held_out_batch(self, subset: str | None, step: int) -> Batch:
        return self._draw(HELD_OUT_SEED, step, 1.0)

    def _draw(self, seed: int, step: int, done: float) -> Batch:
        tokens = self.train.batch_size * self.length
        return draw_batch(self._rows, tokens, self.length, seed, step, done)

    def summarize(self, measured: Sequence[Measurement]) -> list[Measurement]:
        return summarize_lengths(measured, self.lengths, self.gate)
