"""References: the scores of guessing, of a constant answer and of tables of n-grams.

They know training batches and nothing else. What a model scores above them comes from tokens
further back, and so perhaps from positions.
"""

from collections.abc import Iterable, Mapping

import numpy as np

from pe_bench.config import IGNORE
from pe_bench.sequences.scoring import Scores, count_correct
from pe_bench.task import Batch
from pe_bench.text.tokenizer import TokenIds

REFERENCES = ("guessing", "constant answer", "bigram table", "trigram table")


class References:
    """Counts of training batches, as predictors.

    | reference | predicts |
    |---|---|
    | `guessing` | each token that answers consist of, equally likely: expected scores |
    | `constant answer` | the most frequent token at that place of an answer |
    | `bigram table` | the most frequent token after that token |
    | `trigram table` | the most frequent token after these two tokens |

    What was never seen falls back to the next shorter context, then to the most frequent token.

    Args:
        batches: for training.
        vocab_size: larger than all ids.
        places: whether scored tokens form one answer; False: they are scattered over a text, and
            the constant answer is one token.
    """

    def __init__(self, batches: Iterable[Batch], vocab_size: int, *, places: bool) -> None:
        self.vocab_size = vocab_size
        self.places = places
        targets: list[TokenIds] = []
        contexts: dict[str, list[TokenIds]] = {name: [] for name in REFERENCES[1:]}
        for batch in batches:
            wanted = batch.targets.numpy()
            scored = wanted != IGNORE
            targets.append(wanted[scored])
            for name, context in self._contexts(batch).items():
                contexts[name].append(context[scored])
        seen = np.concatenate(targets)
        self.symbols = len(np.unique(seen))
        self.most_frequent = int(np.bincount(seen).argmax())
        self.tables = {
            name: _most_frequent(np.concatenate(keys), seen, vocab_size)
            for name, keys in contexts.items()
        }

    def scores(self, batch: Batch) -> dict[str, Scores]:
        """Return how each reference does on rows."""
        targets = batch.targets.numpy()
        counts = (targets != IGNORE).sum(1)
        found = {"guessing": self._guess(counts)}
        contexts = self._contexts(batch)
        fallback = np.full(targets.shape, self.most_frequent)
        for name, context in contexts.items():
            predicted = _look_up(self.tables[name], context, fallback)  # (N, T)
            if name == "bigram table":
                fallback = predicted  # of the trigram table
            leading, correct = count_correct(predicted, targets)
            found[name] = Scores(leading == counts, counts, leading, correct)
        return found

    def _guess(self, counts: TokenIds) -> Scores:
        """Return the expected scores of guessing `counts` tokens (N,)."""
        chance = 1 / self.symbols
        exact = chance**counts
        leading = counts if chance == 1 else chance * (1 - exact) / (1 - chance)
        return Scores(exact, counts, leading, counts * chance)

    def _contexts(self, batch: Batch) -> Mapping[str, TokenIds]:
        """Return a number for what each table knows before each target, (N, T)."""
        scored = batch.targets.numpy() != IGNORE
        last = batch.tokens.numpy()
        before = np.pad(last, ((0, 0), (1, 0)), constant_values=self.vocab_size)[:, :-1]
        place = scored.cumsum(1) if self.places else np.zeros_like(last)
        trigram = last * (self.vocab_size + 1) + before
        return {"constant answer": place, "bigram table": last, "trigram table": trigram}


def _most_frequent(keys: TokenIds, targets: TokenIds, size: int) -> tuple[TokenIds, TokenIds]:
    """Return the keys (K,) in ascending order, and the most frequent target after each."""
    pairs, counts = np.unique(keys * size + targets, return_counts=True)
    pairs = pairs[np.lexsort((pairs, -counts, pairs // size))]
    known, first = np.unique(pairs // size, return_index=True)
    return known, pairs[first] % size


def _look_up(table: tuple[TokenIds, TokenIds], keys: TokenIds, fallback: TokenIds) -> TokenIds:
    """Return the entry of each key (N, T), or the fallback (N, T)."""
    known, entries = table
    index = np.searchsorted(known, keys).clip(max=len(known) - 1)
    return np.where(known[index] == keys, entries[index], fallback)
