"""Count correct answers, from a single forward pass for models where this is exact."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pe_bench.config import IGNORE
from pe_bench.decoder.generation import NotFiniteError, largest
from pe_bench.decoder.model import Decoder
from pe_bench.errors import InputError
from pe_bench.results.intervals import Numbers
from pe_bench.sequences.rows import Mask, Sequences
from pe_bench.text.tokenizer import TokenIds

MAX_TOKENS = 16_384  # per forward pass
TEACHER_FORCED = {"token_accuracy", "accuracy"}  # metrics that need the tokens after a mistake


@dataclass(frozen=True)
class Scores:
    """The scores of a model on some rows.

    Attributes:
        exact: (N,) 1 where every scored token is correct, the end included, else 0. A task that
            scores items itself may give partial credit.
        counts: (N,) number of scored tokens.
        leading: (N,) number of scored tokens before the first wrong one.
        correct: (N,) number of correct tokens under teacher forcing; None if the answers were
            generated instead.
        forward_tokens: number of tokens that went through the model, padding included.
    """

    exact: Numbers
    counts: TokenIds
    leading: Numbers
    correct: Numbers | None = None
    forward_tokens: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the journal entry of the items."""
        content: dict[str, Any] = {"forward_tokens": self.forward_tokens}
        for name in ("exact", "counts", "leading", "correct"):
            numbers = getattr(self, name)
            content[name] = None if numbers is None else _plain(numbers)
        return content

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Scores":
        """Return the scores written by `to_json`."""
        arrays: dict[str, Any] = {}
        for name in ("exact", "counts", "leading", "correct"):
            arrays[name] = None if content[name] is None else np.array(content[name])
        return cls(**arrays, forward_tokens=content["forward_tokens"])

    def split(self, sizes: Sequence[int]) -> list["Scores"]:
        """Split the scores into consecutive parts; the first part gets all `forward_tokens`."""
        parts: list[Scores] = []
        start = 0
        for size in sizes:
            rows = slice(start, start + size)
            correct = None if self.correct is None else self.correct[rows]
            tokens = 0 if parts else self.forward_tokens
            part = Scores(self.exact[rows], self.counts[rows], self.leading[rows], correct, tokens)
            parts.append(part)
            start += size
        return parts


def _plain(numbers: Numbers) -> list[Any]:
    """Return numbers as a list, whole ones as integers if all are whole."""
    array = np.asarray(numbers)
    whole = array.astype(np.int64)
    plain: list[Any] = (whole if (whole == array).all() else array).tolist()
    return plain


SCORED = ("exact_match", "token_accuracy", "accuracy", "correct_prefix", "string_match_all")
"""The metrics of `item_scores`."""


def item_scores(metric: str, scores: Scores) -> tuple[Numbers, Numbers]:
    """Return each item's contribution to the sum of a metric, and its weight, both (N,).

    | metric | percentage |
    |---|---|
    | `exact_match` | items with all scored tokens correct |
    | `token_accuracy` | correct tokens of an item under teacher forcing, mean over items |
    | `accuracy` | correct tokens of all items together under teacher forcing |
    | `correct_prefix` | tokens of an item before its first mistake, mean over items |
    | `string_match_all` | answers of an item that occur in the output, mean over items |

    Raises:
        InputError: another metric.
    """
    ones = np.ones(len(scores.counts), dtype=np.int64)
    if metric == "exact_match":
        return scores.exact, ones
    if metric == "correct_prefix":
        return scores.leading / scores.counts, ones
    assert scores.correct is not None
    if metric in ("token_accuracy", "string_match_all"):
        return scores.correct / scores.counts, ones
    if metric == "accuracy":
        return scores.correct, scores.counts
    raise InputError(f"there is no metric '{metric}': choose from {', '.join(SCORED)}")


@torch.inference_mode()
def exact_match(model: Decoder, sequences: Sequences, *, max_tokens: int = MAX_TOKENS) -> Scores:
    """Score answers as greedy decoding would generate them, with the number of tokens given.

    If the outputs of a deterministic model do not depend on later tokens, the model generates
    exactly the right answer if and only if each of its tokens is the likeliest one after the right
    tokens before it (by induction over the answer; ties go to the smallest id in both cases). One
    forward pass is then enough. If outputs depend on the sequence length, each answer is generated
    up to its first mistake.

    Args:
        model: model in evaluation mode.
        sequences: prompts with their answers at the end of the rows.
        max_tokens: tokens per forward pass.

    Raises:
        NotFiniteError: logits are not finite.
    """
    if model.encoding.prefix_consistent:
        return teacher_forced(model, sequences, max_tokens=max_tokens)
    leading = np.zeros(len(sequences), dtype=np.int64)
    forward_tokens = 0
    for rows in _batches(sequences, max_tokens, same_length=True):
        correct, used = _generated(model, sequences.take(rows))  # (B, T)
        leading[rows] = correct.sum(1)  # generation stops at the first wrong token
        forward_tokens += used
    counts = sequences.scored.sum(1)
    return Scores(leading == counts, counts, leading, forward_tokens=forward_tokens)


