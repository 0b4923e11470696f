"""Prompts of an exact number of tokens for RULER's tasks, in words."""

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from pe_bench.api import Stage, Tokenizer, Turn
from pe_bench.tasks.passkey.prompts import FILLER, MIN_FILLER, TOKEN_BOUNDS, Pieces

NIAH = ("niah-single", "niah-multikey", "niah-multivalue", "niah-multiquery")
KINDS: tuple[str, ...] = (*NIAH, "vt", "cwe", "fwe")

HEADS = {
    "niah": "Learn what we call these things.\n",
    "vt": "Learn which variables are equal.\n",
    "cwe": "Learn which words of the list are common.\n",
    "fwe": "Learn which words of the list are frequent, but for the word blank.\n",
}
ASKED = "We call"
OTHER = "We saw"  # verb of the lines of `niah-single` without a question
BLANK = " blank"
LIST = "List:"
TEXTS = [FILLER, f" {FILLER}", *HEADS.values(), BLANK, LIST, "VAR =.", f"{ASKED} and.", OTHER]
TEXTS += ["Variables equal to", "The most common frequent words are"]

VALUES = 2  # values per key in `niah-multivalue`; keys per question in `niah-multiquery`
CHAINS = 4  # chains of `vt`, one of which is asked for
COMMON = 12  # occurrences of each common word in a list
UNCOMMON = 3  # occurrences of each other word in a list
FREQUENT = 3  # number of words that `fwe` asks for
ZETA = np.pi**2 / 6  # the sum of k^-2
MIN_ZIPF = 53  # minimum number of words for three to be more frequent than all others


class Content(NamedTuple):
    """Content of a prompt, as ids.

    Attributes:
        lines: lines to hide in filler, in order.
        turns: questions with their answers.
    """

    lines: list[list[int]]
    turns: list[Turn]


