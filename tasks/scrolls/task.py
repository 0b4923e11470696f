"""SCROLLS, seven tasks on long documents: fine-tune, generate, score (Shaham 2022, 2201.03533)."""

import hashlib
from functools import cached_property
from pathlib import Path
from typing import Any

from pe_bench.api import (
    HELD_OUT_SEED,
    ID,
    OOD,
    TINY,
    Batch,
    Column,
    Corpus,
    Curve,
    Decoder,
    Evaluation,
    Headline,
    InputError,
    Journal,
    Measurement,
    Preset,
    Task,
    TaskContext,
    TaskSpec,
    Tokenizer,
    TrainConfig,
    View,
    load_tokenizer,
)
from pe_bench.tasks.scrolls.answers import answer_subset, score_subset
from pe_bench.tasks.scrolls.baselines import measure_baselines
from pe_bench.tasks.scrolls.builtin_rows import draw_batch
from pe_bench.tasks.scrolls.fine_tuning import FineTuning
from pe_bench.tasks.scrolls.output_limits import check_limits, find_limits
from pe_bench.tasks.scrolls.prompts import Format, PaperFormat, QuestionLastFormat, StrictFormat
from pe_bench.tasks.scrolls.questions import Questions
from pe_bench.tasks.scrolls.splits import (
    BuiltinDocuments,
    Splits,
    download,
    open_subsets,
)
from pe_bench.tasks.scrolls.styles import tokenizer
from pe_bench.tasks.scrolls.subsets import SPLITS, SUBSETS
from pe_bench.tasks.scrolls.summary import summarize, summarize_lengths

EVAL_LENGTH_FACTORS = (1, 2, 4)  # lengths of built-in documents relative to training


