"""Prompts of an exact number of tokens that hide numbers in filler or in a list.

A text consists of pieces that no common tokenizer merges: words with the space before them, and
lines. Each piece is encoded once. Filler is cut between tokens, but not where its last token would
merge with the newline. Therefore the ids equal the ids of the whole text.
"""

import re
from collections.abc import Callable
from functools import cache, cached_property
from itertools import accumulate, chain, pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pe_bench.api import TokenIds, Tokenizer, Turn

FILLER = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
HEAD = (
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. "
    "I will quiz you about the important information there.\n"
)
LIST_HEAD = "Below is a list of names, each with a number. I will ask you for one of the numbers.\n"
KEY = "The pass key is{number}. Remember it.{number} is the pass key.\n"
QUESTION = "What is the pass key? The pass key is"
BLANK = r"(\{name\}|\{number\})"

CHARACTERS_PER_TOKEN = 3.75  # conversion of lengths in the published script
MIN_FILLER = 2  # minimum number of filler tokens, unless there is no filler
TAIL = 8  # number of tokens before a newline that decide whether it merges
# Maximum tokens of a name and of a number, and minimum tokens of both together. No token is shorter
# than a byte.
TOKEN_BOUNDS = {"words": (1, 5, 6), "bytes": (5, 6, 11), "other": (5, 6, 2)}

Fact = tuple[list[int], list[int]]  # ids of a name and of its number


class PromptFormat(NamedTuple):
    """The texts of one kind of prompt.

    Attributes:
        head: beginning of the prompt.
        fact: template of a line that states a number.
        question: template of a question for a number.
        facts: number of facts and maximum number of questions; for a list, minimum number of facts.
        is_list: whether the prompt is a list of as many facts as fit; False: facts between filler.
    """

    head: str
    fact: str
    question: str
    facts: int
    is_list: bool = False


FORMATS = {
    "passkey": PromptFormat(HEAD, KEY, QUESTION, 1),
    "multikey": PromptFormat(
        HEAD, "The pass key of{name} is{number}.\n", "The pass key of{name} is", 4
    ),
    "keyvalue": PromptFormat(LIST_HEAD, "-{name} is{number}\n", "Once more,{name} is", 4, True),
}
TEXTS = [FILLER, f" {FILLER}", " 0 1 2 3 4 5 6 7 8 9"]
for _format in FORMATS.values():
    TEXTS += [re.sub(BLANK, "", text) for text in (_format.head, _format.fact, _format.question)]


class Pieces:
    """Encoded pieces of text, and the filler around lines.

    Args:
        tokenizer: tokenizer of all texts.
        max_length: maximum number of tokens of a prompt.
        names: distinct words for names.

    Attributes:
        encode: returns the ids of a piece.
        begin: returns the ids of the beginning of a prompt.
        encode_name: returns the ids of the name with an index, with a space before it.
    """

    def __init__(self, tokenizer: Tokenizer, max_length: int, names: list[str]) -> None:
        self.bos = tokenizer.bos
        self.names = names
        self.encode: Callable[[str], list[int]] = cache(
            lambda text: tokenizer.encode(text).tolist()
        )
        self.begin: Callable[[str], list[int]] = cache(
            lambda text: [self.bos, *tokenizer.encode_text(text).tolist()]
        )
        self.encode_name: Callable[[int], list[int]] = cache(
            lambda index: self.encode(f" {names[index]}")
        )
        copies = 2 + max_length // len(self.encode(FILLER))
        self.filler = self.encode(" ".join([FILLER] * copies))
        self.decode = tokenizer.decode
        self.merges: Callable[[int], bool] = cache(self._merges)

    def hide(
        self, head: list[int], lines: list[list[int]], cuts: list[float], length: int
    ) -> list[int]:
        """Return a context of `length` tokens: the head, then the lines with filler around them.

        Args:
            head: ids of the beginning.
            lines: ids of each line.
            cuts: position of each line as a fraction of the filler, ascending.
            length: number of tokens, at least the tokens of head and lines.
        """
        room = length - len(head) - sum(map(len, lines))
        first, *filler = self._filler_lines(cuts, room)
        context = head + first
        for line, filler_line in zip(lines, filler, strict=True):
            context += line + filler_line
        return context

    def compose(
        self,
        head: list[int],
        lines: list[list[int]],
        turns: list[Turn],
        cuts: list[float],
        length: int,
    ) -> list[Turn]:
        """Return a prompt with its answers: a context, then questions, each on a line.

        Args:
            head, lines, cuts: as in `hide`.
            turns: questions with their answers; questions that do not fit are left out.
            length: number of tokens before the last answer, at least the sum of head, lines, the
                first question and MIN_FILLER.
        """
        first, *others = turns
        asked = [first]
        room = length - len(head) - sum(map(len, lines)) - len(first.prompt) - MIN_FILLER
        for turn in others:
            more = Turn([*self.encode("\n"), *turn.prompt], turn.answer)
            room -= len(asked[-1].answer) + len(more.prompt)
            if room < 0:
                break
            asked.append(more)
        return [Turn(self.hide(head, lines, cuts, length - _prompt_tokens(asked))), *asked]

    def _filler_lines(self, cuts: list[float], room: int) -> list[list[int]]:
        """Return `room` tokens of filler, cut into lines at the given fractions."""
        ends = [0, *(round(cut * room) for cut in cuts), room]
        sizes = [end - start for start, end in pairwise(ends)]
        # The newline of an empty line would merge with the newline before it in many vocabularies.
        empty = sizes.count(1)
        sizes = [0 if size == 1 else size for size in sizes]
        sizes[sizes.index(max(sizes))] += empty
        return [self._filler_line(size) if size else [] for size in sizes]

    def _filler_line(self, size: int) -> list[int]:
        """Return filler of `size` tokens, the last one a newline."""
        if size == 1:
            return self._empty_line
        kept = self.filler[: size - 1]
        if self.merges(size - 1):  # replace a full stop by the word after it
            kept[-1] = self.filler[size - 1]
        return [*kept, *self.encode("\n")]

    @cached_property
    def _empty_line(self) -> list[int]:
        """An empty line after another line, or a zero if two newlines would merge."""
        parts = [self.encode(piece) for piece in (".\n", "\n", "The")]
        return self.encode("\n" if [*chain(*parts)] == self.encode(".\n\nThe") else "0")

    def _merges(self, size: int) -> bool:
        """Return whether the last of the first `size` tokens of filler merges with a newline.

        Vocabularies such as Llama 3's have a token for a full stop with the newline after it.
        """
        text = self.decode(self.filler[max(0, size - TAIL) : size])
        return self.encode(f"{text}\n") != self.encode(text) + self.encode("\n")


