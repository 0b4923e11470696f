"""Passkey: prompts have exactly so many tokens and say what they should, means are means."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import Oracle, answer_after, make_task, measure

from pe_bench.decoder.model import IGNORE
from pe_bench.results.schema import Measurement
from pe_bench.results.views import Column, Heatmap
from pe_bench.sequences.length_generalization import ID, OOD, Cell
from pe_bench.sequences.rows import Sequences, stack
from pe_bench.tasks.passkey.prompts import FILLER
from pe_bench.tasks.passkey.task import Passkey

KINDS = ("passkey", "multikey", "keyvalue")
HEAD = (
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. "
    "I will quiz you about the important information there."
)


def make(
    tmp_path: Path,
    preset: str = "quick",
    protocol: str = "strict",
    tokenizer: str = "bytes",
    length: int | None = None,
    data: Path | None = None,
    **options: Any,
) -> Passkey:
    batch_size = min(Passkey.presets[preset].train.batch_size, 32)
    train = {"batch_size": batch_size} | ({"length": length} if length else {})
    return make_task(
        Passkey,
        tmp_path,
        preset,
        protocol=protocol,
        tokenizer=tokenizer,
        data=data,
        train=train,
        **options,
    )


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """Prose to fit a small vocabulary to."""
    for part in ("train", "test"):
        (tmp_path / "text" / part).mkdir(parents=True)
        lines = f"{FILLER}\n\n- The pass key of a name is 31415.\n" * 40
        (tmp_path / "text" / part / "a.txt").write_text(lines)
    return tmp_path / "text"


def items_of(task: Passkey, kind: str, length: int) -> Sequences:
    """The prompts of one length, depth by depth."""
    cells = [cell for cell in task.cells(kind) if cell.length == length]
    depths = [cell.second_axis for cell in cells] or task.depths
    return stack([task.items(kind, Cell(length, depth)) for depth in depths])


def texts(task: Passkey, items: Sequences) -> list[tuple[str, str]]:
    """Prompts and last answers."""
    found = []
    for ids, scored, length in zip(items.ids, items.scored, items.lengths, strict=True):
        assert ids[0] == task.tokenizer.bos
        last = length - scored[:length][::-1].argmin()  # where the last answer begins
        decoded = task.tokenizer.decode(ids[:last]), task.tokenizer.decode(ids[last:length])
        assert task.tokenizer.encode("".join(decoded)).tolist() == ids[1:length].tolist()
        found.append(decoded)
    return found


def is_filler(line: str) -> bool:
    return " ".join([FILLER] * (len(line) // len(FILLER) + 1)).startswith(line)


def only(pattern: str, text: str) -> re.Match[str]:
    """The match of a pattern that must fit the whole text."""
    match = re.fullmatch(pattern, text)
    assert match, text
    return match


def read(kind: str, prompt: str) -> tuple[str, float]:
    """The right answer and how deep it is hidden, found by reading the prompt."""
    *lines, question = prompt.split("\n")
    if kind == "keyvalue":
        head, filler, *entries = lines
        assert head.startswith("Below is a list of names") and filler and is_filler(filler)
        name = only(r"Once more, ([a-z]{4}) is", question)[1]
        found = [only(r"- ([a-z]{4}) is (\d{5})", entry) for entry in entries]
        pairs = [(match[1], match[2]) for match in found]
        assert len(dict(pairs)) == len(pairs) >= 4
        place = [other for other, _ in pairs].index(name)
        return " " + pairs[place][1], place / (len(pairs) - 1)
    keys: dict[str, tuple[int, str]] = {}
    before = 0
    assert lines.pop(0) == HEAD
    for line in lines:
        if kind == "passkey":
            key = re.fullmatch(
                r"The pass key is ()(\d{5})\. Remember it\. \2 is the pass key\.", line
            )
        else:
            key = re.fullmatch(r"The pass key of ([a-z]{4}) is (\d{5})\.", line)
        if key:
            keys[key[1]] = before, key[2]
        else:
            assert is_filler(line)
            before += len(line) + 1
    assert len(keys) == {"passkey": 1, "multikey": 4}[kind]
    if kind == "passkey":
        assert question == "What is the pass key? The pass key is"
        (name,) = keys
    else:
        name = only(r"The pass key of ([a-z]{4}) is", question)[1]
    return " " + keys[name][1], keys[name][0] / max(1, before)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("vocabulary", "tokenizer", "train"),
    [("words", "bytes", 128), ("tokenizer", "bytes", 400), ("tokenizer", "bpe:400", 300)],
)
def test_prompts_have_exactly_so_many_tokens_and_what_they_ask_for(
    tmp_path: Path, text: Path, kind: str, vocabulary: str, tokenizer: str, train: int
) -> None:
    data = text if tokenizer != "bytes" else None
    options: dict[str, Any] = {"vocabulary": vocabulary, "kinds": "all", "samples": 3}
    task = make(tmp_path, "quick", "strict", tokenizer, train, data, **options)
    for length in (train, train + 7, 4 * train):
        items = items_of(task, kind, length)
        assert set((items.lengths - items.scored.sum(1)).tolist()) == {length}
        assert items.lengths.max() <= task.max_eval_tokens
        for depth, (prompt, answer) in zip(
            np.repeat(range(11), 3), texts(task, items), strict=True
        ):
            right, share = read(kind, prompt)
            assert answer == right
            # A list has few places; filler is cut between tokens, and its last tokens are a line.
            assert share == pytest.approx(depth / 10, abs=0.17 if length < 2 * train else 0.03)
            if depth in (0, 10):
                assert share == depth / 10
    again = make(tmp_path, "quick", "strict", tokenizer, train, data, **options)
    assert (items_of(again, kind, train).ids == items_of(task, kind, train).ids).all()


def test_keys_are_five_digits_evenly_drawn(tmp_path: Path) -> None:
    task = make(tmp_path, samples=150)
    found = np.array([int(answer) for _, answer in texts(task, items_of(task, "passkey", 128))])
    assert found.min() >= 10_000 and found.max() <= 99_999
    assert abs(np.bincount(found // 10_000)[1:] / len(found) - 1 / 9).max() < 0.04
    assert len(set(found.tolist())) > 0.97 * len(found)


@pytest.mark.parametrize(("kinds", "most"), [("passkey", 1), ("all", 4)])
def test_training_prompts(tmp_path: Path, kinds: Any, most: int) -> None:
    task = make(tmp_path, kinds=kinds)
    prompts, questions = [], []
    for step in range(60):
        tokens, targets = task.batch(None, 3, step)
        assert tokens.shape == targets.shape == (16, tokens.shape[1])
        for row, target in zip(tokens.tolist(), targets.tolist(), strict=True):
            ends = [i for i, t in enumerate(target) if t != IGNORE]
            assert all(target[i] == row[i + 1] for i in ends[:-1] if i + 1 in ends)
            answers = [ends[i : i + 5] for i in range(0, len(ends), 5)]
            prompts.append(answers[-1][0] + 1)
            questions.append(len(answers))
            for answer in answers:
                prompt = task.tokenizer.decode(row[1 : answer[0] + 1])
                kind = "keyvalue" if "Once" in prompt else "multikey"
                kind = "passkey" if "Remember it" in prompt else kind
                # Without the questions before it, with their answers, it reads as in evaluation.
                head, _, question = prompt.rpartition("\n")
                told = task.tokenizer.decode(row[1 : answers[0][0] + 1]).rpartition("\n")[0]
                right, _ = read(kind, f"{told}\n{question}")
                assert task.tokenizer.decode([target[i] for i in answer]) == right
                assert head.startswith(told)
    lengths = np.array(prompts)
    assert lengths.min() <= 70 and lengths.max() == 128 < task.train_length == 133
    assert set(questions) == set(range(1, most + 1))
    assert np.median(lengths[: 16 * 60]) == pytest.approx(97 if most == 1 else 110, abs=6)


def test_the_published_prompts(tmp_path: Path) -> None:
    task = make(tmp_path, preset="paper", protocol="paper", vocabulary="words")
    assert task.subsets == ("passkey",) and task.max_train_axis == 1024
    # Llama's tokens, as measured with the published script; a word or digit each is almost that.
    llama = [891, 1983, 2802, 3895, 4987, 5806, 6898, 7991]
    assert task.lengths["passkey"] == [1000 * (i + 1) for i in range(8)]
    keys = set()
    garbage = " ".join([FILLER] * 500)
    for length, count in list(zip(task.lengths["passkey"], llama, strict=True))[::3]:
        found = texts(task, items_of(task, "passkey", length))
        assert len(found) == 20
        sizes = [1 + len(task.tokenizer.encode(prompt)) for prompt, _ in found]
        assert np.mean(sizes) == pytest.approx(count, abs=4)
        characters = int(3.75 * length // 1024 * 1024)
        for trial, (prompt, answer) in enumerate(found):
            np.random.seed(trial)
            prefix = np.random.randint(0, characters)
            key = np.random.randint(1, 50_000)
            lines = [
                HEAD,
                garbage[:prefix],
                f"The pass key is {key}. Remember it. {key} is the pass key.",
                garbage[: characters - prefix],
                "What is the pass key? The pass key is",
            ]
            assert prompt == "\n".join(lines) and answer == f" {key}"
            keys.add(key)
    assert 20 <= len(keys) < 40  # of 60: they depend on the trial more than on the length
    trained = task.batch(None, 0, 0).targets
    widths = (trained != IGNORE).sum(1)
    assert widths.min() < widths.max() <= 5  # numbers below 10000 too


def test_lengths_of_the_published_protocol_follow_the_training_length(tmp_path: Path) -> None:
    quick = make(tmp_path, protocol="paper")
    assert (quick.lengths, quick.max_train_axis) == ({"passkey": [1000]}, 128)
    in_bytes = make(tmp_path, preset="paper", protocol="paper")
    assert (in_bytes.lengths, in_bytes.max_train_axis) == ({"passkey": [1000, 2000]}, 273)
    longest = items_of(in_bytes, "passkey", 2000)
    assert in_bytes.max_eval_tokens == longest.lengths.max() > 7168 + len(HEAD)


def reader(task: Passkey, fails: Callable[[str, int, float], bool]) -> Oracle:
    """Reads the prompt and answers rightly, but for the last digit where it is told not to."""

    def answer(ids: list[int]) -> list[int]:
        text = task.tokenizer.decode(ids)
        prompt = text[: text.rindex(" is") + 3]
        kind = "keyvalue" if "Once" in prompt else "multikey"
        kind = "passkey" if "Remember it" in prompt else kind
        length = 1 + len(task.tokenizer.encode(prompt))
        number, depth = read(kind, prompt)
        written = task.tokenizer.encode(number).tolist()
        written[-1] += fails(kind, length, depth)
        return answer_after(length, written)

    return Oracle(answer, vocab_size=task.vocabulary.vocab_size)


def test_cells_and_means(tmp_path: Path) -> None:
    task = make(tmp_path, kinds="all", samples=2)

    def fails(kind: str, length: int, depth: float) -> bool:
        if kind == "passkey":
            return length > 256 or (length == 256 and depth == 0)
        return kind == "multikey" and length >= 128

    rows = measure(task, reader(task, fails), tmp_path)
    cells = {(row.subset, row.length, row.second_axis): row for row in rows}
    lengths = [96, 128, 192, 256, 384, 512, 768, 1024]
    depths = [f"{i / 10:.1f}" for i in range(11)]
    assert set(cells) == {(k, n, depth) for k in KINDS for n in lengths for depth in depths}
    for (kind, length, depth), row in cells.items():
        wrong = fails(kind, length or 0, float(depth))
        assert (row.value, row.n) == (0 if wrong else 100, 2)
    summary = task.summarize(rows)
    found = {r.subset: r for r in summary if r.length is None and not r.second_axis}
    assert {subset: row.value for subset, row in found.items()} == pytest.approx(
        {
            f"passkey-{ID}": 100,
            f"passkey-{OOD}": 100 * (11 + 10) / 66,
            f"multikey-{ID}": 50,
            f"multikey-{OOD}": 0,
            f"keyvalue-{ID}": 100,
            f"keyvalue-{OOD}": 100,
            ID: 100 * 5 / 6,
            OOD: 100 * (21 + 66) / 198,
        }
    )
    assert {r.subset for r in summary if r.status == "not_learned"} == {f"multikey-{OOD}", OOD}
    ood = found[f"passkey-{OOD}"]
    assert ood.n == 132 and ood.ci_low < ood.value < ood.ci_high
    by_depth = {r.second_axis: r.value for r in summary if r.subset == "passkey-depth"}
    assert by_depth["0.0"] == pytest.approx(100 / 6) and by_depth["0.1"] == pytest.approx(200 / 6)
    by_length = {row.length: row.value for row in summary if row.subset == "passkey-length"}
    assert by_length[128] == 100 and by_length[256] == pytest.approx(1000 / 11)
    assert list(by_length) == lengths and by_length[384] == 0


def test_means_over_several_draws_are_not_rounded_to_whole_items(tmp_path: Path) -> None:
    task = make(tmp_path, samples=1)
    cells = [
        Measurement("passkey", "exact_match", 37.5, 2, length=128, second_axis="0.0"),
        Measurement("passkey", "exact_match", 0.0, 2, length=128, second_axis="0.1"),
    ]
    found = {row.subset: row.value for row in task.summarize(cells)}
    assert found[f"passkey-{ID}"] == found["passkey-length"] == 18.75


def test_the_published_protocol_has_no_gate_where_nothing_is_trained(tmp_path: Path) -> None:
    task = make(tmp_path, protocol="paper")
    rows = [
        Measurement("passkey", "exact_match", 15.0, 20, length=1000),
        Measurement("passkey", "prompt_tokens", 888.0, 20, length=1000),
    ]
    found = {row.subset: row for row in task.summarize(rows)}
    assert found[OOD].value == pytest.approx(15) and found[OOD].status == "ranked"
    assert set(found) == {OOD, f"passkey-{OOD}", "passkey-length"}


def test_what_a_task_without_names_shows(tmp_path: Path) -> None:
    one = make(tmp_path)
    all_ = make(tmp_path, kinds="all")
    assert [view.subset for view in one.views] == [ID, "passkey", "passkey-length"]
    columns = [view.subset for view in all_.views if isinstance(view, Column)]
    assert columns == [ID, *(f"{kind}-{OOD}" for kind in KINDS)]
    maps = [view for view in all_.views if isinstance(view, Heatmap)]
    assert [view.subset for view in maps] == list(KINDS)
    assert all(view.trained == (None, 128) for view in maps)
    assert len(one.vocabulary.digit_ids) == 20
    assert (one.max_eval_tokens, one.train_length) == (1029, 133)
