"""One row of tokens to show a trained model: an evaluation item of a task, or a text."""

from collections.abc import Sequence
from dataclasses import dataclass

from pe_bench.errors import InputError
from pe_bench.results.splits import OOD
from pe_bench.sequences.eval_points import EvalPoint
from pe_bench.sequences.length_generalization import LengthGeneralizationTask
from pe_bench.task import Task, Vocabulary
from pe_bench.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class ShownRow:
    """A row of tokens.

    Attributes:
        ids: token ids, (T,).
        names: the text of each token, or its id as text.
        about: source of the row, for titles.
    """

    ids: Sequence[int]
    names: Sequence[str]
    about: str


def row_of_text(text: str, tokenizer: Tokenizer) -> ShownRow:
    """Return the row of a text, which begins with BOS as training rows on text do.

    Raises:
        InputError: the text is empty.
    """
    if not text:
        raise InputError("the text is empty: write at least one character after --text")
    ids = [tokenizer.bos, *map(int, tokenizer.encode(text))]
    return ShownRow(ids, name_tokens(ids, tokenizer), "a text")


def row_of_task(
    task: Task, subset: str | None = None, length: int | None = None, item: int = 0
) -> ShownRow:
    """Return an evaluation item of a task: the prompt, and the answer if the row contains it.

    Args:
        task: the task.
        subset: subset of the item; None: the first one.
        length: length on the axis of the task; None: the shortest length out of distribution, or
            the shortest of all if the subset has none.
        item: index of the item.

    Raises:
        InputError: the task, subset, length or item does not exist or has no such rows.
    """
    if not isinstance(task, LengthGeneralizationTask):
        raise InputError(f"{task.name} does not generate rows: give a text with --text")
    if subset is not None and subset not in task.subsets:
        raise InputError(f"there is no subset '{subset}'; there are {', '.join(task.subsets)}")
    subset = subset or task.subsets[0]
    point = _find_point(task, subset, length)
    rows = task.items(subset, point)
    if item >= len(rows):
        raise InputError(f"--item must be below {len(rows)}, the number of items, not {item}")
    ids = [int(token) for token in rows.ids[item, : rows.lengths[item]]]
    about = f"{subset}, {point.length:,} {task.axes['length']}"
    if point.second_axis:
        about += f", {point.second_axis} {task.axes['second']}"
    return ShownRow(ids, name_tokens(ids, task.vocabulary), f"{about}, item {item}")


def _find_point(task: LengthGeneralizationTask, subset: str, length: int | None) -> EvalPoint:
    """Return the first evaluation point of a length, see `row_of_task`."""
    points = task.eval_points(subset)
    lengths = sorted({point.length for point in points})
    if length is None:
        later = [point.length for point in points if point.split == OOD]
        length = min(later or lengths)
    found = [point for point in points if point.length == length]
    if not found:
        known = ", ".join(map(str, lengths))
        raise InputError(f"{task.name} has no items of length {length}; there are {known}")
    return found[0]


def name_tokens(ids: Sequence[int], vocabulary: Vocabulary | Tokenizer) -> list[str]:
    """Return the text of each token; its id if it has no text."""
    if not isinstance(vocabulary, Tokenizer):
        return [str(token) for token in ids]
    special = {
        vocabulary.pad: "<pad>",
        vocabulary.sep: "<sep>",
        vocabulary.eos: "<eos>",
        vocabulary.bos: "<bos>",
    }
    names = []
    for token in ids:
        text = special.get(token) or vocabulary.decode([token])
        # Spaces and newlines would be invisible on an axis.
        text = text.replace(" ", "\N{OPEN BOX}")
        if not text.isprintable():
            text = text.encode("unicode_escape").decode()
        names.append(text or str(token))
    return names
