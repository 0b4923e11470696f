"""How many answers a model gets exactly right, from one forward pass where that is exact."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from pe_bench.decoder.model import Decoder
from pe_bench.sequences.rows import Mask, Sequences
from pe_bench.text.tokenizer import TokenIds

MAX_TOKENS = 16_384  # of a forward pass


@dataclass(frozen=True)
class Scores:
    """How a model did on some rows.

    Attributes:
        exact: (N,) whether every scored token is correct, the end included.
        counts: (N,) scored tokens.
        correct: (N,) scored tokens that are predicted after the correct ones before them (teacher
            forcing); None where the answers were generated instead.
        forward_tokens: tokens that went through the model, padding included.
    """

    exact: Mask
    counts: TokenIds
    correct: TokenIds | None
    forward_tokens: int

    def split(self, sizes: Sequence[int]) -> list["Scores"]:
        """Return the scores of consecutive rows; the first part carries `forward_tokens`."""
        parts: list[Scores] = []
        start = 0
        for size in sizes:
            rows = slice(start, start + size)
            correct = None if self.correct is None else self.correct[rows]
            tokens = 0 if parts else self.forward_tokens
            parts.append(Scores(self.exact[rows], self.counts[rows], correct, tokens))
            start += size
        return parts


@torch.inference_mode()
def exact_match(model: Decoder, sequences: Sequences, *, max_tokens: int = MAX_TOKENS) -> Scores:
    """Score answers as greedy decoding would write them.

    A deterministic model whose outputs do not depend on what follows writes exactly the right
    answer if and only if each of its tokens is likeliest after the right ones before it: one
    forward pass tells, without generating (by induction over the answer; ties go to the smallest
    id in both). Where outputs depend on the length, the answers are generated, each up to its first
    mistake.

    Args:
        model: in evaluation mode.
        sequences: prompts with their answers, which end the rows.
        max_tokens: tokens per forward pass.
    """
    if model.encoding.prefix_consistent:
        return teacher_forced(model, sequences, max_tokens=max_tokens)
    exact = np.zeros(len(sequences), dtype=np.bool_)
    forward_tokens = 0
    for rows in _batches(sequences, max_tokens, same_length=True):
        part = sequences.take(rows)
        correct, used = _generated(model, part)  # (B, T)
        exact[rows] = (correct | ~part.scored).all(1)
        forward_tokens += used
    return Scores(exact, sequences.scored.sum(1), None, forward_tokens)


@torch.inference_mode()
def teacher_forced(model: Decoder, sequences: Sequences, *, max_tokens: int = MAX_TOKENS) -> Scores:
    """Score every token as predicted after the correct ones before it.

    Args:
        model: in evaluation mode.
        sequences: rows with scored tokens anywhere but at their beginning.
        max_tokens: tokens per forward pass.
    """
    same_length = not model.encoding.prefix_consistent
    exact = np.zeros(len(sequences), dtype=np.bool_)
    n_correct = np.zeros(len(sequences), dtype=np.int64)
    forward_tokens = 0
    for rows in _batches(sequences, max_tokens, same_length):
        part = sequences.take(rows)
        correct, used = _predicted(model, part)  # (B, T)
        exact[rows] = (correct | ~part.scored).all(1)
        n_correct[rows] = (correct & part.scored).sum(1)
        forward_tokens += used
    return Scores(exact, sequences.scored.sum(1), n_correct, forward_tokens)


def decoding_tokens(sequences: Sequences) -> int:
    """Return how many tokens decoding without a cache would send through a model."""
    answers = sequences.scored.sum(1)
    prompts = sequences.lengths - answers
    return int((answers * prompts + answers * (answers - 1) // 2).sum())


def _batches(sequences: Sequences, max_tokens: int, same_length: bool) -> Iterator[TokenIds]:
    """Yield the rows that share a forward pass, shortest first.

    Args:
        sequences: of them.
        max_tokens: tokens per forward pass.
        same_length: whether rows of unequal length may not share one.
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


def _predicted(model: Decoder, part: Sequences) -> tuple[Mask, int]:
    """Return which tokens are likeliest after the correct ones, (B, T), and the tokens used."""
    device = model.lm_head.weight.device
    tokens = torch.from_numpy(part.ids[:, :-1].copy()).to(device)  # (B, T - 1)
    scored = torch.from_numpy(part.scored[:, 1:].copy()).to(device)  # (B, T - 1)
    predicted = torch.zeros(tokens.shape, dtype=torch.long, device=device)
    predicted[scored] = model.lm_head(model.hidden(tokens)[scored]).argmax(-1)
    correct = np.zeros(part.ids.shape, dtype=np.bool_)
    correct[:, 1:] = predicted.cpu().numpy() == part.ids[:, 1:]
    return correct, tokens.numel()


def _generated(model: Decoder, part: Sequences) -> tuple[Mask, int]:
    """Return the same of answers that the model writes itself, False after a first wrong token.

    Every token takes a forward pass over all before it: what held for a shorter sequence need not
    for a longer one. As long as an answer is correct, its own tokens are the correct ones, and
    where it is not, no more has to be known.
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
            predicted = model.lm_head(model.hidden(ids[rows, :column])[:, -1]).argmax(-1)
            correct[rows, column] = predicted.cpu().numpy() == part.ids[rows, column]
            used += len(rows) * int(column)
            rows = rows[correct[rows, column]]
    return correct, used
