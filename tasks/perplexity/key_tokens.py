"""Key tokens: tokens that are predictable only with a long context.

Fang et al. 2024 (LongPPL, arXiv 2410.23771) average over tokens whose log probability under an
evaluator increases by more than 2 with a long context, to more than -2.

| LongPPL | here |
|---|---|
| the evaluator is a large language model | a trigram table with the longest match, below |
| short context: 4096 to 5120 tokens | the training length, the scored tokens included |
| all tokens after the short context | the last tokens of each window |
| exp of the mean loss | bits per byte |

This evaluator has no weights and no positions, so the keys are the same for all encodings and
favour none. It detects only repetition, which a copying head could use.
"""

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from pe_bench.tasks.perplexity.ngram_tables import Ids, NgramTables, Probabilities

LEAST_GAIN = 2.0  # nats
LARGEST_LOSS = 2.0  # nats
MAX_MATCH = 32  # tokens; longer matches are not more reliable
CALIBRATION_WINDOWS = 256  # windows of the training text for estimating how often matches are right

Mask = npt.NDArray[np.bool_]


class MatchModel:
    """Predictor that repeats the token after the longest match.

    The longest match of a position is the longest string that ends there and also occurs earlier in
    the context; if there are several, the latest counts. p(w) = a_l [w followed the match] +
    (1 - a_l) p_trigram(w), where a_l is the fraction of correct matches of length l in the training
    text.

    Args:
        tables: n-gram tables of the training text.
        windows: (N, T) windows of the training text.
        tail: number of last tokens of a window to predict.
    """

    def __init__(self, tables: NgramTables, windows: Ids, tail: int) -> None:
        self.tables = tables
        self.tail = tail
        right = np.ones(MAX_MATCH + 1)
        seen = np.full(MAX_MATCH + 1, 2.0)
        for window in windows:
            predicted, lengths = longest_matches(window, tail)
            np.add.at(seen, lengths, 1)
            np.add.at(right, lengths, predicted == window[-tail:])
        self.trust = right / seen
        self.trust[0] = 0.0

    def probabilities(self, windows: Ids) -> Probabilities:
        """Return the probability of each token of the tails, (N, T) -> (N, tail)."""
        tokens = np.roll(windows, 1, axis=1)
        found = self.tables.probabilities(tokens, windows, order=3)[:, -self.tail :]
        for row, window in enumerate(windows):
            predicted, lengths = longest_matches(window, self.tail)
            trust = self.trust[lengths]
            copied = predicted == window[-self.tail :]
            found[row] = trust * copied + (1 - trust) * found[row]
        return found


@lru_cache(maxsize=2)
def fit_match_model(tables: NgramTables, length: int, tail: int) -> MatchModel:
    """Return the evaluator, fitted to windows spread evenly over the text of the tables.

    Args:
        tables: n-gram tables of the training text.
        length: number of tokens of a window.
        tail: number of last tokens of a window to predict.
    """
    length = min(length, len(tables.ids))
    last = len(tables.ids) - length
    starts = np.linspace(0, last, CALIBRATION_WINDOWS).astype(int).tolist()
    windows = np.stack([tables.ids[start : start + length] for start in starts])
    return MatchModel(tables, windows, tail)


def find_keys(model: MatchModel, windows: Ids, short: int) -> Mask:
    """Return which tokens of the tails are keys, (N, T) -> (N, tail).

    Args:
        model: the evaluator.
        windows: the long contexts, which include the tails at their ends.
        short: number of tokens at the end of a window that form the short context.
    """
    with_all = np.log(model.probabilities(windows))
    with_few = np.log(model.probabilities(windows[:, -short:]))
    gains = with_all - with_few > LEAST_GAIN
    return np.asarray(gains & (with_all > -LARGEST_LOSS))


def longest_matches(text: Ids, tail: int) -> tuple[Ids, Ids]:
    """Return the token after the longest match of each of the last positions, and its length.

    Args:
        text: (T,) ids of the context and the tail.
        tail: number of positions.

    Returns:
        Ids (tail,), -1 if the preceding token has no earlier occurrence, and lengths of the matches
        (tail,) from 0 to `MAX_MATCH`.
    """
    # The ends of the strings to find. Nothing precedes the first token of the text.
    asked = np.arange(len(text) - tail, len(text)) - 1
    predicted = np.full(tail, -1)
    longest = np.zeros(tail, np.int64)
    strings = text  # number of the string of `length` tokens that ends at each position
    for length in range(1, MAX_MATCH + 1):
        earlier = _earlier_places(strings)
        found = (asked >= 0) & (earlier[asked] >= 0) & (longest == length - 1)
        if not found.any():
            break
        predicted[found] = text[earlier[asked[found]] + 1]
        longest[found] = length
        # A string that is one token longer is the pair of the string before and the token.
        pairs = np.full(len(text), -1)
        pairs[1:] = strings[:-1] * (text.max() + 1) + text[1:]
        pairs[:length] = -np.arange(1, length + 1)  # too close to the start
        _, strings = np.unique(pairs, return_inverse=True)
    return predicted, longest


def _earlier_places(strings: Ids) -> Ids:
    """Return the last earlier place of the same number, (T,); -1: there is none."""
    order = np.argsort(strings, kind="stable")
    same = strings[order[1:]] == strings[order[:-1]]
    earlier = np.full(len(strings), -1)
    earlier[order[1:][same]] = order[:-1][same]
    return earlier
