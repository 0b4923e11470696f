"""Questions about who took what and went where: one to three facts in filler (exact match)."""

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np

from pe_bench.api import (
    BASE,
    OOD,
    TINY,
    ZERO_SHOT,
    EvalPoint,
    Headline,
    Preset,
    PromptTask,
    Scores,
    Stage,
    TaskContext,
    TrainConfig,
    Turn,
)
from pe_bench.tasks.passkey.prompts import FILLER, MIN_FILLER, Pieces

HEAD = "Remember who took what and where it is.\n"
PEOPLE = "Anna Ben Clara David Emma Felix Grace Henry Iris Jack Kate Leo Mona Nina Oscar Paul"
THINGS = "apple book coin drum egg flute glove hat kite lamp mug pen ring rope vase watch"
PLACES = (
    "Athens Berlin Cairo Dublin Geneva Havana Lima London Madrid Oslo Paris Prague Rome Seoul "
    "Tokyo Vienna"
)
HOPS = {"one-hop": 1, "two-hop": 2, "three-hop": 3}
TEXTS = [FILLER, f" {FILLER}", HEAD, f" {PEOPLE}", f" {THINGS}", f" {PLACES}"]
TEXTS += ["Then reached.", "Then took the.", "Then gave all to.", "Find the"]


class ChainedFacts(PromptTask):
    """Questions that take up to three distant facts to answer (after BABILong, arXiv 2406.10149).

    | subset | a story, its lines in this order | asked for |
    |---|---|---|
    | `one-hop` | `Then Anna reached Oslo.`, later `Then Anna reached Rome.` | `Find Anna` |
    | `two-hop` | `Then Anna took the lamp.`, then as above | `Find the lamp` |
    | `three-hop` | Anna took the lamp, `Then Anna gave all to Ben.`, Ben reached .. | the same |

    The answer is the last place that a person or thing has reached. A prompt has `stories` stories
    about different people, things and places. Their lines are interleaved and inserted into the
    filler of `passkey` at random places. One model is trained on all subsets in equal parts, on
    prompts of every length up to `train.length`. Training rows have two or more stories and ask
    about each of them; a curriculum begins with two stories of one hop. Preset quick has one hop
    only, so it tests a single lookup: `rope` does not learn the second hop within 2400 steps (37 %;
    guessing 33).

    Baselines: "guessing in context" names a random place of the prompt, "last place" the last one.

    | BABILong (Kuratov et al. 2024) | here |
    |---|---|
    | bAbI's 20 tasks | the idea of the first two, and a third with two people |
    | books (PG19) around the facts | `passkey`'s filler, cut between tokens |
    | varied wording, some facts irrelevant | one wording; the other stories are irrelevant |
    | instruction and examples | a sentence, and the beginning of the answer |
    | correct if the answer names the place and no other | exact match of the place |

    Preset paper is zero-shot, as in `passkey`.

    Args:
        hops: maximum number of facts that a question takes; selects the first subsets.
        stories: number of stories in each prompt.
        moves: number of places in each story.
    """

    headline = Headline("exact_match", OOD)
    all_subsets = tuple(HOPS)
    first_subset = "one-hop"
    axes = {"length": "tokens of the prompt", "second": ""}
    length_factors = (0.5, 0.75, 1, 1.5, 2, 3, 4)
    presets = {
        "quick": Preset(
            TrainConfig(
                steps=2400, batch_size=32, length=64, lr=1.5e-3, schedule="linear", beta2=0.99
            ),
            TINY.changed(init_std=0.05),
            {"vocabulary": "words", "hops": 1, "stories": 4, "moves": 1, "gate": 70.0},
        ),
        "small": Preset(
            TrainConfig(steps=10_000, batch_size=64, length=512, lr=5e-4),
            BASE,
            {"vocabulary": "words", "gate": 95.0},
        ),
        "mid": Preset(
            TrainConfig(steps=20_000, batch_size=64, length=1024, lr=4e-4),
            BASE.changed(layers=8),
            {"vocabulary": "words", "samples": 200, "gate": 95.0},
        ),
        "paper": Preset(ZERO_SHOT, options={"samples": 500}, starts_from="perplexity"),
    }

    def __init__(
        self,
        context: TaskContext,
        *,
        hops: int = 3,
        stories: int = 4,
        moves: int = 2,
        **options: Any,
    ) -> None:
        super().__init__(context, **options)
        most = len(PLACES.split())
        self.check_range(
            hops=(hops, 1, len(HOPS)),
            stories=(stories, 2, most // 2),
            moves=(moves, 1, most // stories),
        )
        self.all_subsets = tuple(HOPS)[:hops]
        self.stories = stories
        self.moves = moves
        words = f"{PEOPLE} {THINGS} {PLACES}".split()
        self.word_tokens = max(len(self.pieces.encode(f" {word}")) for word in words)
        self.check_room()

    def texts(self) -> list[str]:
        return TEXTS

    @cached_property
    def pieces(self) -> Pieces:
        """Texts as ids."""
        return Pieces(self.tokenizer, self.max_length, [])

    def min_length(self, subset: str) -> int:
        return self._needed(subset, self.stories)

    def min_train_length(self, subset: str) -> int:
        return self._needed(subset, 2)

    def max_answer(self, subset: str) -> int:
        return self.word_tokens

    def write(
        self,
        rng: np.random.Generator,
        subset: str,
        length: int,
        stage: Stage | None = None,
    ) -> list[Turn]:
        stories = self.stories
        if stage is not None:
            fits = [n for n in range(2, stories + 1) if self._needed(subset, n) <= length]
            stories = stage.facts or int(rng.choice(fits))
        people = self._draw(rng, PEOPLE, 2 * stories, stage)
        things = self._draw(rng, THINGS, stories, stage)
        places = self._draw(rng, PLACES, self.moves * stories, stage)
        left: list[list[list[int]]] = []
        turns = []
        for story, thing in enumerate(things):
            pair = people[2 * story : 2 * story + 2]
            went = places[story * self.moves : (story + 1) * self.moves]
            lines, question = self._story(HOPS[subset], pair, thing, went)
            left.append(lines[::-1])
            turns.append(Turn(question, went[-1]))
        order = rng.permutation(np.repeat(np.arange(stories), len(left[0]))).tolist()
        mixed = [left[story].pop() for story in order]
        cuts = np.sort(rng.random(len(mixed))).tolist()
        asked = turns[:1]
        if stage is not None:
            asked = [turns[i] for i in rng.permutation(stories)]
        return self.pieces.compose(self.pieces.begin(HEAD), mixed, asked, cuts, length)

    def own_baselines(self, subset: str, point: EvalPoint) -> Mapping[str, Scores]:
        items = self.items(subset, point)
        counts = items.scored.sum(1)
        guess = np.full(len(items), 1 / (self.stories * self.moves))
        last = np.zeros(len(items))
        for row, (ids, scored) in enumerate(zip(items.ids, items.scored, strict=True)):
            prompt = self.tokenizer.decode(ids[: scored.argmax()])
            answer = self.tokenizer.decode(ids[scored]).strip()
            last[row] = re.findall(r"reached ([A-Z][a-z]+)", prompt)[-1] == answer
        return {
            "guessing in context": Scores(guess, counts, guess * counts, guess * counts),
            "last place": Scores(last, counts, last * counts, last * counts),
        }

    def _needed(self, subset: str, stories: int) -> int:
        """Return the number of tokens that this many stories need."""
        word = [0] * self.word_tokens
        lines, question = self._story(HOPS[subset], [word, word], word, [word] * self.moves)
        longest = stories * sum(map(len, lines)) + len(question)
        return len(self.pieces.begin(HEAD)) + longest + MIN_FILLER

    def _draw(
        self, rng: np.random.Generator, words: str, count: int, stage: Stage | None
    ) -> list[list[int]]:
        """Return distinct words of the current stage as ids, each with the space before it."""
        in_use = (stage or Stage()).in_use(words.split(), count)
        drawn = rng.permutation(in_use)[:count]
        return [self.pieces.encode(f" {word}") for word in drawn]

    def _story(
        self, hops: int, people: list[list[int]], thing: list[int], places: list[list[int]]
    ) -> tuple[list[list[int]], list[int]]:
        """Return the lines of a story in order, and the question about its end."""
        encode = self.pieces.encode
        first, second = people
        then = encode("Then")
        stop = encode(".\n")
        lines = []
        if hops > 1:
            lines.append([*then, *first, *encode(" took the"), *thing, *stop])
        if hops > 2:
            lines.append([*then, *first, *encode(" gave all to"), *second, *stop])
        last = second if hops > 2 else first
        for place in places:
            lines.append([*then, *last, *encode(" reached"), *place, *stop])
        asked = [*encode(" the"), *thing] if hops > 1 else first
        return lines, [*encode("Find"), *asked]
