"""Base class of tasks that ask for information in a text."""

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, Literal

import numpy as np

from pe_bench.config import TrainConfig
from pe_bench.errors import InputError
from pe_bench.registry.options import TaskSpec
from pe_bench.results.measurement import Measurement
from pe_bench.results.splits import ID, OOD
from pe_bench.sequences.curriculum import Stage, make_rows, stage_at
from pe_bench.sequences.eval_points import EvalPoint, parse_lengths
from pe_bench.sequences.length_generalization import LengthGeneralizationTask
from pe_bench.sequences.rows import Turn
from pe_bench.task import HELD_OUT_SEED, Batch, Task, TaskContext
from pe_bench.text.builtin_corpora import stdlib_corpus
from pe_bench.text.folder_corpus import folder_corpus
from pe_bench.text.load_tokenizer import load_tokenizer
from pe_bench.text.tokenizer import ByteTokenizer, Tokenizer
from pe_bench.text.word_tokenizer import WordTokenizer

ZERO_SHOT = TrainConfig(
    steps=1000,
    batch_size=64,
    micro_batch=2,
    length=8192,
    lr=2e-5,
    schedule="constant",
    warmup=0.05,
    weight_decay=0.0,
    recompute=True,
)
"""Training of a language model on long text before the evaluation (Zhu et al. 2025)."""