class RulerPrompts(Pieces):
    """Writer of prompts of every kind.

    Args:
        tokenizer: tokenizer of all texts.
        max_length: maximum number of tokens of a prompt.
        names: distinct nonsense words for keys, variables and values.
        needles: number of lines of `niah`. A chain of `vt` has half this number of variables, and
            `cwe` asks for half this number of words.
    """

    def __init__(
        self, tokenizer: Tokenizer, max_length: int, names: list[str], needles: int
    ) -> None:
        super().__init__(tokenizer, max_length, names)
        self.needles = needles
        self.max_name = TOKEN_BOUNDS.get(tokenizer.name, TOKEN_BOUNDS["other"])[0]
        self.answers = {
            "niah-single": 1,
            "niah-multikey": 1,
            "niah-multivalue": VALUES,
            "niah-multiquery": VALUES,
            "fwe": FREQUENT,
        }

    def n_answers(self, kind: str) -> int:
        """Return the number of words that a kind asks for."""
        return self.answers.get(kind, self.needles // 2)

    def write(
        self, kind: str, rng: np.random.Generator, length: int, stage: Stage | None = None
    ) -> list[Turn]:
        """Return a prompt with its answers.

        Args:
            kind: one of KINDS.
            rng: source of randomness.
            length: number of tokens before the last answer.
            stage: stage of the curriculum, for a training row with all questions about its lines
                that fit; None: a single question and all needles.
        """
        head = self._head(kind)
        needles = self.needles
        if stage is not None:
            fits = [n for n in range(2, needles + 1, 2) if self.min_length(kind, n) <= length]
            needles = stage.facts or int(rng.choice(fits))
        if kind in NIAH:
            content = self._needles(kind, rng, needles, stage)
        elif kind == "vt":
            content = self._chains(rng, needles // 2)
        else:
            content = self._list(kind, rng, length - len(head))
        places = np.sort(rng.random(len(content.lines)))
        cuts = [1.0] if kind in ("cwe", "fwe") else places.tolist()
        turns = content.turns[:1]
        if stage is not None:
            turns = [content.turns[i] for i in rng.permutation(len(content.turns))]
        return self.compose(head, content.lines, turns, cuts, length)

    def min_length(self, kind: str, needles: int | None = None) -> int:
        """Return the minimum number of tokens of a prompt with `needles` needles; None: all."""
        needles = needles or self.needles
        name = [0] * self.max_name
        head = len(self._head(kind))
        if kind in NIAH:
            line = max(len(self._needle(name, name, verb)) for verb in (ASKED, OTHER))
            asked = VALUES if kind == "niah-multiquery" else 1
            needed = needles * line + len(self._ask_value([name] * asked))
        elif kind == "vt":
            lines = CHAINS * (needles // 2)
            needed = lines * len(self._assignment(name, name)) + len(self._ask_variables(name))
        else:
            words = MIN_ZIPF if kind == "fwe" else needles * (COMMON + UNCOMMON) // 2
            widest = max(self.max_name, len(self.encode(BLANK)))
            needed = len(self._line([])) + len(self._ask_list(kind)) + words * widest
        return head + needed + MIN_FILLER

    def _head(self, kind: str) -> list[int]:
        return self.begin(HEADS["niah" if kind in NIAH else kind])

    def _draw(self, rng: np.random.Generator, words: Sequence[int], count: int) -> list[list[int]]:
        """Return the ids of `count` distinct words from the indices `words`."""
        drawn = rng.permutation(words)[:count]
        return [self.encode_name(int(index)) for index in drawn]

    def _needles(
        self, kind: str, rng: np.random.Generator, lines: int, stage: Stage | None
    ) -> Content:
        """Return lines with keys and values, and questions for one or more keys.

        Args:
            kind: one of NIAH.
            rng: source of randomness.
            lines: number of lines.
            stage: stage of the curriculum, which limits the words in use; None: all words.
        """
        n_keys = lines // VALUES if kind == "niah-multivalue" else lines
        n_asked = VALUES if kind == "niah-multiquery" else 1
        in_use = (stage or Stage()).in_use(range(len(self.names)), n_keys + lines)
        words = self._draw(rng, in_use, n_keys + lines)
        keys, values = words[:n_keys], words[n_keys:]
        of_key = rng.permutation(np.repeat(np.arange(n_keys), lines // n_keys)).tolist()
        texts = [self._needle(keys[k], value) for k, value in zip(of_key, values, strict=True)]
        asked = rng.permutation(n_keys).tolist()
        if kind == "niah-single":
            asked = asked[:1]
            for line, k in enumerate(of_key):
                if k not in asked:
                    texts[line] = self._needle(keys[k], values[line], OTHER)
        turns = []
        for start in range(0, len(asked), n_asked):
            some = asked[start : start + n_asked]
            answer: list[int] = []
            for key in some:
                for k, value in zip(of_key, values, strict=True):
                    answer += value if k == key else []
            turns.append(Turn(self._ask_value([keys[k] for k in some]), answer))
        return Content(texts, turns)

    def _chains(self, rng: np.random.Generator, size: int) -> Content:
        """Return the assignments of chains of `size` variables, and a question for each chain."""
        names = self._draw(rng, range(len(self.names)), CHAINS * (1 + size))
        chains = []  # each is a value followed by variables
        for start in range(0, len(names), 1 + size):
            chains.append(names[start : start + 1 + size])
        done = [0] * CHAINS
        lines = []
        for which in rng.permutation(np.repeat(np.arange(CHAINS), size)).tolist():
            value, variable = chains[which][done[which] : done[which] + 2]
            lines.append(self._assignment(variable, value))
            done[which] += 1
        turns = []
        for value, *variables in chains:
            turns.append(Turn(self._ask_variables(value), [*chain(*variables)]))
        return Content(lines, turns)

    def _list(self, kind: str, rng: np.random.Generator, room: int) -> Content:
        """Return a list of words of up to `room` tokens, with the question."""
        question = self._ask_list(kind)
        room -= len(question) + len(self._line([])) + MIN_FILLER
        n_answers = self.n_answers(kind)
        names = self._draw(rng, range(len(self.names)), len(self.names))
        words: list[list[int]] = []
        if kind == "cwe":
            words = names[:n_answers] * COMMON
            room -= sum(map(len, words))
            for name in names[n_answers:]:
                words += [name] * min(UNCOMMON, room // len(name))
                room -= len(name) * min(UNCOMMON, room // len(name))
        else:
            words = self._zipf(names, room)
        order = rng.permutation(len(words))
        words = [words[i] for i in order]
        if kind == "fwe":
            answers = names[:n_answers]
        else:  # words of equal frequency: in the order of the list
            common = {tuple(name) for name in names[:n_answers]}
            found = dict.fromkeys(tuple(word) for word in words if tuple(word) in common)
            answers = [list(word) for word in found]
        return Content([self._line(words)], [Turn(question, [*chain(*answers)])])

    def _zipf(self, names: list[list[int]], room: int) -> list[list[int]]:
        """Return words of up to `room` tokens, the blank first: the k-th as often as 1 / k^2."""
        blank = self.encode(BLANK)
        total = room
        while True:
            counts = (total * np.arange(1.0, len(names) + 2) ** -2 / ZETA).astype(int)
            counts[0] += total - counts.sum()
            words = [blank] * int(counts[0])
            for name, count in zip(names, counts[1:].tolist(), strict=True):
                words += [name] * count
            excess = sum(map(len, words)) - room
            if excess <= 0:
                return words
            total -= max(1, excess // max(self.max_name, len(blank)))  # avoids too few words

    def _needle(self, key: list[int], value: list[int], verb: str = ASKED) -> list[int]:
        return [*self.encode(verb), *key, *value, *self.encode(".\n")]

    def _ask_value(self, keys: list[list[int]]) -> list[int]:
        ids = self.encode(ASKED) + keys[0]
        for key in keys[1:]:
            ids = [*ids, *self.encode(" and"), *key]
        return ids

    def _assignment(self, variable: list[int], value: list[int]) -> list[int]:
        return [*self.encode("VAR"), *variable, *self.encode(" ="), *value, *self.encode(".\n")]

    def _ask_variables(self, value: list[int]) -> list[int]:
        return [*self.encode("Variables equal to"), *value]

    def _line(self, words: list[list[int]]) -> list[int]:
        return [*self.encode(LIST), *chain(*words), *self.encode(".\n")]

    def _ask_list(self, kind: str) -> list[int]:
        word = "common" if kind == "cwe" else "frequent"
        return self.encode(f"The most {word} words are")
