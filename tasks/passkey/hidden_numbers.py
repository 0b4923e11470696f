"""Prompts that hide numbers in filler or in a list, written to exactly so many tokens."""

import re
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pe_bench.api import Ids, Part, Sequences, Tokenizer, join
from pe_bench.tasks.passkey.haystack import Haystack, Spellings, distinct, pack, spread, tokens

Depths = npt.NDArray[np.float64]

FILLER = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
HEAD = (
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. "
    "I will quiz you about the important information there.\n"
)
KEY = "The pass key is{number}. Remember it.{number} is the pass key.\n"
QUESTION = "What is the pass key? The pass key is"
NAMED_KEY = "The pass key of{name} is{number}.\n"
NAMED_QUESTION = "The pass key of{name} is"
LIST_HEAD = "Below is a list of names, each with a number. I will ask you for one of the numbers.\n"
ENTRY = "-{name} is{number}\n"
LIST_QUESTION = "Once more,{name} is"
TEMPLATES = [FILLER, f" {FILLER}", HEAD, KEY, QUESTION, NAMED_KEY, NAMED_QUESTION]
TEMPLATES += [LIST_HEAD, ENTRY, LIST_QUESTION, " 0 1 2 3 4 5 6 7 8 9"]
BLANK = re.compile(r"\{(?:name|number)\}")
TEXTS = [BLANK.sub("", text) for text in TEMPLATES]

CHARACTERS_PER_TOKEN = 3.75  # what the published script takes a token for


class Kind(NamedTuple):
    """What prompts consist of.

    Attributes:
        head: their beginning.
        fact: tells a number.
        question: asks for one.
        questions: so many at most, in training.
        facts: how many there are, in filler; None: a list, as many as there is room for.
    """

    head: str
    fact: str
    question: str
    questions: int
    facts: int | None


SINGLE = Kind(HEAD, KEY, QUESTION, questions=1, facts=1)
SEVERAL = Kind(HEAD, NAMED_KEY, NAMED_QUESTION, questions=4, facts=4)
LISTED = Kind(LIST_HEAD, ENTRY, LIST_QUESTION, questions=4, facts=None)


