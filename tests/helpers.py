"""Helpers for tests of tasks: make a task and a model that knows the answers, and measure it."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
import tokenizers
import torch
from tokenizers import pre_tokenizers
from torch import Tensor, nn

from pe_bench.config import ModelConfig, TrainConfig
from pe_bench.decoder.cache import Cache
from pe_bench.decoder.model import Decoder
from pe_bench.encoding import Encoding
from pe_bench.layers import Layers
from pe_bench.registry import catalogue, plugins
from pe_bench.results.item_files import read_items, write_items
from pe_bench.results.items import Items, RowKey, recompute
from pe_bench.results.journal import Journal
from pe_bench.results.measurement import Measurement
from pe_bench.sequences.length_generalization import LengthGeneralizationTask
from pe_bench.task import Batch, Task, TaskContext
from pe_bench.train.checkpoint_store import CheckpointStore
from pe_bench.train.training import ensure_trained
from pe_bench.train.training_result import TrainingResult
from pe_bench.train.training_setup import Training

AnyTask = TypeVar("AnyTask", bound=Task)
KINDS = ("nope", "rope", "alibi", "cope", "randpe", "tape")
"""Encodings that act at different places; by default, tests of all others are slow."""


def has_code(name: str) -> bool:
    """Return whether an encoding is more than options of a hybrid, as of a published model."""
    cls: type[Encoding] = plugins.load("encoding", name).cls
    if not issubclass(cls, Layers) or cls.__base__ is Layers:
        return True
    members = (value for key, value in vars(cls).items() if not key.startswith("__"))
    return any(callable(each) or isinstance(each, (property, classmethod)) for each in members)


CODED = [*(name for name in catalogue.names("encoding") if has_code(name)), "hybrid:window=4"]
"""Encodings with code, and a window. Tests of a decoder need no other options of hybrids."""

NO_MEANS = {"effective_length"}
"""Metrics that are not means over items."""


def some_slow(names: Iterable[Any], everyday: Iterable[Any] = KINDS) -> list[Any]:
    """Return the parameters of a test; all but a few are marked as slow."""
    kept = set(everyday)
    return [name if name in kept else pytest.param(name, marks=pytest.mark.slow) for name in names]


LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How Llama 3, Qwen 2 and DeepSeek split a text: newlines go with the punctuation before them."""


def merging_tokenizer(texts: Iterable[str], path: Path) -> Path:
    """Write a tokenizer.json that has a token for a full stop with the newline after it."""
    inner = tokenizers.Tokenizer(tokenizers.models.BPE())
    split = pre_tokenizers.Split(tokenizers.Regex(LLAMA_3), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    inner.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=700,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<s>", "</s>"],
        show_progress=False,
    )
    inner.train_from_iterator([f"{text}\n" for text in texts] * 20, trainer)
    inner.save(str(path))
    return path


def make_task(
    cls: type[AnyTask],
    folder: Path,
    preset: str = "quick",
    *,
    protocol: str = "strict",
    tokenizer: str = "bytes",
    data: Path | None = None,
    subsets: tuple[str, ...] | None = None,
    train: Mapping[str, Any] | None = None,
    **options: Any,
) -> AnyTask:
    """Make a task as the command line would.

    Args:
        cls: the task's class.
        folder: its cache.
        preset, protocol, tokenizer, data, subsets: as in `TaskContext`.
        train: values that differ from the preset's training phase.
        **options: values that differ from the preset's options.
    """
    context = TaskContext(
        preset=preset,
        protocol=protocol,
        train=replace(cls.presets[preset].train, **train or {}),
        data=data,
        tokenizer=tokenizer,
        cache=folder,
        subsets=subsets,
    )
    return cls.make(context, **options)


def train_model(
    model: Decoder,
    batch: Callable[[int], Batch],
    config: TrainConfig,
    folder: Path,
    precision: str = "fp32",
    **more: Any,
) -> TrainingResult:
    """Train a model in float32 on the CPU, with a folder for its checkpoints."""
    training = Training(model, batch, config, 5, "cpu", precision, "test")
    return ensure_trained(training, CheckpointStore(folder, "test"), **more)


def weights(model: Decoder) -> Tensor:
    """Return all parameters, one after the other: (N,)."""
    return torch.cat([p.detach().flatten() for p in model.parameters()])


