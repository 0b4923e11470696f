"""SCROLLS, seven tasks on long documents: fine-tune, generate, score (Shaham 2022, 2201.03533)."""

from functools import cached_property
from pathlib import Path
from typing import Any

from pe_bench.api import (
    TINY,
    Batch,
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
    TrainConfig,
    View,
)
from pe_bench.tasks.scrolls.answers import answer_subset, score_subset
from pe_bench.tasks.scrolls.baselines import measure_baselines
from pe_bench.tasks.scrolls.builtin import Builtin
from pe_bench.tasks.scrolls.questions import Questions
from pe_bench.tasks.scrolls.real_data import RealData
from pe_bench.tasks.scrolls.subsets import SUBSETS
from pe_bench.tasks.scrolls.variant import Settings, Variant


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
        builtin = context.data is None and context.preset == "quick"
        settings = Settings(
            context, self.train, self.subsets, self.length, answer_tokens, summary_tokens
        )
        if builtin:
            self.variant: Variant = Builtin(settings, items=items, gate=gate, version=self.version)
            self.gate = gate
        else:
            self.variant = RealData(settings)
        self.headline = self.variant.headline
        self.trains_each_subset = self.variant.trains_each_subset
        self.vocabulary = self.variant.tokenizer
        self.axes = {"length": self.variant.length_title, "second": ""}
        self.subsets = tuple(self.variant.data)
        self.unavailable = self.variant.unavailable
        self.data_label = self.variant.data_label
        self.fingerprint = self.variant.fingerprint
        self.questions = Questions(
            self.variant.data,
            self.variant.layout,
            self.variant.limits,
            self.length,
            items,
            builtin,
            context.cache,
        )

    @property
    def max_eval_tokens(self) -> int:
        return self.variant.max_eval_tokens

    @cached_property
    def views(self) -> tuple[View, ...]:
        """A column for each subset; curves over the length of built-in documents."""
        return self.variant.views(self.questions)

    def batch(self, subset: str | None, seed: int, step: int) -> Batch:
        return self.variant.batch(subset, seed, step)

    def held_out_batch(self, subset: str | None, step: int) -> Batch:
        return self.variant.held_out_batch(subset, step)

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
        return self.variant.summarize(measured)

    def provenance(self) -> dict[str, Any]:
        return {
            "label": self.data_label,
            "folder": str(self.context.data) if self.context.data else None,
            "files": {
                f"{name}/{split}": records.sha256
                for name, splits in self.variant.data.items()
                for split, records in splits.items()
            },
            "start": self.context.start.provenance() if self.context.start else None,
        }