@torch.inference_mode()
def teacher_forced(model: Decoder, sequences: Sequences, *, max_tokens: int = MAX_TOKENS) -> Scores:
    """Score every token under teacher forcing: each is predicted after the correct tokens.

    Args:
        model: model in evaluation mode.
        sequences: rows with scored tokens anywhere except at their beginning.
        max_tokens: tokens per forward pass.

    Raises:
        NotFiniteError: logits are not finite.
    """
    same_length = not model.encoding.prefix_consistent
    leading = np.zeros(len(sequences), dtype=np.int64)
    correct = np.zeros(len(sequences), dtype=np.int64)
    forward_tokens = 0
    for rows in _batches(sequences, max_tokens, same_length):
        part = sequences.take(rows)
        tokens, targets = part.batch()
        predicted = _predicted(model, tokens, targets != IGNORE, part.lengths)  # (B, T)
        leading[rows], correct[rows] = count_correct(predicted, targets.numpy())
        forward_tokens += tokens.numel()
    counts = sequences.scored.sum(1)
    return Scores(leading == counts, counts, leading, correct, forward_tokens)


def count_correct(predicted: TokenIds, targets: TokenIds) -> tuple[TokenIds, TokenIds]:
    """Return for each row the number of tokens before the first wrong one and of correct tokens.

    Args:
        predicted: (N, T) predicted ids.
        targets: (N, T) expected ids, IGNORE where nothing is scored.
    """
    scored = targets != IGNORE
    wrong = scored & (predicted != targets)
    return (scored & (wrong.cumsum(1) == 0)).sum(1), (scored & ~wrong).sum(1)


def decoding_tokens(sequences: Sequences) -> int:
    """Return the number of tokens that decoding without a cache would send through a model."""
    answers = sequences.scored.sum(1)
    prompts = sequences.lengths - answers
    return int((answers * prompts + answers * (answers - 1) // 2).sum())


def _batches(sequences: Sequences, max_tokens: int, same_length: bool) -> Iterator[TokenIds]:
    """Yield the rows that share a forward pass, shortest first.

    Args:
        sequences: the rows.
        max_tokens: maximum number of tokens per forward pass.
        same_length: whether all rows of a forward pass must have the same length.
    """
    order = np.argsort(sequences.lengths, kind="stable")
    lengths = sequences.lengths[order]
    start = 0
    while start < len(lengths):
        stop = start + 1
        while (
            stop < len(lengths)
            and (stop + 1 - start) * lengths[stop] <= max_tokens
            and (lengths[stop] == lengths[start] or not same_length)
            and lengths[stop] <= 1.2 * lengths[start]
        ):
            stop += 1
        yield order[start:stop]
        start = stop


def _predicted(model: Decoder, tokens: Tensor, scored: Tensor, lengths: TokenIds) -> TokenIds:
    """Return the likeliest next id at each scored position and 0 elsewhere, (B, T).

    `tokens` and `scored` are (B, T). `lengths` (B,) are the lengths of the finished rows.
    """
    device = model.lm_head.weight.device
    scored = scored.to(device)
    predicted = torch.zeros(tokens.shape, dtype=torch.long, device=device)
    hidden = model.hidden(tokens.to(device), final_lengths=torch.from_numpy(lengths))  # (B, T, C)
    predicted[scored], finite = largest(model.logits(hidden[scored]))
    if not bool(finite.all()):
        columns = scored.nonzero()[:, 1]
        raise NotFiniteError(int(columns[~finite].min()) + 1)
    return predicted.cpu().numpy()


def _generated(model: Decoder, part: Sequences) -> tuple[Mask, int]:
    """Return which tokens (B, T) the model generates correctly before the first mistake of a row.

    Every token needs a forward pass over all tokens before it, because outputs for a shorter
    sequence may differ from outputs for a longer one. The correct tokens serve as input: they equal
    the generated ones until the first mistake, and later tokens do not matter.
    """
    device = model.lm_head.weight.device
    ids = torch.from_numpy(part.ids).to(device)  # (B, T)
    prompts = part.lengths - part.scored.sum(1)  # (B,)
    correct = np.zeros(part.ids.shape, dtype=np.bool_)
    used = 0
    for start in np.unique(prompts):
        rows = np.flatnonzero(prompts == start)
        for column in range(start, part.ids.shape[1]):
            rows = rows[part.lengths[rows] > column]
            if not len(rows):
                break
            final_lengths = torch.from_numpy(part.lengths[rows])
            hidden = model.hidden(ids[rows, :column], final_lengths=final_lengths)
            predicted, finite = largest(model.logits(hidden[:, -1]))  # (B,)
            if not bool(finite.all()):
                raise NotFiniteError(int(column))
            correct[rows, column] = predicted.cpu().numpy() == part.ids[rows, column]
            used += len(rows) * int(column)
            rows = rows[correct[rows, column]]
    return correct, used
