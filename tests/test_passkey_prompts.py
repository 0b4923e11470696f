"""Prompts of passkey: exact lengths, the ids of the whole text, and the answer."""

import re
from pathlib import Path

import numpy as np
import pytest
from helpers import merging_tokenizer

from pe_bench.sequences.rows import Turn
from pe_bench.tasks.passkey.prompts import (
    FILLER,
    FORMATS,
    HEAD,
    TEXTS,
    Prompts,
    distinct,
    nonsense_names,
)
from pe_bench.text.corpus import Corpus
from pe_bench.text.folder_corpus import folder_corpus
from pe_bench.text.load_tokenizer import load_tokenizer
from pe_bench.text.tokenizer import Tokenizer
from pe_bench.text.word_tokenizer import WordTokenizer

MAX_LENGTH = 1600


@pytest.fixture(params=["words", "bytes", "bpe:400", "merging"])
def tokenizer(request: pytest.FixtureRequest, tmp_path: Path) -> Tokenizer:
    if request.param == "words":
        return words()
    if request.param == "merging":
        path = merging_tokenizer(TEXTS, tmp_path / "tokenizer.json")
        return load_tokenizer(str(path), Corpus(""), tmp_path)
    for part in ("train", "test"):
        (tmp_path / "text" / part).mkdir(parents=True)
        text = f"{FILLER}\n\n- The pass key of a name is 31415.\n" * 40
        (tmp_path / "text" / part / "a.txt").write_text(text)
    return load_tokenizer(request.param, folder_corpus(tmp_path / "text"), tmp_path)


def words() -> WordTokenizer:
    return WordTokenizer([*TEXTS, *(f" {name}" for name in nonsense_names(200))])


def make(tokenizer: Tokenizer) -> Prompts:
    return Prompts(tokenizer, MAX_LENGTH, nonsense_names(200), (10_000, 100_000))


def ids_of(turns: list[Turn]) -> list[int]:
    ids: list[int] = []
    for prompt, answer in turns:
        ids += [*prompt, *answer]
    return ids


