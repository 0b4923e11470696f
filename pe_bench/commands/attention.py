"""`pe-bench attention`: figures of the attention weights of a trained model."""

import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pe_bench.commands.command import Command, OptionGroup, results_option
from pe_bench.commands.values import Values
from pe_bench.errors import InputError
from pe_bench.option_table import argument, check_values, option
from pe_bench.results.layout import RECORD
from pe_bench.runs.options import MovedPaths, RunOptions, read_data
from pe_bench.system.console import info

if TYPE_CHECKING:
    from pe_bench.pretrained.checkpoint import Checkpoint
    from pe_bench.results.record import RunRecord
    from pe_bench.runs.shown_row import ShownRow
    from pe_bench.task import Task

ENDINGS = (".png", ".svg", ".pdf")


@dataclass(frozen=True)
class AttentionOptions:
    """The options of `pe-bench attention`."""

    model: str = argument("folder of a run, encoding/task/seed, or a Hugging Face folder", "MODEL")
    results: Path = results_option("results folder with encoding/task/seed; default: ./results")
    subset: str | None = option(
        None, "subset of the item, and of the model if each subset has its own", metavar="NAME"
    )
    length: int | None = option(
        None, "length of the item; default: the shortest length out of distribution", least=1
    )
    item: int = option(0, "index of the item of this length; default: 0")
    text: str | None = option(
        None, "show this text, after a BOS, instead of an item; needs a model of text"
    )
    layers: tuple[int, ...] | None = option(
        None, "indices of layers, from 0; default: all", metavar="N"
    )
    heads: tuple[int, ...] | None = option(
        None, "indices of heads, from 0; default: all", metavar="N"
    )
    out: tuple[Path, ...] | None = option(
        None, "figures to write, .png, .svg or .pdf; default: attention-MODEL.png", metavar="FILE"
    )
    task: str | None = option(
        None, "for a Hugging Face folder: the task whose item is shown; for a run: the path "
        "of the task's file, if it has moved", metavar="SPEC",
    )  # fmt: skip
    preset: str | None = option(
        None, "preset of that task, for a Hugging Face folder; default: quick"
    )
    encoding: str | None = option(
        None, "file of your own encoding; not needed if it is shipped", metavar="FILE"
    )
    data: Mapping[str, Path] = option(
        dict, "path of the data, as in run, if they have moved", metavar="DIR", read=read_data
    )

    def __post_init__(self) -> None:
        check_values(self, "--")


def main(values: Values) -> int:
    """Draw the maps of one row of tokens, and print the names of the files."""
    options = values.make(AttentionOptions)
    _check(options, values.given)
    folder = Path(options.model)
    if (folder / "config.json").is_file() and not (folder / RECORD).exists():
        checkpoint, row, names = _of_folder(folder, options)
    else:
        checkpoint, row, names = _of_run(options)
    layers = _choose("layers", options.layers, checkpoint.model.layers)
    heads = _choose("heads", options.heads, checkpoint.model.heads)
    for path in _draw(checkpoint, row, names, layers, heads, options):
        info(f"{path}")
    return 0


def _check(options: AttentionOptions, given: Collection[str]) -> None:
    """Check options that need no model.

    Raises:
        InputError: an option is wrong, or has no effect together with another one.
    """
    for path in options.out or ():
        if path.suffix.lower() not in ENDINGS:
            raise InputError(f"{path}: a figure's name ends in .png, .svg or .pdf")
    for name in ("length", "item", "task", "preset", "data"):
        if options.text is not None and name in given:
            raise InputError(f"--{name} has no effect with --text: leave one of them out")


def _of_folder(folder: Path, options: AttentionOptions) -> "tuple[Checkpoint, ShownRow, list[str]]":
    """Return a Hugging Face folder, the row to show, and the names of the model."""
    from pe_bench.pretrained.checkpoint import open_checkpoint
    from pe_bench.runs.factory import RunFactory
    from pe_bench.runs.shown_row import row_of_task, row_of_text

    checkpoint = open_checkpoint(folder)
    name = folder.resolve().name
    if options.text is not None:
        if options.subset is not None:
            raise InputError("--subset has no effect with --text: leave one of them out")
        return checkpoint, row_of_text(options.text, checkpoint.tokenizer()), [name]
    if options.task is None:
        raise InputError(
            f"{folder} does not say which task its model was trained on: give --task, or --text"
        )
    has_tokenizer = (folder / "tokenizer.json").is_file()
    factory = RunFactory(
        RunOptions(
            preset=options.preset or RunOptions.preset,
            data=options.data,
            origin=str(folder) if has_tokenizer else None,
        )
    )
    task = factory.task(options.task).task
    _check_vocabulary(task, checkpoint)
    return (
        checkpoint,
        row_of_task(task, options.subset, options.length, options.item),
        [name, task.name],
    )