class Prompts:
    """Writes prompts of every kind.

    Args:
        tokenizer: of everything.
        longest: tokens of the longest prompt.
        widest: tokens of a name and of a number, at most.
        narrowest: tokens of both together, at least.
        known: the names.
        numbers: the least number that is hidden and the first that is too large.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        longest: int,
        widest: tuple[int, int],
        narrowest: int,
        known: list[str],
        numbers: tuple[int, int],
    ) -> None:
        self.tokenizer, self.range = tokenizer, numbers
        self.widest = dict(zip(("{name}", "{number}"), widest, strict=True))
        self.names = Spellings(tokenizer, len(known), lambda i: f" {known[i]}")
        self.numbers = Spellings(tokenizer, 100_000, lambda i: f" {i}")
        blanks = {"name": self.names, "number": self.numbers}
        self.haystack = Haystack(tokenizer, FILLER, longest, blanks)
        self.entry = self._most(ENTRY) - sum(widest) + narrowest

    def make(
        self,
        kind: Kind,
        random: np.random.Generator,
        lengths: Ids,
        depths: Depths | None = None,
        asks: int = 1,
    ) -> Sequences:
        """Prompts of so many tokens and what they ask for.

        Args:
            kind: of the prompts.
            random: where everything comes from that is not given.
            lengths: tokens before the last answer, (N,).
            depths: of what is asked for first, (N,); None: anywhere.
            asks: how many questions, one after the other.
        """
        depths = random.random(len(lengths)) if depths is None else depths
        begin = Part(np.array([self.tokenizer.bos]))
        if kind.facts is None:
            parts = self._listed(kind, random, lengths - 1, depths, asks)
        else:
            parts = self._hidden(kind, kind.facts, random, lengths - 1, depths, asks)
        return join(len(lengths), begin, *parts)

    def _hidden(
        self,
        kind: Kind,
        keys: int,
        random: np.random.Generator,
        lengths: Ids,
        depths: Depths,
        asks: int,
    ) -> list[Part]:
        """Keys in filler; the numbers of some of them are asked for."""
        shape, write = (len(lengths), keys), self.haystack.write
        name, number = distinct(random, shape, self.names.count), self._draw(random, shape)
        shares = np.column_stack([depths, random.random((len(lengths), keys - 1))])
        asked = shares.argsort(1).argsort(1)[:, :asks]  # the first column is at the wanted depth
        before, after = write(kind.head), self._questions(kind.question, name, number, asked)
        lines = write(kind.fact, name=name.ravel(), number=number.ravel())
        room = lengths - tokens([*before, *after[:-1]], len(lengths))
        gaps = spread(np.sort(shares), room - tokens(lines, name.size).reshape(shape).sum(1))
        filler = self.haystack.filler
        each = join(name.size, *lines, *filler(gaps[:, 1:].ravel()))  # with what comes after it
        body = pack(each, np.ones(shape, dtype=np.bool_))
        return [*before, *filler(gaps[:, 0]), body, *after]

    def _listed(
        self, kind: Kind, random: np.random.Generator, lengths: Ids, depths: Depths, asks: int
    ) -> list[Part]:
        """As many entries as there is room for; the numbers of some are asked for."""
        shape = len(lengths), min(self.names.count, int(lengths.max()) // self.entry)
        write, column = self.haystack.write, np.arange(shape[1])
        name, number = distinct(random, shape, self.names.count), self._draw(random, shape)
        before = write(kind.head)
        entries = join(name.size, *write(kind.fact, name=name.ravel(), number=number.ravel()))
        used = entries.lengths.reshape(shape).cumsum(1)
        # What is over becomes filler: two tokens or more, as an empty line might be none.
        room = lengths - tokens(before, len(lengths)) - self._most(_asking(kind.question, asks)) - 2
        count = (used <= room[:, None]).sum(1)[:, None]
        place = np.rint(depths[:, None] * (count - 1))
        others = np.where(column < count, random.random(shape), 2)
        asked = np.where(column == place, -1, others).argsort(1)[:, :asks]
        after = self._questions(kind.question, name, number, asked)
        body = pack(entries, column < count)
        rest = lengths - tokens([*before, body, *after[:-1]], len(lengths))
        return [*before, *self.haystack.filler(rest), body, *after]

    def _questions(self, question: str, name: Ids, number: Ids, asked: Ids) -> list[Part]:
        """Questions for these columns of names and numbers, each with its answer."""
        parts: list[Part] = []
        for which in asked.T:
            row = np.arange(len(which))
            parts += self.haystack.write(
                "\n" + question if parts else question, name=name[row, which]
            )
            parts.append(self.numbers.part(number[row, which], scored=True))
        return parts

    def _draw(self, random: np.random.Generator, shape: tuple[int, int]) -> Ids:
        return random.integers(*self.range, shape)

    def published(self, nominal: int, trial: int) -> Sequences:
        """What the published script makes of a trial's index."""
        count = int(CHARACTERS_PER_TOKEN * nominal // 1024 * 1024)
        random = np.random.RandomState(trial)
        first = random.randint(0, count)
        number = random.randint(1, 50_000)
        filler = " ".join([FILLER] * (count // len(FILLER) + 1))
        key = KEY.replace("{number}", f" {number}")
        text = f"{HEAD}{filler[:first]}\n{key}{filler[: count - first]}\n{QUESTION}"
        prompt = np.array([self.tokenizer.bos, *self.tokenizer.encode(text)])
        return join(1, Part(prompt), self.numbers.part(np.array([number]), scored=True))

    def shortest(self, kind: Kind, trained: int) -> list[int]:
        """Tokens of the shortest prompt with one question, two, ..., as many as can be trained."""
        # A list has as many entries as questions, at least; BOS, and see _listed.
        facts, extra = (kind.questions, 3) if kind.facts is None else (kind.facts, 1)
        sizes = [
            extra + self._most(kind.head + facts * kind.fact + _asking(kind.question, asks))
            for asks in range(1, kind.questions + 1)
        ]
        return [sizes[0], *(size for size in sizes[1:] if size <= trained)]

    def _most(self, template: str) -> int:
        """Tokens of a template, at most."""
        blanks = sum(self.widest[blank] for blank in BLANK.findall(template))
        return len(self.tokenizer.encode(BLANK.sub("", template))) + blanks


def _asking(question: str, asks: int) -> str:
    return (question + "{number}\n") * (asks - 1) + question
