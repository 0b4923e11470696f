"""The interface of a task: training data, evaluation, and the meaning of the numbers.

A task is one file, or one folder, with one public class. It makes batches and owns its evaluation
loop; the model offers `forward` (logits), `token_losses` and `generate`. The runner does everything
else: it trains, checkpoints, resumes, writes rows. Tasks that make their own sequences extend
`pe_bench.sequences.length_generalization.LengthGeneralizationTask`, which needs less.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

from pe_bench.batch import Batch as Batch  # tasks import it from here too
from pe_bench.config import ModelConfig, TrainConfig
from pe_bench.decoder.model import Decoder
from pe_bench.encoding import Encoding
from pe_bench.errors import InputError, suggest
from pe_bench.results.items import Items
from pe_bench.results.journal import Journal
from pe_bench.results.measurement import Measurement
from pe_bench.results.metrics import Metric
from pe_bench.results.views import Headline, View
from pe_bench.system.files import cache_folder
from pe_bench.text.tokenizer import Tokenizer

HELD_OUT_SEED = 2**63
"""Seed of held-out batches, above those that a run may have."""

# Shapes that presets start from; `changed` sets what differs.
TINY = ModelConfig(layers=3, heads=4, width=64, mlp_width=192, init_std=0.1)
SMALL = ModelConfig(layers=4, heads=8, width=256, mlp_width=768)
BASE = ModelConfig(layers=6, heads=8, width=512, mlp_width=1536)
LARGE = ModelConfig(layers=12, heads=12, width=768, mlp_width=3072)


class Evaluation(NamedTuple):
    """Result of measuring one subset.

    Attributes:
        rows: the numbers.
        notes: remarks for the person who is watching; the runner prints them and keeps them.
        items: the scores of single items that the rows are made of.
    """

    rows: list[Measurement]
    notes: tuple[str, ...] = ()
    items: Sequence[Items] = ()


@dataclass(frozen=True)
class Preset:
    """One scale of a task: "quick" (two CPU cores), "small", "mid" (one GPU), "paper" (published).

    Attributes:
        train: its training phase. `length` is None where the task's options decide it.
        model: the decoder's shape; None where the task starts from another task's model.
        options: values for the task's own options, which a spec may override.
        starts_from: spec of the task whose trained model this one fine-tunes; None: trained from
            scratch. An option of the type `TaskSpec` names another one.
        tokenizer: spec of the tokenizer, for a task on text that starts from no other.
    """

    train: TrainConfig
    model: ModelConfig | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    starts_from: str | None = None
    tokenizer: str = "bytes"


@dataclass(frozen=True)
class Vocabulary:
    """Token ids of a task that has no tokenizer; a `Tokenizer` has all of these too.

    Attributes:
        vocab_size: number of ids.
        digit_ids: tokens that are one decimal digit.
        separator_ids: tokens that end a sentence or a line.
    """

    vocab_size: int
    digit_ids: tuple[int, ...] = ()
    separator_ids: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TaskContext:
    """What a run decides for a task, the same for every encoding.

    Attributes:
        preset: name of the preset.
        protocol: "strict" or "paper".
        train: the training phase; None: the preset's.
        data: folder given by the user, or None.
        tokenizer: spec of the tokenizer.
        cache: folder for downloads and derived data.
        subsets: subsets to run; None: those that the preset runs.
        start: the task that this one starts from, or None.
        extends: the task whose vocabulary this one has, in rows of another length, or None.
        untrained: whether an external checkpoint is measured without training.
        hold_out: whether a task on text keeps documents out of training, for choosing a learning
            rate.
    """

    preset: str = "quick"
    protocol: str = "strict"
    train: TrainConfig | None = None
    data: Path | None = None
    tokenizer: str = "bytes"
    cache: Path = field(default_factory=cache_folder)
    subsets: tuple[str, ...] | None = None
    start: "Task | None" = None
    extends: "Task | None" = None
    untrained: bool = False
    hold_out: bool = False


class Task:
    """One benchmark task.

    The constructor's keyword-only parameters are options of its spec, as with encodings. It should
    raise `InputError` early for what the user can mend, and be cheap where nothing is read.

    Args:
        context: what the run decides.
    """

    headline: Headline
    presets: ClassVar[Mapping[str, Preset]]

    metrics: Mapping[str, Metric] = {}
    """Metrics that `pe_bench.results.metrics.METRICS` does not know."""

    axes: Mapping[str, str] = {"length": "tokens", "second": ""}
    """Meaning of the columns `length` and `second_axis` of this task's rows, with units."""

    vocabulary: Vocabulary | Tokenizer

    all_subsets: tuple[str, ...]
    """Parts that are evaluated one by one: the unit of resume."""

    quick_subsets: ClassVar[tuple[str, ...]] = ()
    """Those that preset quick runs where none are named; empty: all."""

    subset_aliases: ClassVar[Mapping[str, str]] = {}
    """Other names of subsets, as publications call them."""

    protocols: ClassVar[tuple[str, ...]] = ("strict",)

    check_options: ClassVar[Mapping[str, Any]] = {}
    """Options that make an evaluation small, for `pe-bench check`."""

    version: ClassVar[int] = 1
    """Raise it when items, batches or scores change. Results of a parent's other version are other
    results too."""

    trains_each_subset: bool = False
    """Whether every subset has a separate training phase, each from the same start."""

    measures_time: ClassVar[bool] = False
    """Rows are times, which no run repeats digit for digit. Settings then name machine and code,
    intervals are quartiles over repetitions, and nothing is tested for significance."""

    gate: float | None = None
    """Per cent in distribution at which a model counts as trained successfully; None: no gate."""

    options: Mapping[str, Any] = {}
    """What the constructor was given, the preset's values included."""

    def __init__(self, context: TaskContext) -> None:
        self.context = context
        # `SelectiveCopy` is selective-copy, in labels and messages.
        self.name = re.sub("(?<=[a-z])(?=[A-Z])", "-", type(self).__name__).lower()
        self.train = context.train or self.preset(context.preset, context.data).train
        self.unavailable: Mapping[str, str] = {}
        """Subsets that cannot be evaluated, each with the reason in one sentence."""

    @classmethod
    def preset(cls, name: str, data: Path | None) -> Preset:
        """Return what a preset stands for.

        Args:
            name: one of `presets`.
            data: folder given by the user; a task may train on it in another way than on its own.
        """
        return cls.presets[name]

    @classmethod
    def make(cls, context: TaskContext | None = None, **options: Any) -> Self:
        """Return the task with its preset's options, changed by `options`.

        Args:
            context: what the run decides; None: the defaults.
            **options: values that differ from the preset's.
        """
        context = context or TaskContext()
        preset = cls.preset(context.preset, context.data)
        given = {**preset.options, **options}
        made = cls(context, **given)
        made.options = given
        return made

    def going_on(self, train: TrainConfig) -> Self:
        """Return the task with another training phase: rows of another length, more of them.

        Vocabulary and options stay.
        """
        context = replace(self.context, train=train, extends=self)
        return type(self).make(context, **self.options)

    def check_range(self, **ranges: tuple[int, int, int]) -> None:
        """Check options.

        Args:
            **ranges: value, smallest and largest value of each.

        Raises:
            InputError: one is out of its range.
        """
        for option, (value, least, most) in ranges.items():
            if not least <= value <= most:
                raise InputError(
                    f"{self.name}:{option} must be from {least} to {most}, not {value}"
                )

    @cached_property
    def subsets(self) -> tuple[str, ...]:
        """Subsets of this run.

        Raises:
            InputError: the user named one that does not exist.
        """
        quick = self.quick_subsets if self.context.preset == "quick" else ()
        named = self.context.subsets or quick or self.all_subsets
        chosen = tuple(self.subset_aliases.get(name, name) for name in named)
        for name in chosen:
            if name not in self.all_subsets:
                hint = suggest(name, list(self.all_subsets))
                known = ", ".join(self.all_subsets)
                raise InputError(f"there is no subset '{name}'{hint}; there are {known}")
        return chosen

    @cached_property
    def views(self) -> tuple[View, ...]:
        """Columns, panels and maps of the report, besides the headline."""
        return ()

    @cached_property
    def data_label(self) -> str:
        """Short name of the data, for every row; tables never mix two."""
        return f"{self.name}-v{self.version}"

    @cached_property
    def fingerprint(self) -> str:
        """Digest of everything that was read: data, tokenizer. Part of the settings."""
        # Where subsets are trained one by one, a mean over others of them is another number.
        chosen = self.subsets if self.trains_each_subset else ()
        return "+".join([self.data_label, *chosen])

    @property
    def length(self) -> int:
        """`train.length` of a task whose options do not decide it.

        Raises:
            InputError: it is None.
        """
        if self.train.length is None:
            raise InputError(f"{self.name} needs a number of tokens as --train.length")
        return self.train.length

    @cached_property
    def train_length(self) -> int:
        """Tokens of the longest training sequence."""
        return self.length

    @cached_property
    def max_train_axis(self) -> float:
        """Largest trained value of the axis `length`; `train_length` where that is tokens."""
        return self.train_length

    @cached_property
    def max_eval_tokens(self) -> int:
        """Tokens of the longest sequence that every model will see here."""
        return self.train_length

    @cached_property
    def max_far_tokens(self) -> int:
        """The same, with sequences that are left out for encodings of fewer positions."""
        return self.max_eval_tokens

    def skip(self, encoding: Encoding) -> str | None:
        """Return why the task cannot be run with an encoding, in one sentence; None: it can."""
        limit = encoding.max_position
        if limit is not None and limit < self.max_eval_tokens:
            return (
                f"it has {limit} positions and this task needs {self.max_eval_tokens}: "
                "give it a larger table or use a smaller preset"
            )
        return None

    def batch(self, subset: str | None, seed: int, step: int) -> Batch:
        """Return the data of a training step.

        A pure function of its arguments: that makes runs resumable.

        Args:
            subset: the one being trained, None where one phase serves all.
            seed: of the run.
            step: from 0 on.
        """
        raise NotImplementedError

    def held_out_batch(self, subset: str | None, step: int) -> Batch:
        """Return a batch of training data that neither training nor evaluation uses.

        Learning rates are chosen by the loss on these. The default is a batch of a seed that no
        run has: a fresh draw, where a task draws its rows. One with a fixed set of documents holds
        some of them back under `context.hold_out`.

        Args:
            subset: as in `batch`.
            step: from 0 on.
        """
        return self.batch(subset, HELD_OUT_SEED, step)

    def evaluate(self, model: Decoder, subset: str, seed: int, journal: Journal) -> Evaluation:
        """Measure a trained model on one subset.

        Called in inference mode, under autocast where asked for. An entry of `journal` is
        still there when an interrupted run is resumed.

        Args:
            model: in evaluation mode.
            subset: one of `subsets`.
            seed: of the run; items do not depend on it.
            journal: stores finished measurements.
        """
        raise NotImplementedError

    def summarize(self, measured: list[Measurement]) -> list[Measurement]:
        """Return rows over all subsets, from the rows of those that could be measured."""
        return []

    def baselines(self) -> Mapping[str, list[Measurement]]:
        """Return the rows of each baseline, by name: guessing, a constant answer, n-gram tables.

        Subsets, lengths, metrics and summary rows are those of a model. `guessing` is chance, or
        the first one where it is lacking. Tables show chance and the strongest, unranked, and
        `pe-bench check` fails where one comes halfway from chance to the ceiling.
        """
        return {}

    def provenance(self) -> dict[str, Any]:
        """Return where the data came from, with full fingerprints, for run.json."""
        return {"label": self.data_label}
