"""How many sequences a model gets exactly right, from one forward pass where that is exact."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from pe_bench.decoder.model import Decoder
from pe_bench.sequences.rows import Ids, Mask, Sequences


@dataclass(frozen=True)
class Answers:
    """What a model made of some sequences.

    Attributes:
        exact: (N,) every scored token is right, the end included.
        share: (N,) share of the scored tokens that are right; where an answer was generated, those
            before its first mistake.
        forward_tokens: tokens that went through the model, padding included.
        padding: the same as a multiple of the tokens there are.
    """

    exact: Mask
    share: npt.NDArray[np.float64]
    forward_tokens: int
    padding: float


@torch.inference_mode()
def answer(
    model: Decoder, sequences: Sequences, *, free: bool = True, budget: int = 16_384
) -> Answers:
    """Greedy exact match.

    A deterministic model whose outputs do not depend on what follows writes exactly the right
    answer if and only if each of its tokens is likeliest after the right ones before it: one
    forward pass tells, without generating (by induction over the answer; ties go to the smallest
    id in both). Where outputs depend on the length, the answers are generated, each up to its first
    mistake.

    Args:
        model: in evaluation mode.
        sequences: prompts and right answers; the answer ends the row if `free`.
        free: the model has to go on from its own tokens. False where the scored tokens are
            scattered over a given text, so that one pass is what is asked for.
        budget: tokens per forward pass.
    """
    consistent = model.encoding.prefix_consistent
    order = np.argsort(sequences.lengths, kind="stable")
    exact = np.zeros(len(sequences), dtype=np.bool_)
    share = np.zeros(len(sequences))
    tokens = 0
    for rows in _batches(sequences.lengths[order], budget, even=not consistent):
        chosen = order[rows]
        some = sequences.take(chosen)
        right, used = (_generated if free and not consistent else _forced)(model, some)
        counts = some.scored.sum(1)
        share[chosen] = (right & some.scored).sum(1) / counts
        exact[chosen] = (right | ~some.scored).all(1)
        tokens += used
    return Answers(exact, share, tokens, tokens / max(1, int((sequences.lengths - 1).sum())))


def decoding_tokens(sequences: Sequences) -> int:
    """Tokens that decoding without a cache would send through a model."""
    answers = sequences.scored.sum(1)
    prompts = sequences.lengths - answers
    return int((answers * prompts + answers * (answers - 1) // 2).sum())


def _batches(lengths: Ids, budget: int, even: bool) -> Iterator[npt.NDArray[np.int64]]:
    """Rows that share a forward, shortest first; only of one length if `even`."""
    start = 0
    while start < len(lengths):
        stop = start + 1
        while (
            stop < len(lengths)
            and (stop + 1 - start) * lengths[stop] <= budget
            and (lengths[stop] == lengths[start] or not even)
            and lengths[stop] <= 1.2 * lengths[start]
        ):
            stop += 1
        yield np.arange(start, stop)
        start = stop


def _forced(model: Decoder, some: Sequences) -> tuple[Mask, int]:
    """Which tokens are likeliest after the right ones: (N, longest), and tokens used."""
    device = model.lm_head.weight.device
    tokens = torch.from_numpy(some.ids[:, :-1].copy()).to(device)
    wanted = torch.from_numpy(some.scored[:, 1:].copy()).to(device)
    likeliest = torch.zeros(tokens.shape, dtype=torch.long, device=device)
    likeliest[wanted] = model.lm_head(model.hidden(tokens)[wanted]).argmax(-1)
    right = np.zeros(some.ids.shape, dtype=np.bool_)
    right[:, 1:] = likeliest.cpu().numpy() == some.ids[:, 1:]
    return right, tokens.numel()


def _generated(model: Decoder, some: Sequences) -> tuple[Mask, int]:
    """The same of answers that the model has written itself; nothing after a first wrong token.

    Every token takes a forward pass over all before it: what held for a shorter sequence need not
    for a longer one. As long as an answer is right, its own tokens are the right ones, and where it
    is not, no more has to be known.
    """
    device = model.lm_head.weight.device
    ids = torch.from_numpy(some.ids).to(device)
    counts = some.scored.sum(1)
    right = np.zeros(some.ids.shape, dtype=np.bool_)
    used = 0
    for start in np.unique(some.lengths - counts):
        rows = np.flatnonzero(some.lengths - counts == start)
        for column in range(start, some.ids.shape[1]):
            rows = rows[some.lengths[rows] > column]
            if not len(rows):
                break
            likeliest = model.lm_head(model.hidden(ids[rows, :column])[:, -1]).argmax(-1)
            right[rows, column] = likeliest.cpu().numpy() == some.ids[rows, column]
            used += len(rows) * int(column)
            rows = rows[right[rows, column]]
    return right, used