def _of_run(options: AttentionOptions) -> "tuple[Checkpoint, ShownRow, list[str]]":
    """Return the model that a run has kept, the row to show, and the names of the model."""
    from pe_bench.pretrained.checkpoint import open_checkpoint
    from pe_bench.results.store import find_run
    from pe_bench.runs.rebuild import rebuild
    from pe_bench.runs.shown_row import row_of_task, row_of_text

    if options.preset is not None:
        raise InputError("--preset has no effect on a run, which has its own: leave it out")
    record = find_run(options.model, options.results)
    folder = _find_model(record, options.subset)
    checkpoint = open_checkpoint(folder)
    names = [record.encoding, record.task, f"seed {record.seed}"]
    if options.text is not None:
        return checkpoint, row_of_text(options.text, checkpoint.tokenizer()), names
    moved = MovedPaths(encoding=options.encoding, task=options.task, data=options.data)
    with tempfile.TemporaryDirectory(prefix="pe-bench-attention-") as scratch:
        task = rebuild(record, Path(scratch), moved)[0].task
        _check_vocabulary(task, checkpoint)
        subset = options.subset or _subset_of(folder, task)
        return checkpoint, row_of_task(task, subset, options.length, options.item), names


def _find_model(record: "RunRecord", subset: str | None) -> Path:
    """Return the folder of the model that a run has kept, for all subsets or for this one."""
    from pe_bench.runs.trained_models import find_kept, is_kept, model_folder

    if record.folder is not None and is_kept(model_folder(record.folder, None)):
        return model_folder(record.folder, None)
    return find_kept(record, subset)


def _subset_of(folder: Path, task: "Task") -> str | None:
    """Return the subset that the model in a folder was trained for; None: all subsets."""
    from pe_bench.system.files import slug

    named = [subset for subset in task.subsets if slug(subset) == folder.name]
    return named[0] if task.trains_each_subset and named else None


def _check_vocabulary(task: "Task", checkpoint: "Checkpoint") -> None:
    """Raise InputError if the ids of a task are not those of a model."""
    size = task.vocabulary.vocab_size
    if size != checkpoint.model.vocab_size:
        raise InputError(
            f"{task.name} has {size:,} token ids and the model has "
            f"{checkpoint.model.vocab_size:,}: give the task and the preset of its training"
        )


def _choose(name: str, wanted: Sequence[int] | None, count: int) -> list[int]:
    """Return the chosen layers or heads in ascending order; by default all.

    Raises:
        InputError: one of them does not exist.
    """
    for index in wanted or ():
        if index >= count:
            raise InputError(
                f"--{name}: the model has {name} 0 to {count - 1}, and no {name[:-1]} {index}"
            )
    return list(range(count)) if wanted is None else sorted(set(wanted))


def _draw(
    checkpoint: "Checkpoint",
    row: "ShownRow",
    names: Sequence[str],
    layers: Sequence[int],
    heads: Sequence[int],
    options: AttentionOptions,
) -> list[Path]:
    """Compute the weights, write the figures, and return their paths."""
    import torch

    from pe_bench.reporting.attention_maps import (
        AttentionMaps,
        describe_train_length,
        draw_attention,
    )
    from pe_bench.reporting.panels import save
    from pe_bench.system.files import slug

    model = checkpoint.load(_encoding(checkpoint, options.encoding))
    with torch.inference_mode():
        weights = model.attention_weights(torch.tensor([list(row.ids)]))  # (1, H, T, T) each
    train_length = checkpoint.model.train_length
    titles = [
        f"Attention weights of {' · '.join(names)}",
        f"{row.about}: {len(row.ids):,} tokens in all",
        describe_train_length(train_length, len(row.ids)),
    ]
    maps = AttentionMaps(
        {layer: weights[layer][0].float().numpy() for layer in layers},
        row.names,
        train_length,
        titles,
    )
    figure = draw_attention(maps, heads)
    paths = list(options.out or (Path(f"attention-{'-'.join(map(slug, names))}.png"),))
    save(figure, paths)
    return paths


def _encoding(checkpoint: "Checkpoint", file: str | None) -> str | None:
    """Return the spec of the encoding of a model; None: the one that the folder names.

    Raises:
        InputError: the file is not that of the model's encoding.
    """
    from pe_bench.registry import plugins

    if file is None:
        return None
    stored = checkpoint.config.encoding
    _, colon, its_options = stored.partition(":")
    given = f"{file}{colon}{its_options}"
    label = plugins.load("encoding", given).label
    if label != stored:
        raise InputError(f"{file} is {label}, but the model has {stored or checkpoint.encoding}")
    return given


COMMAND = Command(
    name="attention",
    main=main,
    help="figures of the attention weights of a trained model",
    usage="pe-bench attention MODEL [options]",
    description="""\
Draw the attention weights of a trained model for one evaluation item of its task, or for a text:
a map for each layer and head, with queries from the top and keys from the left. MODEL is a run
with --keep, a folder of `pe-bench checkpoint` or `save_checkpoint`, or another model that --from
reads. Dashed lines mark the training length. The axes show the tokens if there are at most 40.""",
    groups=[OptionGroup(AttentionOptions)],
)
