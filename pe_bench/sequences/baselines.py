"""Baselines without a model: counts of the training batches, used as predictors.

A task that a baseline solves says nothing about a model. To score above all baselines, a model has
to use tokens further back in the context, and so perhaps their positions.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pe_bench.config import IGNORE
from pe_bench.errors import InputError
from pe_bench.results.baselines import CHANCE
from pe_bench.sequences.rows import Mask
from pe_bench.sequences.scoring import Scores
from pe_bench.task import Batch
from pe_bench.text.tokenizer import TokenIds

CONSTANT = "constant answer"
LAST = "last token"
POSITION = "position table"
FROM_END = "position table from the end"
CANDIDATE = "random candidate"
TABLES = (
    "bigram table",
    "trigram table",
    "4-gram table",
    "5-gram table",
    "6-gram table",
    "7-gram table",
)
"""Tables of n-grams, by ascending length: one to six tokens of context."""

BASELINES = (CHANCE, CONSTANT, LAST, POSITION, FROM_END, CANDIDATE, *TABLES)
"""All baselines, the simplest first. If several are equally good, the first one is reported."""

MULTIPLIER = 6_364_136_223_846_793_005  # odd; Knuth's MMIX linear congruential generator

Probabilities = npt.NDArray[np.float64]
Table = tuple[TokenIds, TokenIds]
"""Keys (K,) in ascending order and their entries (K,)."""


@dataclass(frozen=True)
class Scored:
    """The S scored tokens of a batch, row by row.

    Attributes:
        row, column: (S,) position in the batch at which the token is predicted.
        target: (S,) id of the token.
        offset: (S,) index of the token in its answer, from 0; 0 if tokens form no answers.
        last: (S,) id of the preceding token.
        keys: (S,) keys to look up, for each table.
    """

    row: TokenIds
    column: TokenIds
    target: TokenIds
    offset: TokenIds
    last: TokenIds
    keys: Mapping[str, TokenIds]


class Baselines:
    """Counts of training batches, used as predictors.

    | baseline | predicts |
    |---|---|
    | `guessing` | a uniformly random token of the answers in training: expected scores |
    | `constant answer` | the most frequent token at this index of an answer |
    | `last token` | the preceding token |
    | `position table` | the most frequent token at this position of a row |
    | `position table from the end` | the same, counted from the row's last scored token |
    | `random candidate` | a uniformly random token among those in the row so far that occur in |
    | | training at this index of an answer: expected scores |
    | `bigram table` .. `7-gram table` | the most frequent token after the last 1 .. 6 tokens |

    An unseen n-gram falls back to the next shorter context and finally to the most frequent token.
    An unseen position falls back to the most frequent token. If one answer is more frequent than
    all others together, it is the constant answer, because each of its tokens is the most frequent
    at its index.

    Args:
        batches: training batches to count.
        vocab_size: number of token ids.
        consecutive: whether consecutive scored tokens form one answer. False: they are scattered
            over a text, and the constant answer is one token.
        ordered: whether the order of an answer's tokens matters. False: any order counts, and
            guessing and the random candidate draw without replacement.

    Raises:
        InputError: the batches have no scored token.
    """

    def __init__(
        self, batches: Iterable[Batch], vocab_size: int, *, consecutive: bool, ordered: bool = True
    ) -> None:
        self.vocab_size = vocab_size
        self.consecutive = consecutive
        self.ordered = ordered
        parts = [self._scored(batch) for batch in batches]
        seen = np.concatenate([part.target for part in parts])
        if not len(seen):
            raise InputError("no target counts in the training batches of the baselines")
        offset = np.concatenate([part.offset for part in parts])
        self.symbols = len(np.unique(seen))
        self.most_frequent = int(np.bincount(seen).argmax())
        self.tables: dict[str, Table] = {}
        for name in parts[0].keys:
            keys = np.concatenate([part.keys[name] for part in parts])
            self.tables[name] = _most_frequent(keys, seen, vocab_size)
        # (index in the answer, token): whether it occurs in training. The last row: at any index.
        self.answers = np.zeros((int(offset.max()) + 2, vocab_size), dtype=np.bool_)
        self.answers[offset, seen] = True
        self.answers[-1, seen] = True

    def scores(self, batch: Batch) -> dict[str, Scores]:
        """Return the scores of each baseline on the rows of a batch."""
        scored = self._scored(batch)
        counts = np.bincount(scored.row, minlength=len(batch.tokens))
        symbols = np.full(len(scored.row), self.symbols)
        candidates, among = self._candidates(batch, scored)
        found = {
            CHANCE: self._expected(scored, counts, symbols, np.ones_like(among)),
            CONSTANT: _certain(scored, counts, self._look_up(CONSTANT, scored)),
            LAST: _certain(scored, counts, scored.last),
            POSITION: _certain(scored, counts, self._look_up(POSITION, scored)),
            FROM_END: _certain(scored, counts, self._look_up(FROM_END, scored)),
            CANDIDATE: self._expected(scored, counts, candidates, among),
        }
        predicted: TokenIds | None = None
        for name in TABLES:
            predicted = self._look_up(name, scored, predicted)
            found[name] = _certain(scored, counts, predicted)
        return found

    def _scored(self, batch: Batch) -> Scored:
        """Return the scored tokens of a batch with their keys for the tables."""
        tokens = batch.tokens.numpy()
        targets = batch.targets.numpy()
        is_scored = targets != IGNORE
        row, column = np.nonzero(is_scored)
        offset = _offsets(is_scored)[row, column] if self.consecutive else np.zeros_like(row)
        ends = is_scored.shape[1] - 1 - is_scored[:, ::-1].argmax(1)  # (N,)
        keys = {CONSTANT: offset, POSITION: column, FROM_END: ends[row] - column}
        context = np.zeros_like(row)
        for length, name in enumerate(TABLES):
            before = column - length
            token = np.where(before >= 0, tokens[row, before.clip(min=0)], self.vocab_size)
            context = context * MULTIPLIER + token + 1  # a hash; overflow is intended
            keys[name] = context
        return Scored(row, column, targets[row, column], offset, tokens[row, column], keys)

    def _look_up(self, name: str, scored: Scored, fallback: TokenIds | None = None) -> TokenIds:
        """Return the predictions (S,) of a table.

        Unknown keys get the entry of `fallback` (S,), by default the most frequent token.
        """
        known, entries = self.tables[name]
        keys = scored.keys[name]
        if fallback is None:
            fallback = np.full(len(keys), self.most_frequent)
        index = np.searchsorted(known, keys).clip(max=len(known) - 1)
        return np.where(known[index] == keys, entries[index], fallback)

    def _candidates(self, batch: Batch, scored: Scored) -> tuple[TokenIds, Mask]:
        """Return the number of candidates before each scored token, and whether it is one: (S,).

        An index in the answer that does not occur in training has the candidates of all indices.
        """
        tokens = batch.tokens.numpy()
        rows = np.arange(len(tokens))
        # The first occurrence of each token in each row, as an index into the flat batch.
        known, first = np.unique(tokens + rows[:, None] * self.vocab_size, return_index=True)
        is_first = np.zeros(tokens.shape, dtype=np.bool_)
        is_first.flat[first] = True
        offset = np.minimum(scored.offset, len(self.answers) - 1)
        counts = np.zeros_like(offset)
        for each in np.unique(offset):
            new = is_first & self.answers[each][tokens]  # (N, T)
            here = offset == each
            counts[here] = new.cumsum(1)[scored.row[here], scored.column[here]]
        wanted = scored.target + scored.row * self.vocab_size
        index = np.searchsorted(known, wanted).clip(max=len(known) - 1)
        shown = known[index] == wanted
        shown &= first[index] <= scored.row * tokens.shape[1] + scored.column
        return counts, shown & self.answers[offset, scored.target]

    def _expected(
        self, scored: Scored, counts: TokenIds, candidates: TokenIds, among: Mask
    ) -> Scores:
        """Return the expected scores of drawing from candidates.

        Args:
            scored: the scored tokens.
            counts: (N,) number of scored tokens of each row.
            candidates: (S,) number of equally likely candidates.
            among: (S,) whether the target is a candidate.
        """
        if self.ordered:
            return _score(scored.row, counts, among / candidates.clip(min=1))
        # Draws are without replacement. Any answer that is still open counts as correct.
        wanted = counts[scored.row]
        start = np.cumsum(counts) - counts
        drawn = np.arange(len(scored.row)) - start[scored.row]
        left = (candidates[start[scored.row]] - drawn).clip(min=1)
        exact = _score(scored.row, counts, among * np.minimum(1.0, (wanted - drawn) / left)).exact
        probability = among * np.minimum(1.0, wanted / candidates[start[scored.row]].clip(min=1))
        found = _score(scored.row, counts, probability)
        return Scores(exact, counts, found.leading, found.correct)


def _certain(scored: Scored, counts: TokenIds, predicted: TokenIds) -> Scores:
    """Return the scores of predictions (S,) under teacher forcing."""
    return _score(scored.row, counts, (predicted == scored.target).astype(np.float64))


def _score(row: TokenIds, counts: TokenIds, correct: Probabilities) -> Scores:
    """Return the expected scores of rows from the probability that each token is correct.

    Args:
        row: (S,) row of each scored token, ascending.
        counts: (N,) number of scored tokens of each row.
        correct: (S,) probability that the token is correct.
    """
    table = np.ones((len(counts), int(counts.max(initial=0))))  # (N, A)
    column = np.arange(len(row)) - (np.cumsum(counts) - counts)[row]
    table[row, column] = correct
    counted = np.arange(table.shape[1]) < counts[:, None]
    so_far = table.cumprod(1)
    exact = so_far[:, -1] if so_far.shape[1] else np.ones(len(counts))
    return Scores(exact, counts, (so_far * counted).sum(1), (table * counted).sum(1))


def _offsets(scored: Mask) -> TokenIds:
    """Return the index of each scored token among consecutive scored tokens, from 0: (N, T)."""
    column = np.arange(scored.shape[1])
    before = np.where(scored, -1, column)
    return column - 1 - np.maximum.accumulate(before, axis=1)


def _most_frequent(keys: TokenIds, targets: TokenIds, size: int) -> Table:
    """Return the keys (K,) in ascending order and the most frequent target of each key."""
    known, index = np.unique(keys, return_inverse=True)
    pairs, counts = np.unique(index * size + targets, return_counts=True)
    pairs = pairs[np.lexsort((pairs, -counts, pairs // size))]
    _, first = np.unique(pairs // size, return_index=True)
    return known, pairs[first] % size
