"""The interface of a task: training data, evaluation, and the meaning of the numbers.

A task is one file, or one folder, with one public class. It makes batches and evaluates models with
their methods `forward` (logits), `token_losses` and `generate`. The engine does everything else: it
trains, saves checkpoints, resumes, and writes rows. Tasks with synthetic sequences should extend
`pe_bench.sequences.length_generalization.LengthGeneralizationTask`, which requires less code.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

from pe_bench.batch import Batch as Batch  # tasks also import it from this module
from pe_bench.config import ModelConfig, TrainConfig, check_ids
from pe_bench.decoder.model import Decoder
from pe_bench.encoding import Encoding
from pe_bench.errors import InputError, suggest
from pe_bench.option_table import is_whole
from pe_bench.results.items import Items
from pe_bench.results.journal import Journal
from pe_bench.results.measurement import Measurement
from pe_bench.results.metrics import Metric
from pe_bench.results.views import Headline, View
from pe_bench.system.files import cache_folder
from pe_bench.text.tokenizer import Tokenizer

HELD_OUT_SEED = 2**63
"""Seed of held-out batches, larger than all valid seeds of runs."""

# Base shapes for presets; use `changed` for differences.
TINY = ModelConfig(layers=3, heads=4, width=64, mlp_width=192, init_std=0.1)
SMALL = ModelConfig(layers=4, heads=8, width=256, mlp_width=768)
BASE = ModelConfig(layers=6, heads=8, width=512, mlp_width=1536)
LARGE = ModelConfig(layers=12, heads=12, width=768, mlp_width=3072)


class Evaluation(NamedTuple):
    """Result of measuring one subset.

    Attributes:
        rows: the numbers.
        notes: remarks for the user; the engine prints and stores them.
        items: the scores of single items from which the rows are computed.
    """

    rows: list[Measurement]
    notes: tuple[str, ...] = ()
    items: Sequence[Items] = ()


@dataclass(frozen=True)
class Preset:
    """One scale of a task: "quick" (two CPU cores), "small", "mid" (one GPU), "paper" (published).

    Attributes:
        train: the training phase. `length` is None if options of the task determine it.
        model: shape of the decoder; None if the task starts from another task's model.
        options: values of the task's options, which a spec may override.
        starts_from: spec of the task whose trained model this one fine-tunes; None: trained from
            scratch. An option of type `TaskSpec` overrides it.
        tokenizer: spec of the tokenizer, for a task on text that does not start from another task.
    """

    train: TrainConfig
    model: ModelConfig | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    starts_from: str | None = None
    tokenizer: str = "bytes"


@dataclass(frozen=True)
class Vocabulary:
    """Token ids of a task without a tokenizer; a `Tokenizer` has the same attributes.

    Attributes:
        vocab_size: number of ids.
        digit_ids: tokens that are a single decimal digit.
        separator_ids: tokens that end a sentence or a line.

    Raises:
        InputError: the number of ids is not a positive whole number, or an id is not among them.
    """

    vocab_size: int
    digit_ids: tuple[int, ...] = ()
    separator_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not is_whole(self.vocab_size) or self.vocab_size < 1:
            raise InputError(
                f"a Vocabulary needs a whole number of ids of at least 1, not {self.vocab_size!r}"
            )
        for name in ("digit_ids", "separator_ids"):
            check_ids(getattr(self, name), self.vocab_size, f"Vocabulary.{name}")


@dataclass(frozen=True, kw_only=True)
class TaskContext:
    """Settings of a run for a task, the same for every encoding.

    Attributes:
        preset: name of the preset.
        protocol: "strict" or "paper".
        train: the training phase; None: the training phase of the preset.
        data: folder given by the user, or None.
        tokenizer: spec of the tokenizer.
        cache: folder for downloads and derived data.
        subsets: subsets to run; None: the subsets of the preset.
        start: the task that this one starts from, or None.
        extends: the original task if this one repeats it with rows of another length and the same
            vocabulary, else None.
        untrained: whether an external checkpoint is measured without training.
        hold_out: whether a task on text excludes documents from training, to choose a learning rate
            with them.
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
    raise an `InputError` early for mistakes that the user can correct, and should be cheap unless
    it reads data.

    Args:
        context: settings of the run for the task.
    """

    headline: Headline
    presets: ClassVar[Mapping[str, Preset]]

    metrics: Mapping[str, Metric] = {}
    """Metrics that are not in `pe_bench.results.metrics.METRICS`."""

    axes: Mapping[str, str] = {"length": "tokens", "second": ""}
    """Meaning of the columns `length` and `second_axis` of this task's rows, with units."""

    vocabulary: Vocabulary | Tokenizer

    all_subsets: tuple[str, ...]
    """Parts of the task that are evaluated separately. An interrupted run resumes per subset."""

    quick_subsets: ClassVar[tuple[str, ...]] = ()
    """Subsets of the preset quick if the user names none; empty: all."""

    subset_aliases: ClassVar[Mapping[str, str]] = {}
    """Alternative names of subsets, from publications."""

    protocols: ClassVar[tuple[str, ...]] = ("strict",)

    check_options: ClassVar[Mapping[str, Any]] = {}
    """Options that make an evaluation small, for `pe-bench check` and the test before a run."""

    version: ClassVar[int] = 1
    """Increase it when items, batches or scores change. A new version of a parent class counts as a
    change too."""

    trains_each_subset: bool = False
    """Whether every subset has a separate training phase; all start from the same model."""

    measures_time: ClassVar[bool] = False
    """Whether rows are times, which differ in every run. If so, settings include machine and code,
    intervals are quartiles over repetitions, and there are no significance tests."""

    gate: float | None = None
    """Minimum in-distribution score, in per cent, of a model that has learned the task.
    None: no gate, or the task marks rows as "not_learned" if a model is not better than the best
    baseline in distribution."""

    options: Mapping[str, Any] = {}
    """Arguments of the constructor, including values from the preset."""

    def __init__(self, context: TaskContext) -> None:
        self.context = context
        # `SelectiveCopy` is called selective-copy in labels and messages.
        self.name = re.sub("(?<=[a-z])(?=[A-Z])", "-", type(self).__name__).lower()
        self.train = context.train or self.preset(context.preset, context.data).train
        self.unavailable: Mapping[str, str] = {}
        """Subsets that cannot be evaluated, each with the reason in one sentence."""

    @classmethod
    def preset(cls, name: str, data: Path | None) -> Preset:
        """Return the preset with the given name.

        Args:
            name: one of `presets`.
            data: folder given by the user, or None; the preset may depend on it.
        """
        return cls.presets[name]

    @classmethod
    def make(cls, context: TaskContext | None = None, **options: Any) -> Self:
        """Return the task with its preset's options, changed by `options`.

        Args:
            context: settings of the run for the task; None: the defaults.
            **options: values that differ from the preset's.
        """
        context = context or TaskContext()
        preset = cls.preset(context.preset, context.data)
        given = {**preset.options, **options}
        made = cls(context, **given)
        made.options = given
        return made

    def with_training(self, train: TrainConfig) -> Self:
        """Return the task with another training phase, for example with longer or more rows.

        Vocabulary and options do not change.
        """
        context = replace(self.context, train=train, extends=self)
        return type(self).make(context, **self.options)

    def with_subsets(self, names: Sequence[str]) -> Self:
        """Return the task with other subsets of `all_subsets`; vocabulary and options stay."""
        context = replace(self.context, subsets=tuple(dict.fromkeys(names)))
        return type(self).make(context, **self.options)

    def check_range(self, **ranges: tuple[int, int, int]) -> None:
        """Check options.

        Args:
            **ranges: value, smallest and largest allowed value of each option.

        Raises:
            InputError: a value is out of its range.
        """
        for option, (value, least, most) in ranges.items():
            if not least <= value <= most:
                raise InputError(
                    f"{self.name}:{option} must be from {least} to {most}, not {value}"
                )

    @cached_property
    def subsets(self) -> tuple[str, ...]:
        """Subsets of this run, in the order of `all_subsets`.

        Raises:
            InputError: the user named a subset that does not exist, or named one twice.
        """
        self.check_subsets()
        chosen = self._chosen_subsets()
        return tuple(name for name in self.all_subsets if name in chosen)

    def check_subsets(self) -> None:
        """Check the subsets that the user named.

        Raises:
            InputError: a subset does not exist, or is named twice.
        """
        chosen = self._chosen_subsets()
        for name in chosen:
            if name not in self.all_subsets:
                hint = suggest(name, list(self.all_subsets))
                known = ", ".join(self.all_subsets)
                raise InputError(f"there is no subset '{name}'{hint}; there are {known}")
            if chosen.count(name) > 1:
                raise InputError(f"the subset '{name}' is named twice: name it once")

    def _chosen_subsets(self) -> tuple[str, ...]:
        """Return the names of the subsets of this run, unchecked and in the user's order."""
        quick = self.quick_subsets if self.context.preset == "quick" else ()
        named = self.context.subsets or quick or self.all_subsets
        return tuple(self.subset_aliases.get(name, name) for name in named)

    @cached_property
    def views(self) -> tuple[View, ...]:
        """Columns, panels and heatmaps of the report, in addition to the headline."""
        return ()

    @cached_property
    def data_label(self) -> str:
        """Short name of the data, stored in every row; a table never mixes different data."""
        return f"{self.name}-v{self.version}"

    @cached_property
    def fingerprint(self) -> str:
        """Digest of everything that the task reads (data, tokenizer); part of the settings."""
        # With a separate training per subset, the mean depends on the choice of subsets.
        chosen = self.subsets if self.trains_each_subset else ()
        return "+".join([self.data_label, *chosen])

    @property
    def length(self) -> int:
        """`train.length`, for a task whose options do not determine the length.

        Raises:
            InputError: `train.length` is None.
        """
        if self.train.length is None:
            raise InputError(f"{self.name} needs a number of tokens as --train.length")
        return self.train.length

    @cached_property
    def train_length(self) -> int:
        """Number of tokens of the longest training sequence."""
        return self.length

    @cached_property
    def max_train_axis(self) -> float:
        """Largest value of the axis `length` in training; default: `train_length`."""
        return self.train_length

    @cached_property
    def max_eval_tokens(self) -> int:
        """Number of tokens of the longest sequence in the evaluation of every model."""
        return self.train_length

    @cached_property
    def max_far_tokens(self) -> int:
        """The same including longer sequences that encodings with fewer positions may leave out."""
        return self.max_eval_tokens

    def evaluation_sequences(self) -> Mapping[int, int] | None:
        """Return the number of sequences of each length in the evaluation; None: unknown.

        A sequence is sent through the model once if the encoding is prefix consistent.
        """
        return None

    def skip(self, encoding: Encoding) -> str | None:
        """Return why the task cannot be run with an encoding, in one sentence; None: it can."""
        limit = encoding.max_position
        if limit is not None and limit < self.max_eval_tokens:
            return (
                f"it has {limit} positions, but this task needs {self.max_eval_tokens}: "
                "give it a larger table or use a smaller preset"
            )
        return None

    def batch(self, subset: str | None, seed: int, step: int) -> Batch:
        """Return the data of a training step.

        It must be a pure function of its arguments, so that runs can be resumed.

        Args:
            subset: subset that the phase trains for; None: all subsets.
            seed: seed of the run.
            step: index of the step, from 0.
        """
        raise NotImplementedError

    def held_out_batch(self, subset: str | None, step: int) -> Batch:
        """Return a batch of training data that neither training nor evaluation uses.

        The search for learning rates uses the loss on these batches. The default is a batch with a
        seed that no run has, which gives new rows if the task draws them at random. A task with a
        fixed set of documents must exclude some of them from training if `context.hold_out`.

        Args:
            subset: as in `batch`.
            step: index of the batch, from 0.
        """
        return self.batch(subset, HELD_OUT_SEED, step)

    def evaluate(self, model: Decoder, subset: str, seed: int, journal: Journal) -> Evaluation:
        """Measure a trained model on one subset.

        The engine calls it in inference mode, with autocast if requested. Entries of `journal`
        remain when an interrupted run is resumed.

        Args:
            model: the model, in evaluation mode.
            subset: one of `subsets`.
            seed: seed of the run; items do not depend on it.
            journal: storage for finished measurements.
        """
        raise NotImplementedError

    def summarize(self, measured: list[Measurement]) -> list[Measurement]:
        """Return summary rows over all subsets, from the rows of the measured subsets."""
        return []

    def baselines(self) -> Mapping[str, list[Measurement]]:
        """Return the rows of each baseline by name: guessing, a constant answer, n-gram tables.

        Subsets, lengths, metrics and summary rows are the same as for a model. Chance is the
        baseline `guessing`, or the first baseline if there is no `guessing`. Tables show chance and
        the strongest baseline without a rank. `pe-bench check` fails if a baseline scores at least
        halfway from chance to the ceiling.
        """
        return {}

    def provenance(self) -> dict[str, Any]:
        """Return the origin of the data, with full fingerprints, for run.json."""
        return {"label": self.data_label}