class Scrolls(Task):
    """Fine-tunes a language model on each subset, or trains a model on built-in documents.

    Scores are for the validation split, whose labels are public: token F1 (qasper, narrative_qa),
    exact match (contract_nli, quality) and the geometric mean of ROUGE-1, 2 and L (the rest), as
    the official script computes them. The SCROLLS score is their mean. Standard errors are over
    documents.

    | | built-in documents (preset quick without --data) | others |
    |---|---|---|
    | model | trained from scratch | model of the task `perplexity`, fine-tuned |
    | trained | on all seven subsets together | on each subset, from the same start |
    | a row | document, questions, one answer | input, output |
    | measured on | documents of 1, 2 and 4 times the training length | the input, cut to fit |
    | headline | score beyond the training length, if the score at it passes `gate` | score |

    Built-in documents are lists of facts. An answer is one or two words from a single fact. In the
    first quarter of the training, documents have two facts (`builtin_rows`). A row of real data is
    `BOS input SEP output EOS`. The end of the input is cut to fit, and the loss is on the tokens
    after SEP. For real data, quality also has the accuracy of the likeliest option (`accuracy`, and
    `accuracy_per_byte` with log-likelihoods divided by length), because an exact match of free text
    below chance says little. Titles of columns tell how much of an input is read, and the score of
    the references when cut to the longest output.

    | real data | protocol strict | protocol paper (the recipe of the TAPE paper) |
    |---|---|---|
    | before the output | SEP | a second BOS |
    | summaries | as the others | framed by an instruction, whose tail is always appended |
    | words of the input | 20,000 | 20,000 in training, 15,000 in evaluation |
    | decoding | greedy | summaries are sampled, with a seed (published: without) |
    | precision | the same for all | as strict (published: baselines had another one) |

    | the TAPE paper's fine-tuning | preset paper |
    |---|---|
    | a model trained on C4 with rows of 1024 | the same: `perplexity`, preset paper |
    | 64 rows of 8192 tokens, 1000 steps, AdamW, 1e-5 to 0, warm-up 10 % | the same |
    | beta2 0.999, eps 1e-8, decay 0.01, clip 1, activation checkpointing | the same |
    | outputs of 200 tokens, summaries of 1000, of Llama 2 | as many of `--tokenizer` |
    | a row of each baseline: two a question in narrative_qa | one of each question, in turn |
    | mean of the means of micro-batches of 2 | mean over all output tokens of a step |

    Args:
        start: language model to start from; None: `perplexity` of the same preset. Options follow
            after colons: perplexity:corpus=pg19.
        answer_tokens: maximum number of tokens of an answer; 0: the length of the training
            references, but at most a quarter of `train.length`.
        summary_tokens: maximum number of tokens of a summary; 0: as for `answer_tokens`.
        items: number of validation examples of each subset (and length), spread evenly; 0: all.
        gate: score at the training length from which the headline is ranked; built-in documents
            only.
    """

    headline = Headline("score", "all")
    all_subsets = tuple(SUBSETS)
    protocols = ("strict", "paper")
    check_options = {"items": 4}
    version = 5
    presets = {
        "quick": Preset(
            TrainConfig(
                steps=3000, batch_size=16, length=128, lr=1.5e-3, schedule="linear", beta2=0.99
            ),
            TINY.changed(layers=2, init_std=0.125),
            {"answer_tokens": 0, "summary_tokens": 0, "items": 120, "gate": 70.0},
        ),
        "small": Preset(
            TrainConfig(steps=300, batch_size=16, length=4096, lr=1e-4, warmup=0.1, micro_batch=8),
            options={"answer_tokens": 0, "summary_tokens": 0, "items": 200},
            starts_from="perplexity",
        ),
        "mid": Preset(
            TrainConfig(steps=500, batch_size=32, length=4096, lr=1e-4, warmup=0.1, micro_batch=8),
            options={"answer_tokens": 0, "summary_tokens": 0, "items": 500},
            starts_from="perplexity",
        ),
        "paper": Preset(
            TrainConfig(
                steps=1000,
                batch_size=64,
                micro_batch=2,
                length=8192,
                lr=1e-5,
                schedule="linear",
                warmup=0.1,
                recompute=True,
            ),
            options={"answer_tokens": 200, "summary_tokens": 1000},
            starts_from="perplexity",
        ),
    }

    @classmethod
    def preset(cls, name: str, data: Path | None) -> Preset:
        if name != "quick" or data is None:
            return cls.presets[name]
        train = TrainConfig(steps=120, batch_size=4, length=416, lr=1e-3, warmup=0.1)
        return Preset(train, options=cls.presets[name].options, starts_from="perplexity")

    def __init__(
        self,
        context: TaskContext,
        *,
        start: TaskSpec | None = None,
        answer_tokens: int = 200,
        summary_tokens: int = 1000,
        items: int = 0,
        gate: float = 70.0,
    ) -> None:
        super().__init__(context)
        self.check_range(
            answer_tokens=(answer_tokens, 0, 100_000),
            summary_tokens=(summary_tokens, 0, 100_000),
            items=(items, 0, 100_000),
        )
        if not 0 <= gate <= 100:
            raise InputError(f"scrolls:gate must be a percentage, not {gate}")
        self.items = items
        self.builtin = context.data is None and context.preset == "quick"
        self.gate = gate if self.builtin else None
        self.trains_each_subset = not self.builtin
        if self.builtin:
            self._check_builtin()
        self.tokenizer = self._tokenizer()
        self.vocabulary = self.tokenizer
        self.format = self._format()
        self.lengths = [self.length]
        length_title = "tokens read of each input, median"
        if self.builtin:
            self.headline = Headline("score", OOD)
            self.lengths = [factor * self.length for factor in EVAL_LENGTH_FACTORS]
            length_title = "tokens of document, question and answer"
        self.axes = {"length": length_title, "second": ""}
        self.data = self._open()
        self.subsets = tuple(self.data)
        self.limits = find_limits(
            self.data, self.format, self.length, answer=answer_tokens, summary=summary_tokens
        )
        if not self.builtin:
            check_limits(self.limits, self.length)
        self._identify()
        self.fine_tuning = FineTuning(
            self.data,
            self.format,
            self.limits,
            length=self.length,
            batch_size=self.train.batch_size,
            hold_out=context.hold_out,
        )
        self.questions = Questions(
            self.data,
            self.format,
            self.limits,
            self.length,
            items,
            self.builtin,
            context.cache,
        )

    def _check_builtin(self) -> None:
        """Refuse options that have no effect on the built-in documents."""
        if self.context.tokenizer != "bytes":
            raise InputError(
                f"--tokenizer {self.context.tokenizer} has no effect on the built-in documents, "
                "which have a token for each word: give it with --data"
            )
        if self.context.protocol != "strict":
            raise InputError("protocol paper needs the published documents: give them as --data")

    def _tokenizer(self) -> Tokenizer:
        if self.builtin:
            return tokenizer()
        if self.context.start is None:  # use the tokenizer of the checkpoint to start from
            return load_tokenizer(self.context.tokenizer, Corpus("scrolls"), self.context.cache)
        assert isinstance(self.context.start.vocabulary, Tokenizer)  # as in `perplexity`
        return self.context.start.vocabulary

    def _format(self) -> Format:
        if self.builtin:
            return QuestionLastFormat(self.tokenizer)
        if self.context.protocol == "strict":
            return StrictFormat(self.tokenizer)
        return PaperFormat(self.tokenizer)

    def _open(self) -> dict[str, Splits]:
        """Return the splits of each subset that can be read."""
        cache = self.context.cache
        chosen = self.subsets
        if self.builtin:
            documents = BuiltinDocuments(cache, self.lengths, self.items)
            data, missing = open_subsets(chosen, [*documents.sizes], documents.write, cache)
        else:
            data, missing = open_subsets(chosen, SPLITS, self._find_folder, cache)
        self.unavailable = missing
        return data

    def _find_folder(self, name: str) -> Path:
        """Return the folder with a subset of real data."""
        return self.context.data or download(name, self.context.cache)

    def _identify(self) -> None:
        """Set the label and the fingerprint of the data."""
        self.data_label = f"builtin-v{self.version}"
        self.fingerprint = self.data_label
        if not self.builtin:
            digests = [r.sha256 for splits in self.data.values() for r in splits.values()]
            self.fingerprint = hashlib.sha256("".join(digests).encode()).hexdigest()
            self.data_label = f"scrolls-{self.fingerprint[:8]}"

    @cached_property
    def max_eval_tokens(self) -> int:
        if not self.builtin:
            return self.train_length
        return self.lengths[-1] + max(self.limits.values())

    @cached_property
    def views(self) -> tuple[View, ...]:
        """A column for each subset; curves over the length of built-in documents."""
        columns: list[View] = []
        if not self.builtin:
            for name in self.subsets:
                columns.append(Column(name, SUBSETS[name].metric, self.questions.title(name)))
            return tuple(columns)
        columns.append(Column(ID, "score", at_trained_length=True))
        curves: list[View] = [Curve("all", "score", "all seven subsets")]
        for name, subset in SUBSETS.items():
            columns.append(Column(f"{name}-{OOD}", subset.metric))
            curves.append(Curve(name, subset.metric))
        return (*columns, *curves)

    def batch(self, subset: str | None, seed: int, step: int) -> Batch:
        if subset is None:
            return self._builtin_batch(seed, step, step / self.train.steps)
        return self.fine_tuning.batch(subset, seed, step)

    def held_out_batch(self, subset: str | None, step: int) -> Batch:
        if subset is None:
            return self._builtin_batch(HELD_OUT_SEED, step, 1.0)
        return self.fine_tuning.held_out_batch(subset, step)

    def _builtin_batch(self, seed: int, step: int, done: float) -> Batch:
        assert isinstance(self.format, QuestionLastFormat)
        tokens = self.train.batch_size * self.length
        return draw_batch(self.format, tokens, self.length, seed, step, done)

    def evaluate(self, model: Decoder, subset: str, seed: int, journal: Journal) -> Evaluation:
        strict = self.context.protocol == "strict"
        answer_subset(model, subset, self.questions, seed, journal, strict=strict)
        items = score_subset(subset, self.questions, journal)
        return Evaluation([each.row() for each in items], items=items)

    def baselines(self) -> dict[str, list[Measurement]]:
        """Return the rows of a constant answer and of guesses, scored like a model."""
        measured = measure_baselines(self.questions)
        return {name: [*rows, *self.summarize(rows)] for name, rows in measured.items()}

    def summarize(self, measured: list[Measurement]) -> list[Measurement]:
        if self.gate is None:
            return summarize(measured)
        return summarize_lengths(measured, self.lengths, self.gate)

    def provenance(self) -> dict[str, Any]:
        return {
            "label": self.data_label,
            "folder": str(self.context.data) if self.context.data else None,
            "files": {
                f"{name}/{split}": records.sha256
                for name, splits in self.data.items()
                for split, records in splits.items()
            },
            "start": self.context.start.provenance() if self.context.start else None,
        }
