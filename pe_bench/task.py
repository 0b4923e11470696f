"""The interface of a task: what is trained on, what is measured, and what the numbers mean.

A task is one file with one class. It makes batches and owns its evaluation loop; the model offers
`forward` (logits), `token_losses` and `generate`. The runner does everything else: it trains,
checkpoints, resumes, writes rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from pe_bench.config import ModelConfig, TrainConfig
from pe_bench.decoder.model import Decoder
from pe_bench.encoding import Encoding
from pe_bench.errors import InputError, suggest
from pe_bench.results.journal import Journal
from pe_bench.results.schema import Figure, Headline, Measurement
from pe_bench.text.tokenizer import Tokenizer


class Batch(NamedTuple):
    """Training data of one step: token ids (B, T) and next-token targets (B, T).

    Targets that carry no loss are `pe_bench.model.IGNORE`. Pad on the right: a causal model needs
    no mask for that, and positions stay what they are.
    """

    tokens: Tensor
    targets: Tensor


@dataclass(frozen=True)
class Preset:
    """One scale of a task: "quick" (2 CPU cores), "small" (one GPU), "paper" (as published).

    Attributes:
        train: its training phase.
        model: the decoder's shape; None where the task starts from another task's model.
        options: values for the task's own options, which a spec may override.
    """

    train: TrainConfig
    model: ModelConfig | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Setup:
    """What the command line decided for one task, the same for every encoding.

    Attributes:
        preset: name of the preset.
        protocol: "strict" or "paper".
        train: the preset's training phase with overrides applied.
        data: folder given by the user, or None.
        tokenizer: spec of the tokenizer.
        cache: folder for downloads and what is derived from them.
        subsets: which of the task's subsets to run; None: all.
    """

    preset: str
    protocol: str
    train: TrainConfig
    data: Path | None
    tokenizer: str
    cache: Path
    subsets: tuple[str, ...] | None = None


class Task:
    """One benchmark task.

    The constructor's keyword-only parameters are options of its spec, as with encodings. It should
    raise `InputError` early for what the user can mend, and be cheap where nothing is read.

    Args:
        setup: what the command line decided.
        start: the task that this one starts from, already built, or None.
    """

    headline: ClassVar[Headline]
    shown: Mapping[str, str]
    """Besides the headline: the metric that tables and plots show of each subset."""

    axes: Mapping[str, str]
    """What the columns `length` and `aux` of this task's rows mean, with units."""

    presets: ClassVar[Mapping[str, Preset]]
    protocols: ClassVar[tuple[str, ...]] = ("strict",)
    curves: Mapping[str, str] = {}
    """More subsets for the plot against length, too many numbers for a table."""

    figures: tuple[Figure, ...] = ()

    starts_from: ClassVar[str | None] = None
    """Task whose trained model this one fine-tunes; None: trained from scratch."""

    trains_each_subset: ClassVar[bool] = False
    """Every subset has a training phase of its own, each from the same start."""

    subsets: tuple[str, ...]
    """Parts that are evaluated one by one: the unit of resume."""

    missing: Mapping[str, str]
    """Parts that cannot be evaluated, each with the reason in one sentence."""

    vocab_size: int
    digit_ids: tuple[int, ...] = ()
    """Tokens that are one decimal digit."""

    separator_ids: tuple[int, ...] = ()
    """Tokens that end a sentence or a line."""

    tokenizer: Tokenizer
    """Of tasks on text; one that starts from another task takes over its tokenizer."""

    data_label: str
    """Short name of the data with its fingerprint, for every row; tables never mix two."""

    fingerprint: str
    """Digest of all that was read: data, tokenizer. Part of the settings."""

    train_length: int
    """Tokens of the longest training sequence; `train.length` unless a task knows better."""

    trained_to: float
    """The largest value of the axis `length` in training; `train_length` where it is tokens."""

    longest: int
    """Tokens of the longest sequence that the model will see here."""

    def __init__(self, setup: Setup, start: "Task | None") -> None:
        self.setup = setup
        self.start = start
        self.missing = {}
        self.trained_to = self.train_length = setup.train.length

    def chosen(self, names: Sequence[str], quick: Sequence[str] = ()) -> tuple[str, ...]:
        """Those of a task's parts that the user asked for.

        Args:
            names: all of them.
            quick: what preset quick runs where nobody asked for parts; empty: all.

        Raises:
            InputError: there is no such part.
        """
        usual = quick if quick and self.setup.preset == "quick" else names
        wanted = self.setup.subsets or tuple(usual)
        for name in wanted:
            if name not in names:
                hint = suggest(name, list(names))
                raise InputError(f"there is no subset '{name}'{hint}; there are {', '.join(names)}")
        return wanted

    def refuse_length(self, why: str) -> None:
        """For tasks whose sequences are as long as their options make them.

        Raises:
            InputError: the user has set `train.length`.
        """
        if self.setup.train.length != self.presets[self.setup.preset].train.length:
            raise InputError(f"--train.length has no effect here: {why}")

    def skip(self, encoding: Encoding) -> str | None:
        """Why this task cannot be run with an encoding, in one sentence; None: it can."""
        limit = encoding.max_position
        if limit is not None and limit < self.longest:
            return (
                f"it has {limit} positions and this task needs {self.longest}: "
                "give it a larger table or use a smaller preset"
            )
        return None

    def batch(self, subset: str | None, seed: int, step: int) -> Batch:
        """Data of a training step, a pure function of its arguments: that makes runs resumable.

        Args:
            subset: the part being trained, None where one phase serves all.
        """
        raise NotImplementedError

    def evaluate(
        self, model: Decoder, subset: str, seed: int, journal: Journal
    ) -> list[Measurement]:
        """Measures a trained model on one part.

        Called in inference mode, under autocast where asked for. What is put into `journal` is
        there again when an interrupted run is resumed.
        """
        raise NotImplementedError

    def summarize(self, measured: list[Measurement]) -> list[Measurement]:
        """Rows over all parts, from the rows of the parts that could be measured."""
        return []

    def provenance(self) -> dict[str, Any]:
        """Where the data came from, with full fingerprints, for run.json."""
        return {"label": self.data_label}