def is_filler(line: str) -> bool:
    """Return whether a line is filler; a word may replace the last full stop."""
    filler = " ".join([FILLER] * (len(line) // len(FILLER) + 1))
    before, _, last = line.rpartition(" ")
    return filler.startswith(line) or filler.startswith(f"{before}. {last}")


def read(kind: str, prompt: str) -> tuple[str, float]:
    """Return the right answer and its depth, found by reading the prompt."""
    *lines, question = prompt.split("\n")
    head = lines.pop(0)
    if kind == "keyvalue":
        assert head.startswith("Below is a list of names") and is_filler(lines.pop(0))
        asked = re.fullmatch(r"Once more, ([a-z]{4}) is", question)
        pairs = [re.fullmatch(r"- ([a-z]{4}) is (\d{5})", line) for line in lines]
        numbers = {pair[1]: pair[2] for pair in pairs if pair}
        assert asked and len(numbers) == len(lines) >= 4
        return f" {numbers[asked[1]]}", list(numbers).index(asked[1]) / (len(numbers) - 1)
    key_pattern = r"The pass key is()() (\d{5})\. Remember it\. \3 is the pass key\."
    question_pattern = r"What is the pass key\? The pass key is()"
    if kind == "multikey":
        key_pattern = r"The pass key of( )([a-z]{4}) is (\d{5})\."
        question_pattern = r"The pass key of ([a-z]{4}) is"
    assert head == HEAD.rstrip()
    lines = [line.removeprefix("0") for line in lines]  # marks an empty line, see `Pieces`
    keys: dict[str, tuple[str, int]] = {}
    filler = 0
    for line in lines:
        if key := re.fullmatch(key_pattern, line):
            keys[key[2]] = f" {key[3]}", filler
        else:
            assert is_filler(line)
            filler += len(line) + 1
    asked = re.fullmatch(question_pattern, question)
    assert asked and len(keys) == FORMATS[kind].facts
    number, before = keys[asked[1]]
    return number, before / max(1, filler)


@pytest.mark.parametrize("kind", FORMATS)
def test_prompts_have_exact_lengths_and_the_answers_that_they_give(
    tokenizer: Tokenizer, kind: str
) -> None:
    prompts = make(tokenizer)
    least = prompts.min_lengths(kind, MAX_LENGTH)
    assert len(least) == FORMATS[kind].facts and least == sorted(least)
    for questions, length in enumerate(least, start=1):
        lengths = np.array([length, length + 1, length + 2, length + 9, MAX_LENGTH])
        rng = np.random.default_rng(questions)
        samples = prompts.samples(kind, rng, lengths, questions=questions)
        for (context, *turns), wanted in zip(samples, lengths, strict=True):
            ids = ids_of([context, *turns])
            assert ids[0] == tokenizer.bos
            assert tokenizer.encode(tokenizer.decode(ids)).tolist() == ids[1:]
            assert len(ids) - len(turns[-1].answer) == wanted
            asked = [tokenizer.decode(turn.prompt).strip() for turn in turns]
            assert len(set(asked)) == questions
            for question, turn in zip(asked, turns, strict=True):
                answer, _ = read(kind, tokenizer.decode(context.prompt) + question)
                assert tokenizer.decode(turn.answer) == answer


@pytest.mark.parametrize("kind", FORMATS)
def test_the_fact_asked_for_first_is_at_its_depth(tokenizer: Tokenizer, kind: str) -> None:
    depths = np.arange(11) / 10
    lengths = np.full(11, MAX_LENGTH)
    samples = make(tokenizer).samples(kind, np.random.default_rng(0), lengths, depths)
    # A list has few places; filler is cut between tokens, and its last tokens are a line.
    found = [read(kind, tokenizer.decode(ids_of(turns)[:MAX_LENGTH]))[1] for turns in samples]
    assert found == pytest.approx(depths, abs=0.03) and (found[0], found[10]) == (0, 1)


def test_lengths_are_bounds(tokenizer: Tokenizer) -> None:
    prompts = make(tokenizer)
    least = prompts.min_lengths("multikey", MAX_LENGTH)
    assert prompts.min_lengths("multikey", 10) == least[:1]  # although it does not fit
    assert prompts.min_lengths("multikey", least[2]) == least[:3]
    assert prompts.max_number >= len(tokenizer.encode(" 99999"))


@pytest.mark.slow
def test_keys_are_five_digits_evenly_drawn() -> None:
    tokenizer = words()
    rng = np.random.default_rng(0)
    samples = make(tokenizer).samples("passkey", rng, np.full(1650, 128))
    found = np.array([int(tokenizer.decode(turns[-1].answer)) for turns in samples])
    assert found.min() >= 10_000 and found.max() <= 99_999
    assert abs(np.bincount(found // 10_000)[1:] / len(found) - 1 / 9).max() < 0.04
    assert len(set(found.tolist())) > 0.97 * len(found)


# Counts of Llama's tokens from the published script; one token per word or digit is similar.
@pytest.mark.parametrize(("length", "tokens"), [(1000, 891), (4000, 3895), (7000, 6898)])
def test_the_published_prompts(length: int, tokens: int) -> None:
    tokenizer = words()
    prompts = make(tokenizer)
    garbage = " ".join([FILLER] * 500)
    characters = int(3.75 * length // 1024 * 1024)
    sizes = []
    for trial in range(20):
        [(prompt, answer)] = prompts.published(length, trial)
        np.random.seed(trial)
        prefix = np.random.randint(0, characters)
        key = np.random.randint(1, 50_000)
        lines = [
            HEAD.rstrip(),
            garbage[:prefix],
            f"The pass key is {key}. Remember it. {key} is the pass key.",
            garbage[: characters - prefix],
            "What is the pass key? The pass key is",
        ]
        assert (tokenizer.decode(prompt), tokenizer.decode(answer)) == ("\n".join(lines), f" {key}")
        sizes.append(len(prompt))
    assert np.mean(sizes) == pytest.approx(tokens, abs=4)


def test_filler_is_cut_into_lines() -> None:
    prompts = make(words())

    def sizes(cuts: list[float], room: int) -> list[int]:
        return [len(line) for line in prompts._filler_lines(cuts, room)]

    assert sizes([0.0], 40) == [0, 40] and sizes([0.1, 0.5], 40) == [4, 16, 20]
    assert sizes([1.0], 40) == [40, 0] and sizes([0.5], 2) == [2, 0]
    rng = np.random.default_rng(0)
    for _ in range(200):
        cuts = np.sort(rng.random(3))
        room = int(rng.integers(2, 60))
        found = sizes(cuts.tolist(), room)
        assert sum(found) == room and 1 not in found  # no empty line
        ends = np.cumsum(found)[:-1]
        assert abs(ends - np.rint(cuts * room)).max() <= 3  # a token for each line left out


def test_names_and_draws_are_distinct() -> None:
    names = nonsense_names()
    assert len(names) == len(set(names)) == 7225 and {len(name) for name in names} == {4}
    assert nonsense_names(20) == names[:20]
    drawn = distinct(np.random.default_rng(2), (1000, 4), 9)
    assert drawn.shape == (1000, 4) and {len(set(row)) for row in drawn.tolist()} == {4}
    assert abs(np.bincount(drawn.ravel()) / drawn.size - 1 / 9).max() < 0.03


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
    assert words().fingerprint == tokenizer.fingerprint != WordTokenizer([FILLER]).fingerprint
