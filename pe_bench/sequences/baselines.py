"""Baselines that need no model: counts of the training batches, used as predictors.

A task that a baseline solves says nothing about a model. A score above all baselines requires
tokens further back in the context, and so perhaps their positions.
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
"""From the simplest on: of equally good ones, the first is called the strongest."""

MULTIPLIER = 6_364_136_223_846_793_005  # odd, of a linear congruential generator (Knuth's MMIX)

Probabilities = npt.NDArray[np.float64]
Table = tuple[TokenIds, TokenIds]
"""Keys (K,) in ascending order, and the entry of each (K,)."""


@dataclass(frozen=True)
class Scored:
    """The scored tokens of a batch, row by row; their number is S.

    Attributes:
        row, column: (S,) where each is predicted.
        target: (S,) what has to be written.
        place: (S,) of a token in its answer, from 0; 0 where tokens form no answers.
        last: (S,) the token before each.
        keys: what each table looks up, (S,) each.
    """

    row: TokenIds
    column: TokenIds
    target: TokenIds
    place: TokenIds
    last: TokenIds
    keys: Mapping[str, TokenIds]


class Baselines:
    """Counts of training batches, as predictors.

    | baseline | predicts |
    |---|---|
    | `guessing` | each token that answers consist of, equally likely: expected scores |
    | `constant answer` | the most frequent token at that place of an answer |
    | `last token` | the token before it |
    | `position table` | the most frequent token at that position of a row |
    | `position table from the end` | the same, counted from the row's last scored token |
    | `random candidate` | of the tokens in the row so far, each of those that are answers in |
    | | training, at that place of an answer, equally likely: expected scores |
    | `bigram table` .. `7-gram table` | the most frequent token after the last 1 .. 6 tokens |

    An n-gram that was never seen falls back to the next shorter context, then to the most frequent
    token; so does a position. An answer that is more frequent as a whole than all others together
    is the constant answer, as each of its tokens is the most frequent at its place.

    Args:
        batches: training batches to count.
        vocab_size: number of token ids.
        places: whether consecutive scored tokens form one answer; False: they are scattered over a
            text, and the constant answer is one token.
        ordered: whether each token of an answer must be at its own place; False: any order counts,
            and guessing and the random candidate name different tokens.

    Raises:
        InputError: no target counts.
    """

    def __init__(
        self, batches: Iterable[Batch], vocab_size: int, *, places: bool, ordered: bool = True
    ) -> None:
        self.vocab_size = vocab_size
        self.places = places
        self.ordered = ordered
        parts = [self._scored(batch) for batch in batches]
        seen = np.concatenate([part.target for part in parts])
        if not len(seen):
            raise InputError("no target counts in the training batches of the baselines")
        place = np.concatenate([part.place for part in parts])
        self.symbols = len(np.unique(seen))
        self.most_frequent = int(np.bincount(seen).argmax())
        self.tables: dict[str, Table] = {}
        for name in parts[0].keys:
            keys = np.concatenate([part.keys[name] for part in parts])
            self.tables[name] = _most_frequent(keys, seen, vocab_size)
        # Which tokens are answers: in the last row at any place.
        self.answers = np.zeros((int(place.max()) + 2, vocab_size), dtype=np.bool_)
        self.answers[place, seen] = True
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
        """Return the scored tokens of a batch, and the keys under which tables know them."""
        tokens = batch.tokens.numpy()
        targets = batch.targets.numpy()
        is_scored = targets != IGNORE
        row, column = np.nonzero(is_scored)
        place = _places(is_scored)[row, column] if self.places else np.zeros_like(row)
        ends = is_scored.shape[1] - 1 - is_scored[:, ::-1].argmax(1)  # (N,)
        keys = {CONSTANT: place, POSITION: column, FROM_END: ends[row] - column}
        context = np.zeros_like(row)
        for length, name in enumerate(TABLES):
            before = column - length
            token = np.where(before >= 0, tokens[row, before.clip(min=0)], self.vocab_size)
            context = context * MULTIPLIER + token + 1  # a hash: it wraps around
            keys[name] = context
        return Scored(row, column, targets[row, column], place, tokens[row, column], keys)

    def _look_up(self, name: str, scored: Scored, fallback: TokenIds | None = None) -> TokenIds:
        """Return what a table predicts (S,), where it knows nothing the fallback (S,).

        Without one that is the most frequent token.
        """
        known, entries = self.tables[name]
        keys = scored.keys[name]
        if fallback is None:
            fallback = np.full(len(keys), self.most_frequent)
        index = np.searchsorted(known, keys).clip(max=len(known) - 1)
        return np.where(known[index] == keys, entries[index], fallback)

    def _candidates(self, batch: Batch, scored: Scored) -> tuple[TokenIds, Mask]:
        """Return how many candidates stand before each scored token, and whether it is one: (S,).

        A place that training lacks has the candidates of all places.
        """
        tokens = batch.tokens.numpy()
        rows = np.arange(len(tokens))
        # Of each token in each row the first place: of a sorted number, where it stands.
        known, first = np.unique(tokens + rows[:, None] * self.vocab_size, return_index=True)
        is_first = np.zeros(tokens.shape, dtype=np.bool_)
        is_first.flat[first] = True
        place = np.minimum(scored.place, len(self.answers) - 1)
        counts = np.zeros_like(place)
        for each in np.unique(place):
            new = is_first & self.answers[each][tokens]  # (N, T)
            here = place == each
            counts[here] = new.cumsum(1)[scored.row[here], scored.column[here]]
        wanted = scored.target + scored.row * self.vocab_size
        index = np.searchsorted(known, wanted).clip(max=len(known) - 1)
        shown = known[index] == wanted
        shown &= first[index] <= scored.row * tokens.shape[1] + scored.column
        return counts, shown & self.answers[place, scored.target]

    def _expected(
        self, scored: Scored, counts: TokenIds, candidates: TokenIds, among: Mask
    ) -> Scores:
        """Return the expected scores of drawing from candidates.

        Args:
            scored: tokens.
            counts: (N,) of each row.
            candidates: (S,) how many are drawn from, equally likely.
            among: (S,) whether the token that has to be written is one of them.
        """
        if self.ordered:
            return _score(scored.row, counts, among / candidates.clip(min=1))
        # As many different candidates as there are answers: the first draw meets any of them.
        wanted = counts[scored.row]
        start = np.cumsum(counts) - counts
        drawn = np.arange(len(scored.row)) - start[scored.row]
        left = (candidates[start[scored.row]] - drawn).clip(min=1)
        exact = _score(scored.row, counts, among * np.minimum(1.0, (wanted - drawn) / left)).exact
        probability = among * np.minimum(1.0, wanted / candidates[start[scored.row]].clip(min=1))
        found = _score(scored.row, counts, probability)
        return Scores(exact, counts, found.leading, found.correct)


def _certain(scored: Scored, counts: TokenIds, predicted: TokenIds) -> Scores:
    """Return the scores of predictions (S,), each after the correct tokens before it."""
    return _score(scored.row, counts, (predicted == scored.target).astype(np.float64))


def _score(row: TokenIds, counts: TokenIds, correct: Probabilities) -> Scores:
    """Return the expected scores of rows whose tokens are correct with a probability each.

    Args:
        row: (S,) ascending.
        counts: (N,) scored tokens of each row.
        correct: (S,).
    """
    table = np.ones((len(counts), int(counts.max(initial=0))))  # (N, A)
    column = np.arange(len(row)) - (np.cumsum(counts) - counts)[row]
    table[row, column] = correct
    counted = np.arange(table.shape[1]) < counts[:, None]
    so_far = table.cumprod(1)
    exact = so_far[:, -1] if so_far.shape[1] else np.ones(len(counts))
    return Scores(exact, counts, (so_far * counted).sum(1), (table * counted).sum(1))


def _places(scored: Mask) -> TokenIds:
    """Return the place of each scored token in its run of consecutive ones, from 0: (N, T)."""
    column = np.arange(scored.shape[1])
    before = np.where(scored, -1, column)
    return column - 1 - np.maximum.accumulate(before, axis=1)


def _most_frequent(keys: TokenIds, targets: TokenIds, size: int) -> Table:
    """Return the keys (K,) in ascending order, and the most frequent target after each."""
    known, index = np.unique(keys, return_inverse=True)
    pairs, counts = np.unique(index * size + targets, return_counts=True)
    pairs = pairs[np.lexsort((pairs, -counts, pairs // size))]
    _, first = np.unique(pairs // size, return_index=True)
    return known, pairs[first] % size
