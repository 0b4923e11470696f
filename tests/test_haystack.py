"""Prompts of exact lengths: pieces, filler and a vocabulary of words."""

import numpy as np
import pytest

from pe_bench.sequences.rows import Part, Sequences, join
from pe_bench.tasks.passkey.haystack import (
    Haystack,
    Spellings,
    WordTokenizer,
    distinct,
    names,
    pack,
    spread,
)
from pe_bench.tasks.passkey.haystack import tokens as count_tokens
from pe_bench.text.tokenizer import ByteTokenizer, Tokenizer

FILLER = "Green grass. A sun."


def words() -> WordTokenizer:
    return WordTokenizer([FILLER, f" {FILLER}", "The key is.\n", " 0 1 2 3 4 5 6 7 8 9", " bado"])


@pytest.mark.parametrize(
    "text", ["", "The key is 12345.\n", "naïve  café\x00", "Green grassy", " bado bado", "é" * 3]
)
def test_words_give_every_text_back(text: str) -> None:
    tokenizer = words()
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.byte_lengths[ids].sum() == len(text.encode())
    assert (tokenizer.encode(text.encode()) == ids).all()


def test_words_are_one_token_and_digits_too() -> None:
    tokenizer = words()
    pieces = ["The", " key", " is", " 1", "2", "3", ".", "\n"]
    ids = tokenizer.encode("The key is 123.\n")
    assert [tokenizer.decode([i]) for i in ids] == pieces
    assert len(tokenizer.digit_ids) == 20  # with a space and without
    assert set(tokenizer.encode(" 123")) <= set(tokenizer.digit_ids)
    assert {tokenizer.decode([i]) for i in tokenizer.separator_ids} == {".", "\n"}
    special = [tokenizer.pad, tokenizer.bos, tokenizer.eos, tokenizer.sep]
    assert special == list(range(tokenizer.vocab_size - 4, tokenizer.vocab_size))
    assert tokenizer.decode(special) == ""
    unknown = tokenizer.encode("Theory")
    assert bytes(unknown.tolist()) == b"Theory"


def test_the_fingerprint_is_that_of_the_vocabulary() -> None:
    assert words().fingerprint == words().fingerprint
    assert words().fingerprint != WordTokenizer([FILLER]).fingerprint


def test_texts_are_encoded_once_each() -> None:
    calls: list[int] = []

    def text(i: int) -> str:
        calls.append(i)
        return "x" * i

    spellings = Spellings(ByteTokenizer(), 9, text)
    spellings.part(np.array([1, 3]))
    part = spellings.part(np.array([3, 1, 3, 5]), scored=True)
    assert sorted(calls) == [1, 3, 5] and part.scored
    assert part.lengths is not None and part.lengths.tolist() == [3, 1, 3, 5]
    assert (part.values != 0).sum(1).tolist() == [3, 1, 3, 5]


@pytest.mark.parametrize("tokenizer", [words(), ByteTokenizer()], ids=["words", "bytes"])
def test_templates_and_filler(tokenizer: Tokenizer) -> None:
    blanks = {"number": Spellings(tokenizer, 100, lambda i: f" {i}")}
    haystack = Haystack(tokenizer, FILLER, 60, blanks)
    sizes = np.array([0, 2, 17, 60])
    parts = [
        *haystack.write("The key is{number}.\n", number=np.array([7, 42, 7, 9])),
        *haystack.filler(sizes),
    ]
    found = join(4, *parts)
    assert (count_tokens(parts, 4) == found.lengths).all()
    whole = tokenizer.encode(" ".join([FILLER] * 20))
    for ids, length, size, number in zip(
        found.ids, found.lengths, sizes, (7, 42, 7, 9), strict=True
    ):
        line = f"The key is {number}.\n"
        if size:
            line += tokenizer.decode(whole[: size - 1]) + "\n"
        assert tokenizer.decode(ids[:length]) == line
        assert tokenizer.encode(line).tolist() == ids[:length].tolist()
        assert length == size + len(tokenizer.encode(f"The key is {number}.\n"))


def test_filler_is_spread_by_shares() -> None:
    random = np.random.default_rng(0)
    shares = np.sort(random.random((500, 3)), axis=1)
    room = random.integers(2, 60, 500)
    sizes = spread(shares, room)
    assert (sizes.sum(1) == room).all() and sizes.min() == 0 and not (sizes == 1).any()
    wanted = np.rint(shares * room[:, None])
    assert abs(sizes.cumsum(1)[:, :-1] - wanted).max() <= 3  # a token for each line left out
    exact = spread(np.array([[0.0], [0.1], [0.5], [1.0]]), np.full(4, 40))
    assert exact.tolist() == [[0, 40], [4, 36], [20, 20], [40, 0]]
    assert spread(np.array([[0.5]]), np.array([2])).tolist() == [[2, 0]]


def test_pieces_are_packed() -> None:
    random = np.random.default_rng(1)
    sizes = random.integers(0, 4, 15)
    pieces = join(15, Part(random.integers(1, 99, (15, 3)), sizes))
    kept = random.random((5, 3)) < 0.7
    part = pack(pieces, kept)
    slow = [
        [
            int(i)
            for j in range(3)
            if kept[row, j]
            for i in pieces.ids[3 * row + j, : sizes[3 * row + j]]
        ]
        for row in range(5)
    ]
    assert part.lengths is not None and part.lengths.tolist() == [len(row) for row in slow]
    rows = zip(part.values, slow, strict=True)
    assert all(values[: len(row)].tolist() == row for values, row in rows)
    nothing = pack(Sequences(pieces.ids, pieces.scored, pieces.lengths), np.zeros((5, 3), bool))
    assert nothing.values.shape == (5, 0)


def test_names() -> None:
    found = names()
    assert len(found) == len(set(found)) == 7225 and {len(name) for name in found} == {4}
    assert names(20) == found[:20]


def test_numbers_are_distinct_within_a_row() -> None:
    found = distinct(np.random.default_rng(2), (1000, 4), 9)
    assert found.shape == (1000, 4) and {len(set(row)) for row in found.tolist()} == {4}
    assert abs(np.bincount(found.ravel()) / found.size - 1 / 9).max() < 0.03