class Memory(Journal):
    """A journal without a file."""

    def __init__(self) -> None:
        self.items = {}

    def add(self, items: Mapping[str, Any]) -> None:
        self.items.update(json.loads(json.dumps(items)))


class Oracle(Decoder):
    """A decoder that knows the answers.

    Args:
        answer: maps the ids of a row to the id that the model writes after each of them; ids
            beyond the row are ignored, and 0 is written where the list ends early.
        vocab_size: larger than all ids.
        prefix_consistent: declaration of its encoding.

    Attributes:
        seen: shape of the tokens of every forward pass.
    """

    def __init__(
        self,
        answer: Callable[[list[int]], list[int]],
        *,
        vocab_size: int = 512,
        prefix_consistent: bool = True,
    ) -> None:
        super().__init__(
            ModelConfig(layers=1, heads=1, width=vocab_size, mlp_width=1, vocab_size=vocab_size),
            Encoding,
        )
        self.answer = answer
        self.encoding.prefix_consistent = prefix_consistent
        self.seen: list[tuple[int, ...]] = []
        nn.init.eye_(self.lm_head.weight)
        self.eval()

    def hidden(self, tokens: Tensor, cache: Cache | None = None, *_: Any, **__: Any) -> Tensor:
        """Return the answers, one-hot: (B, T, vocab_size)."""
        self.seen.append(tuple(tokens.shape))
        if cache is not None:
            cache.begin(tokens)
            cache.end(tokens.shape[1])
        ids = torch.zeros_like(tokens)
        for row, given in enumerate(tokens.tolist()):
            written = torch.tensor(self.answer(given)[: len(given)], dtype=torch.long)
            ids[row, : len(written)] = written
        # `one_hot` would first make a tensor of integers, which is twice as large.
        found = torch.zeros(*ids.shape, self.config.vocab_size)  # (B, T, V)
        return found.scatter_(-1, ids[..., None], 1.0)


def answer_after(prompt: int, answer: list[int]) -> list[int]:
    """Return the answer function of an oracle for prompts of a given number of tokens."""
    return [0] * (prompt - 1) + answer


def measure(task: Task, model: Decoder | Mapping[str, Decoder], folder: Path) -> list[Measurement]:
    """Return the rows of all subsets, and check that an interrupted run finds all of them.

    Args:
        task: the task to evaluate.
        model: one for all subsets, or one for each.
        folder: folder of the journals.
    """
    rows: list[Measurement] = []
    for subset in task.subsets:
        trained = model if isinstance(model, Decoder) else model[subset]
        found = task.evaluate(trained, subset, 0, Journal(folder / subset))
        again = Oracle(_refuse)
        again.encoding.max_position = trained.encoding.max_position
        assert found == task.evaluate(again, subset, 0, Journal(folder / subset))
        rows += found.rows
    return rows


def check_items(rows: list[Measurement], items: list[Items], folder: Path) -> None:
    """Check that the stored items give the value of every row."""
    write_items(folder / "items.parquet", items)
    values = recompute(read_items(folder / "items.parquet"))
    for row in rows:
        place = RowKey(row.subset, row.metric, row.length, row.second_axis)
        if row.metric in NO_MEANS:
            assert place not in values
        else:
            assert values.pop(place) == pytest.approx(row.value, rel=1e-5, abs=1e-5)
    assert not values  # no unknown rows


def cells_by_mean(
    task: LengthGeneralizationTask, subset: str = "cells"
) -> dict[str, list[tuple[int, str]]]:
    """Return length and second axis of the cells of each mean of a subset."""
    found: dict[str, list[tuple[int, str]]] = {}
    for cell in task.eval_points(subset):
        for name in task.group_names(subset, cell):
            found.setdefault(name, []).append((cell.length, cell.second_axis))
    return found


def lengths_by_mean(task: LengthGeneralizationTask, subset: str = "cells") -> dict[str, list[int]]:
    """Return the lengths of the cells of each mean of a subset."""
    cells = cells_by_mean(task, subset)
    return {name: [length for length, _ in places] for name, places in cells.items()}


def means(
    task: Task, rows: list[Measurement], metric: str = "exact_match"
) -> dict[str, Measurement]:
    """Return the summary rows of a metric without a length, by subset."""
    summary = [row for row in task.summarize(rows) if row.metric == metric]
    return {row.subset: row for row in summary if row.length is None and not row.second_axis}


def _refuse(_: list[int]) -> list[int]:
    raise AssertionError("a value of the journal was measured again")
