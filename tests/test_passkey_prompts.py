"""Passkey's prompts: exact lengths, encoded as a whole text would be; a vocabulary of words."""

import numpy as np
import pytest

from pe_bench.decoder.model import IGNORE
from pe_bench.sequences.rows import PAD, Turn, collate
from pe_bench.tasks.passkey.prompts import FILLER, TEXTS, Prompts, distinct, nonsense_names
from pe_bench.tasks.passkey.word_tokenizer import WordTokenizer
from pe_bench.text.tokenizer import ByteTokenizer, Tokenizer


def words() -> WordTokenizer:
    return WordTokenizer([*TEXTS, *(f" {name}" for name in nonsense_names(20))])


def make(tokenizer: Tokenizer) -> Prompts:
    return Prompts(tokenizer, 900, nonsense_names(20), (10_000, 100_000))


@pytest.mark.parametrize(
    "text", ["", "The key is 12345.\n", "naïve  café\x00", "Theory", " bado bado", "é" * 3]
)
def test_words_give_every_text_back(text: str) -> None:
    tokenizer = words()
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.byte_lengths[ids].sum() == len(text.encode())
    assert (tokenizer.encode(text.encode()) == ids).all()


def test_words_are_one_token_and_digits_too() -> None:
    tokenizer = words()
    ids = tokenizer.encode("The key is 123.\n")
    pieces = ["The", " key", " is", " 1", "2", "3", ".", "\n"]
    assert [tokenizer.decode([i]) for i in ids] == pieces
    assert len(tokenizer.digit_ids) == 20  # with a space and without
    assert set(tokenizer.encode(" 123")) <= set(tokenizer.digit_ids)
    assert {tokenizer.decode([i]) for i in tokenizer.separator_ids} == {".", "\n"}
    special = [tokenizer.pad, tokenizer.bos, tokenizer.eos, tokenizer.sep]
    assert special == list(range(tokenizer.vocab_size - 4, tokenizer.vocab_size))
    assert tokenizer.decode(special) == ""
    assert bytes(tokenizer.encode("Theory").tolist()) == b"Theory"


def test_the_fingerprint_is_that_of_the_vocabulary() -> None:
    assert words().fingerprint == words().fingerprint != WordTokenizer([FILLER]).fingerprint


@pytest.mark.parametrize("tokenizer", [words(), ByteTokenizer()], ids=["words", "bytes"])
def test_ids_are_those_of_the_whole_text(tokenizer: Tokenizer) -> None:
    prompts = make(tokenizer)
    for kind in ("passkey", "multikey", "keyvalue"):
        for questions, least in enumerate(prompts.min_lengths(kind, 900), start=1):
            rng = np.random.default_rng(questions)
            lengths = np.array([least, least + 1, least + 2, 900])
            for turns, length in zip(
                prompts.samples(kind, rng, lengths, questions=questions), lengths, strict=True
            ):
                assert len(turns[-1].answer) == 5 + (tokenizer.name == "bytes")
                ids = [*turns[0].prompt, *turns[0].answer]
                for prompt, answer in turns[1:]:
                    ids += [*prompt, *answer]
                assert ids[0] == tokenizer.bos
                assert ids[1:] == tokenizer.encode(tokenizer.decode(ids)).tolist()
                assert len(ids) - len(turns[-1].answer) == length
                assert len(turns) == questions + 1  # the context has no answer


def test_filler_is_cut_into_lines() -> None:
    prompts = make(words())

    def sizes(cuts: list[float], room: int) -> list[int]:
        return [len(line) for line in prompts._filler_lines(cuts, room)]

    assert sizes([0.0], 40) == [0, 40] and sizes([0.1, 0.5], 40) == [4, 16, 20]
    assert sizes([1.0], 40) == [40, 0] and sizes([0.5], 2) == [2, 0]
    rng = np.random.default_rng(0)
    for _ in range(200):
        cuts = sorted(rng.random(3).tolist())
        room = int(rng.integers(2, 60))
        found = sizes(cuts, room)
        assert sum(found) == room and 1 not in found  # no empty line
        ends = np.cumsum(found)[:-1]
        assert abs(ends - np.rint(np.array(cuts) * room)).max() <= 3  # one for each line left out


def test_least_lengths() -> None:
    prompts = make(words())
    assert prompts.min_lengths("passkey", 10) == [65]  # the first, though it does not fit
    several = prompts.min_lengths("multikey", 900)
    assert len(several) == 4 and several == sorted(several)
    assert prompts.min_lengths("multikey", several[2]) == several[:3]


def test_samples_become_rows() -> None:
    samples = [[Turn([5, 6], [7])], [Turn([8]), Turn([9], [3, 4]), Turn([2], [1])]]
    rows = collate(samples)
    assert rows.ids.tolist() == [[5, 6, 7, PAD, PAD, PAD], [8, 9, 3, 4, 2, 1]]
    assert rows.lengths.tolist() == [3, 6]
    targets = rows.batch().targets.tolist()
    assert targets == [[IGNORE, 7, *[IGNORE] * 3], [IGNORE, 3, 4, IGNORE, 1]]


def test_names() -> None:
    found = nonsense_names()
    assert len(found) == len(set(found)) == 7225 and {len(name) for name in found} == {4}
    assert nonsense_names(20) == found[:20]


def test_numbers_are_distinct_within_a_row() -> None:
    found = distinct(np.random.default_rng(2), (1000, 4), 9)
    assert found.shape == (1000, 4) and {len(set(row)) for row in found.tolist()} == {4}
    assert abs(np.bincount(found.ravel()) / found.size - 1 / 9).max() < 0.03
