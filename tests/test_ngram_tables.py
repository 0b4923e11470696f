"""N-gram tables computed by hand, and the key tokens that they define."""

import numpy as np
import pytest
import torch

from pe_bench.tasks.perplexity.key_tokens import MatchModel, find_keys, longest_matches
from pe_bench.tasks.perplexity.ngram_tables import Ids, NgramTables

A, B, C, BOS = range(4)
TEXT = np.array([A, B, A, B, A, C])


def test_tables_by_hand() -> None:
    tables = NgramTables(TEXT.astype(np.uint16), vocab_size=4)
    tokens, targets = np.array([[BOS, A, B]]), np.array([[A, B, A]])
    # A 3 times, B 2, C 1, so 3 kinds of 6 tokens, over a uniform 1/4.
    a, b = (3 + 3 / 4) / 9, (2 + 3 / 4) / 9
    # After A: B twice, C once. After B: A twice. After a BOS: unknown.
    b_after_a = (2 + 2 * b) / 5
    a_after_b = (2 + 1 * a) / 3
    # After A B: A twice. After BOS A: unknown.
    a_after_ab = (2 + 1 * a_after_b) / 3
    expected = {1: [a, b, a], 2: [a, b_after_a, a_after_b], 3: [a, b_after_a, a_after_ab]}
    for order, row in expected.items():
        found = tables.probabilities(tokens, targets, order)
        np.testing.assert_allclose(found, [row], rtol=1e-12)
        losses = tables.token_losses(torch.tensor(tokens), torch.tensor(targets), order)
        np.testing.assert_allclose(losses, -np.log([row]), rtol=1e-12)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_probabilities_of_all_tokens_sum_to_one(order: int) -> None:
    rng = np.random.default_rng(0)
    tables = NgramTables(rng.integers(0, 9, 400), vocab_size=10)
    tokens = np.concatenate([np.full((10, 1), 9), rng.integers(0, 9, (1, 40)).repeat(10, 0)], 1)
    every = np.arange(10)[:, None].repeat(41, 1)
    np.testing.assert_allclose(tables.probabilities(tokens, every, order).sum(0), 1, rtol=1e-12)


def slow_match(text: list[int], place: int, most: int = 32) -> tuple[int, int]:
    """Return the token after the longest and latest match of the tokens before a place."""
    found = -1, 0
    for end in range(1, place):
        length = 0
        while length < min(end, most) and text[end - 1 - length] == text[place - 1 - length]:
            length += 1
        if length >= max(1, found[1]):
            found = text[end], length
    return found


@pytest.mark.parametrize("kinds", [1, 2, 3, 9])
def test_longest_matches(kinds: int) -> None:
    text = np.random.default_rng(kinds).integers(0, kinds, 90)
    for tail in (1, 7, 90):
        predicted, lengths = longest_matches(text, tail)
        expected = [slow_match(text.tolist(), index) for index in range(90 - tail, 90)]
        assert list(zip(predicted.tolist(), lengths.tolist(), strict=True)) == expected


def repeating(name: Ids, filler: Ids, length: int) -> Ids:
    """Return rows with a name, filler, and the name again at the end."""
    return np.concatenate([name, filler[: length - 2 * len(name)], name])


def test_keys_are_what_only_the_long_context_has() -> None:
    rng = np.random.default_rng(1)
    train = rng.integers(0, 50, 20_000)
    for start in range(200, 19_000, 200):  # repetition, so that long matches are trusted
        train[start + 100 : start + 120] = train[start : start + 20]
    tables = NgramTables(train, vocab_size=51)
    calibration = np.stack([train[s : s + 120] for s in range(200, 19_000, 200)])
    model = MatchModel(tables, calibration, tail=20)
    assert model.trust[0] == 0 and model.trust[8] > 0.8
    name, filler = np.arange(8) + 30, rng.integers(0, 30, 400)
    far = repeating(name, filler, 120)
    near = np.concatenate([filler[-90:], repeating(name, filler, 30)])
    fresh = rng.integers(0, 50, 120)
    keys = find_keys(model, np.stack([far, near, fresh]), short=40)
    # The start of the repeated name is not predictable, but its continuation is.
    assert not keys[0, :13].any() and keys[0, 15:].all()
    assert not keys[1:, 15:].any()