class PromptTask(LengthGeneralizationTask):
    """Base of tasks whose prompts are text of an exact number of tokens.

    By default, models are trained on prompts of up to `train.length` tokens. In presets that start
    from a language model, this model is trained further on text and evaluated without having seen
    a prompt (zero-shot). So is a checkpoint (`--from DIR`) that is not trained further. Zero-shot,
    all points are out of distribution, and there is neither gate nor baseline.

    Subclasses define `texts`, `write`, `min_length` and `max_answer`; or, to make many rows at
    once, `prompt_batch`, `eval_points` and `items`. All subsets have equal parts of a batch, and
    training lengths are drawn uniformly. The first stages of the curriculum are an exception: their
    batches hold short prompts of `first_subset` with the same total number of tokens.

    Args:
        context: settings of the run.
        start: language model to start from, in presets that are zero-shot; None: `perplexity` of
            the same preset. Options follow after colons: perplexity:corpus=pg19.
        vocabulary: `words`: a token for each word and digit of the prompts, which small models
            learn in minutes; `tokenizer`: the vocabulary of `--tokenizer`. With bytes, a prompt has
            four times as many tokens.
        lengths: evaluated lengths in tokens, joined by +: 4096+8192+16384. None: multiples of the
            training length.
    """

    first_subset: str = ""
    """Subset of the first stages, in which a model learns retrieval; empty: no such stages."""

    takes_data = True
    averages_each_subset = True
    length_factors: tuple[float, ...]
    """Evaluated lengths, as multiples of the training length."""

    zero_shot_factors: tuple[float, ...] = (0.125, 0.25, 0.5, 0.75, 1, 1.5, 2)
    """Evaluated lengths in zero-shot presets, as multiples of the training length."""

    def __init__(
        self,
        context: TaskContext,
        *,
        start: TaskSpec | None = None,
        vocabulary: Literal["words", "tokenizer"] = "tokenizer",
        lengths: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(context, **options)
        self.zero_shot = context.start is not None or context.untrained
        self.factors = self.length_factors if context.start is None else self.zero_shot_factors
        # The vocabulary has enough words for the longest prompt of the first training.
        first = context.extends or self
        if lengths is None:
            self.eval_lengths = sorted({int(factor * self.length) for factor in self.factors})
            self.max_length = int(self.factors[-1] * first.length)
        else:
            self.eval_lengths = parse_lengths(lengths, f"{self.name}:lengths")
            self.max_length = max(self.eval_lengths[-1], first.length)
        self.whole_words = vocabulary == "words"
        self.tokenizer = self._tokenizer()
        self.vocabulary = self.tokenizer
        self.data_label = f"{self.name}-v{self.version}-{self.tokenizer.name}"
        self.fingerprint = f"{self.name}-v{self.version}+{self.tokenizer.fingerprint}"
        if self.zero_shot:
            self.data_label += "-zero-shot"
            self.fingerprint += "+zero-shot"
            self.gate = None

    def texts(self) -> list[str]:
        """Return texts that contain all words of the prompts, for a vocabulary of whole words."""
        raise NotImplementedError

    def write(
        self,
        rng: np.random.Generator,
        subset: str,
        length: int,
        stage: Stage | None = None,
    ) -> list[Turn]:
        """Return a prompt with its answers.

        Args:
            rng: source of randomness.
            subset: one of `all_subsets`.
            length: number of tokens before the last answer.
            stage: stage of the curriculum, for a training row with a question about every fact in
                the text, in any order, as far as there is room. None: a single question.
        """
        raise NotImplementedError

    def min_length(self, subset: str) -> int:
        """Return a number of tokens in which every prompt of a subset fits."""
        raise NotImplementedError

    def min_train_length(self, subset: str) -> int:
        """Return the minimum number of tokens of a training row, which may hold fewer facts."""
        return self.min_length(subset)

    def max_answer(self, subset: str) -> int:
        """Return the maximum number of tokens of an answer."""
        raise NotImplementedError

    def eval_points(self, subset: str) -> list[EvalPoint]:
        points = []
        for length in self.eval_lengths:
            trained = length <= self.length and not self.zero_shot
            if length >= self.min_length(subset):
                points.append(EvalPoint(length, split=ID if trained else OOD))
        return points

    def sample(self, rng: np.random.Generator, subset: str, point: EvalPoint) -> list[Turn]:
        return self.write(rng, subset, point.length)

    @cached_property
    def train_length(self) -> int:
        return self.length + (0 if self.zero_shot else self._longest_answer)

    @cached_property
    def max_train_axis(self) -> float:
        return self.length

    @cached_property
    def max_eval_tokens(self) -> int:
        return self.max_length + self._longest_answer

    @property
    def _longest_answer(self) -> int:
        return max(self.max_answer(subset) for subset in self.all_subsets)

    def prompt_batch(self, seed: int, step: int, done: float = 1.0) -> Batch:
        """Return prompts with their answers to train on; a pure function of its arguments.

        Args:
            seed: seed of the run.
            step: training step.
            done: fraction of the steps already done.
        """
        rng = np.random.default_rng([seed, step])
        stage = stage_at(done if self.first_subset in self.all_subsets else 1.0)
        rows = self._mixed_rows(rng, step) if stage.facts is None else self._first_rows(rng)
        # Draw one row at a time, because writing a prompt draws from the same generator.
        return make_rows([self.write(rng, name, length, stage) for name, length in rows], rng)

    def _mixed_rows(self, rng: np.random.Generator, step: int) -> Iterator[tuple[str, int]]:
        """Yield subset and length of the rows of a batch, cycling through the subsets."""
        first = step * self.train.batch_size
        for row in range(first, first + self.train.batch_size):
            subset = self.all_subsets[row % len(self.all_subsets)]
            yield subset, int(rng.integers(self.min_train_length(subset), self.length + 1))

    def _first_rows(self, rng: np.random.Generator) -> Iterator[tuple[str, int]]:
        """Yield subset and length of short rows that together have the tokens of a batch."""
        least = self.min_train_length(self.first_subset)
        most = min(least + least // 3, self.length)
        used = 0
        while used < self.train.batch_size * self.length:
            length = int(rng.integers(least, most + 1))
            yield self.first_subset, length
            used += length

    def batch(self, subset: str | None, seed: int, step: int) -> Batch:
        if self.context.start is not None:
            return self.text.batch(None, seed, self.context.start.train.steps + step)
        steps = self.train.steps  # 0 for a checkpoint that is not trained further
        knows = self.context.extends is not None or not steps
        return self.prompt_batch(seed, step, 1.0 if knows else step / steps)

    def held_out_batch(self, subset: str | None, step: int) -> Batch:
        """Return fresh prompts, or windows of held-out text if the model is trained on text."""
        if self.context.start is not None:
            return self.text.held_out_batch(None, step)
        return self.prompt_batch(HELD_OUT_SEED, step)

    def baseline_batch(self, subset: str | None, step: int) -> Batch:
        return self.prompt_batch(0, step)

    @cached_property
    def text(self) -> Task:
        """The language model's task with rows of `train.length` tokens."""
        assert self.context.start is not None
        return self.context.start.with_training(self.train)

    def baselines(self) -> Mapping[str, list[Measurement]]:
        """Return no baselines in zero-shot presets, where they would know more than a model."""
        return {} if self.zero_shot else super().baselines()

    def provenance(self) -> dict[str, Any]:
        return {
            **super().provenance(),
            "tokenizer": self.tokenizer.name,
            "tokenizer_fingerprint": self.tokenizer.fingerprint,
        }

    def check_room(self) -> None:
        """Check that training prompts have room for their text.

        Raises:
            InputError: `train.length` is too small.
        """
        needed = max(self.min_length(subset) for subset in self.all_subsets)
        if self.length < needed:
            raise InputError(
                f"a prompt of {self.length} tokens ({self.tokenizer.name}) is too short for its "
                f"text: give --train.length {needed} or more"
            )

    def _tokenizer(self) -> Tokenizer:
        spec = self.context.tokenizer
        data = self.context.data
        if self.context.start is not None:
            if data is not None or self.whole_words:
                raise InputError(
                    f"{self.name} starts from a language model here and has its text and tokens: "
                    "leave out vocabulary=words, and give text as --data perplexity=DIR"
                )
            assert isinstance(self.context.start.vocabulary, Tokenizer)  # as in `perplexity`
            return self.context.start.vocabulary
        if data is not None and (self.whole_words or not spec.startswith("bpe:")):
            raise InputError(
                f"{self.name} makes its own prompts: leave out --data (only a tokenizer bpe:N with "
                f"{self.name}:vocabulary=tokenizer is fitted to text)"
            )
        if self.whole_words:
            if spec != "bytes":
                raise InputError(
                    f"--tokenizer {spec} has no effect on a vocabulary of whole words: write "
                    f"{self.name}:vocabulary=tokenizer"
                )
            return WordTokenizer(self.texts())
        if spec == "bytes":
            return ByteTokenizer()  # needs no corpus
        corpus = stdlib_corpus() if data is None else folder_corpus(data)
        return load_tokenizer(spec, corpus, self.context.cache)