class Prompts(Pieces):
    """Writer of prompts of every kind.

    Args:
        tokenizer, max_length: as in `Pieces`.
        names: distinct names of the facts.
        number_range: smallest number, and largest number plus one.
    """

    def __init__(
        self, tokenizer: Tokenizer, max_length: int, names: list[str], number_range: tuple[int, int]
    ) -> None:
        super().__init__(tokenizer, max_length, names)
        self.number_range = number_range
        bounds = TOKEN_BOUNDS.get(tokenizer.name, TOKEN_BOUNDS["other"])
        self.max_name, self.max_number, self.min_fact = bounds
        self.longest_fact: Fact = [0] * self.max_name, [0] * self.max_number
        self.encode_number = cache(lambda number: self.encode(f" {number}"))

    def samples(
        self,
        kind: str,
        rng: np.random.Generator,
        lengths: TokenIds,
        depths: npt.NDArray[np.float64] | None = None,
        questions: int = 1,
    ) -> list[list[Turn]]:
        """Return a prompt of each length, with its answers.

        Args:
            kind: a key of FORMATS.
            rng: source of randomness.
            lengths: number of tokens before the last answer, (N,).
            depths: relative position of the fact of the first question, 0 to 1, (N,); None: random.
            questions: number of consecutive questions.
        """
        form = FORMATS[kind]
        rows = len(lengths)
        n_facts = form.facts
        if form.is_list:
            min_entry = len(self._render(form.fact, ([], []))) + self.min_fact
            n_facts = min(len(self.names), int(lengths.max() - 1) // min_entry)
        depths = rng.random(rows) if depths is None else depths
        names = distinct(rng, (rows, n_facts), len(self.names)).tolist()  # (N, K)
        numbers = rng.integers(*self.number_range, (rows, n_facts)).tolist()  # (N, K)
        # In a list, the lines have equal distances, and further questions have random facts. In
        # a text, every fact has a random depth, and questions are in the order of the facts.
        others = rng.random((rows, n_facts if form.is_list else n_facts - 1))
        samples = []
        for row in range(rows):
            name_ids = map(self.encode_name, names[row])
            number_ids = map(self.encode_number, numbers[row])
            facts = list(zip(name_ids, number_ids, strict=True))
            length, depth, other = lengths[row], float(depths[row]), others[row].tolist()
            if form.is_list:
                turns = self._write_list(form, length, facts, depth, other, questions)
            else:
                turns = self._write_text(form, length, facts, [depth, *other], questions)
            samples.append(turns)
        return samples

    def _write_list(
        self,
        form: PromptFormat,
        length: int,
        facts: list[Fact],
        depth: float,
        priorities: list[float],
        questions: int,
    ) -> list[Turn]:
        """Return a prompt with a list of facts after all filler, and its answers.

        Args:
            form: texts of the prompt.
            length: number of tokens before the last answer.
            facts: facts in the order of the list; those that do not fit are left out.
            depth: relative position of the fact of the first question, 0 to 1.
            priorities: a number for each fact; further questions ask for the lowest ones.
            questions: number of questions.
        """
        head = self.begin(form.head)
        before, between, after = (self.encode(part) for part in re.split(BLANK, form.fact)[::2])
        lines = [[*before, *name, *between, *number, *after] for name, number in facts]
        asking = _prompt_tokens(self._ask(form, [self.longest_fact] * questions))
        room = length - len(head) - asking - MIN_FILLER
        lines = lines[: sum(end <= room for end in accumulate(map(len, lines)))]
        order = np.array(priorities[: len(lines)])
        order[round(depth * (len(lines) - 1))] = -1  # comes first
        asked = [facts[index] for index in order.argsort()[:questions]]
        return self._fill(form, length, asked, [list(chain(*lines))], [1.0])

    def _write_text(
        self,
        form: PromptFormat,
        length: int,
        facts: list[Fact],
        depths: list[float],
        questions: int,
    ) -> list[Turn]:
        """Return a prompt with facts between filler, and its answers.

        Args:
            form: texts of the prompt.
            length: number of tokens before the last answer.
            facts: facts in the order of the text.
            depths: relative position of each fact, 0 to 1, in the order of the questions.
            questions: number of questions.
        """
        lines = [self._render(form.fact, fact) for fact in facts]
        places = sorted(depths)
        asked = [facts[places.index(depth)] for depth in depths[:questions]]
        return self._fill(form, length, asked, lines, places)

    def _fill(
        self,
        form: PromptFormat,
        length: int,
        asked: list[Fact],
        lines: list[list[int]],
        depths: list[float],
    ) -> list[Turn]:
        """Return lines at their depths between filler, then the questions and their answers."""
        turns = self._ask(form, asked)
        head = self.begin(form.head)
        context = self.hide(head, lines, depths, length - _prompt_tokens(turns))
        return [Turn(context), *turns]

    def published(self, nominal_length: int, trial: int) -> list[Turn]:
        """Return the prompt that the published script makes from a trial's index."""
        characters = int(CHARACTERS_PER_TOKEN * nominal_length // 1024 * 1024)
        rng = np.random.RandomState(trial)
        cut = rng.randint(0, characters)
        number = f" {rng.randint(1, 50_000)}"
        filler = " ".join([FILLER] * (characters // len(FILLER) + 1))
        key = KEY.replace("{number}", number)
        text = f"{HEAD}{filler[:cut]}\n{key}{filler[: characters - cut]}\n{QUESTION}"
        return [Turn(self.begin(text), self.encode(number))]

    def nominal_length(self, tokens: int) -> int:
        """Return the length that the published script assigns to a number of tokens."""
        characters = tokens * len(f" {FILLER}") / len(self.encode(f" {FILLER}"))
        return round(characters / CHARACTERS_PER_TOKEN)

    def min_lengths(self, kind: str, max_length: int) -> list[int]:
        """Return the minimum lengths for 1, 2, ... questions.

        Lengths above `max_length` are left out, except the first.
        """
        form = FORMATS[kind]
        facts = form.facts * len(self._render(form.fact, self.longest_fact))
        least = len(self.begin(form.head)) + facts
        least += MIN_FILLER if form.is_list else 0
        found = []
        for questions in range(1, form.facts + 1):
            found.append(least + _prompt_tokens(self._ask(form, [self.longest_fact] * questions)))
        return [length for length in found if length <= max_length] or found[:1]

    def _ask(self, form: PromptFormat, facts: list[Fact]) -> list[Turn]:
        """Return a question for each fact, each on a line, with its answer."""
        turns: list[Turn] = []
        for fact in facts:
            template = "\n" + form.question if turns else form.question
            turns.append(Turn(self._render(template, fact), fact[1]))
        return turns

    def _render(self, template: str, fact: Fact) -> list[int]:
        """Return the ids of a template with its blanks filled."""
        blanks = {"{name}": fact[0], "{number}": fact[1]}
        ids: list[int] = []
        for piece in re.split(BLANK, template):
            ids += blanks[piece] if piece in blanks else self.encode(piece)
        return ids


def _prompt_tokens(turns: list[Turn]) -> int:
    """Return the number of tokens before the last answer."""
    total = sum(len(turn.prompt) + len(turn.answer) for turn in turns)
    return total - len(turns[-1].answer)


def distinct(rng: np.random.Generator, shape: tuple[int, int], count: int) -> TokenIds:
    """Return random numbers below `count`, distinct within each row.

    Rows are windows of a single permutation, because a permutation for each row would take longer
    than the rest of the sampling.
    """
    order = rng.permutation(count)
    starts = rng.integers(count, size=(shape[0], 1))
    found: TokenIds = order[(starts + np.arange(shape[1])) % count]
    return found


def nonsense_names(count: int | None = None) -> list[str]:
    """Return `count` meaningless names of two syllables; None: all 7,225."""
    syllables = [consonant + vowel for consonant in "bdfghjklmnprstvwz" for vowel in "aeiou"]
    names = [first + second for first in syllables for second in syllables]
    order = np.random.default_rng(0).permutation(len(names))[:count]
    return [names[i] for i in order]
