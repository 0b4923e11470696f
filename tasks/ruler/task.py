"""RULER in words: needles, variables, common words; up to 4 times the training length (recall)."""

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from math import comb
from typing import Any

import numpy as np

from pe_bench.api import (
    BASE,
    OOD,
    TINY,
    ZERO_SHOT,
    Decoder,
    EvalPoint,
    Headline,
    InputError,
    Preset,
    PromptTask,
    Scores,
    Sequences,
    Stage,
    TaskContext,
    TrainConfig,
    Turn,
    generate,
)
from pe_bench.tasks.passkey.prompts import nonsense_names
from pe_bench.tasks.ruler.prompts import KINDS, NIAH, TEXTS, UNCOMMON, RulerPrompts

MAX_TOKENS = 16_384  # per forward pass
# Patterns for the possible answers in the text of a prompt, without its question.
CANDIDATES = dict.fromkeys(NIAH, r"^We \w+ \w+ (\w+)\.$")
CANDIDATES |= {"vt": r"^VAR (\w+) =", "cwe": r"\w+", "fwe": r"\w+"}


class Ruler(PromptTask):
    """Seven of RULER's tasks (Hsieh et al. 2024, arXiv 2404.06654), in prompts of exact lengths.

    | subset | the text has, n being `needles` | asked for | answers |
    |---|---|---|---|
    | `niah-single` | `We call bado kilu.`, n - 1 lines `We saw nepo rati.` | `We call bado` | 1 |
    | `niah-multikey` | n keys, a value each | one key | 1 |
    | `niah-multivalue` | n / 2 keys, two values each | one key | 2 |
    | `niah-multiquery` | n keys, a value each | two keys | 2 |
    | `vt` | `VAR bado = kilu.`, four chains of n / 2 variables | those with a value | n / 2 |
    | `cwe` | a list, n / 2 words 12 times, all others 3 times | the common words | n / 2 |
    | `fwe` | a list, the k-th word as often as 1 / k^2 | the second to fourth | 3 |

    Lines are hidden in `passkey`'s filler at random places. Keys, variables and values are words of
    one vocabulary, and no word has two roles in a prompt. One model is trained on all subsets in
    equal parts, on prompts of every length up to `train.length`. A curriculum begins with two keys,
    except in preset quick, which learns as well without it.
    Training rows have at least two lines and continue with further questions about them. Answers
    are in the order of the text (`fwe`: by frequency).

    Preset quick has only `niah-multikey`. In `niah-single`, a model can ignore the question,
    because only one line says "call". In `niah-multivalue`, `rope` learns one of the two values
    within 3000 steps (62 % in distribution, guessing 33). It did not learn `niah-multiquery` and
    `vt` when they were tried with fewer lines; `cwe` and `fwe` were not tried.

    `string_match_all` is RULER's metric: the percentage of an item's answers that occur in the
    output of the model, in any order and ignoring case, averaged over items. `exact_match` counts
    items with all answers in the output. The baseline "guessing in context" does not read the
    question. It names random words of the right kind (values, variables for `vt`, or words of the
    list), one for each answer.

    | RULER | here |
    |---|---|
    | 13 tasks | seven: no UUIDs, essays, text of needles alone, questions on documents |
    | instructions, questions, an example (`vt`, `cwe`) | a sentence, and the answer's beginning |
    | keys of two words, values of seven digits | nonsense words of four letters |
    | `single`: no other line | n - 1 lines that the question does not ask for |
    | `multivalue`: 4 values of one key | two values of each key; not all are answers |
    | `multiquery`: 4 keys, all asked for | two of the keys, likewise |
    | `vt`: one chain of 4 hops | four chains of n / 2 variables, likewise |
    | `cwe`: a numbered list, 10 words 30 times | not numbered, n / 2 words 12 times |
    | `fwe`: words of six letters, `....` is the first | nonsense words, `blank` is the first |
    | up to 128 tokens written | as many as the longest answer has (zero-shot: twice as many) |
    | effective length: up to 85.6 % | up to 85 % of the score in distribution |

    Preset paper is zero-shot, as in `passkey`, with twice as many needles as in RULER.

    Args:
        kinds: `all`, or some subsets, joined by +: niah-single+vt.
        needles: n of the table, even.
        curriculum: whether training begins with two keys and few words.
    """

    headline = Headline("string_match_all", OOD)
    version = 3
    point_metrics = ("string_match_all", "exact_match")
    all_subsets = KINDS
    first_subset = "niah-multikey"
    axes = {"length": "tokens of the prompt", "second": ""}
    length_factors = (0.5, 0.75, 1, 1.5, 2, 3, 4)
    presets = {
        "quick": Preset(
            TrainConfig(
                steps=3000, batch_size=32, length=72, lr=1.5e-3, schedule="linear", beta2=0.99
            ),
            TINY.changed(layers=2, heads=2, init_std=0.05),
            {
                "vocabulary": "words",
                "kinds": "niah-multikey",
                "needles": 6,
                "curriculum": False,
                "samples": 50,
                "gate": 70.0,
            },
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
        kinds: str = "all",
        needles: int = 8,
        curriculum: bool = True,
        **options: Any,
    ) -> None:
        # Set this first, because the vocabulary depends on it.
        self.needles = needles
        self.all_subsets = KINDS if kinds == "all" else tuple(kinds.split("+"))
        if not curriculum:
            self.first_subset = ""
        super().__init__(context, **options)
        self.check_range(needles=(needles, 4, 64))
        if needles % 2:
            raise InputError(f"{self.name}:needles must be even, not {needles}")
        self.check_kinds(KINDS)
        self.prompts = RulerPrompts(self.tokenizer, self.max_length, self.names, needles)
        self.check_room()

    @cached_property
    def names(self) -> list[str]:
        """Nonsense words; with whole words, no more than prompts need."""
        needed = max(32, 4 * self.needles)
        if "cwe" in self.all_subsets:
            needed = max(needed, self.needles + self.max_length // UNCOMMON)
        return nonsense_names(needed if self.whole_words else None)

    def texts(self) -> list[str]:
        return [*TEXTS, *(f" {name}" for name in self.names)]

    def write(
        self,
        rng: np.random.Generator,
        subset: str,
        length: int,
        stage: Stage | None = None,
    ) -> list[Turn]:
        return self.prompts.write(subset, rng, length, stage)

    def min_length(self, subset: str) -> int:
        return self.prompts.min_length(subset)

    def min_train_length(self, subset: str) -> int:
        return self.prompts.min_length(subset, needles=2)

    def max_answer(self, subset: str) -> int:
        return self.prompts.max_name * self.prompts.n_answers(subset)

    @cached_property
    def max_eval_tokens(self) -> int:
        written = max(map(self.max_answer, self.all_subsets))
        return self.max_length + written * (1 + self.zero_shot)

    def score(self, model: Decoder, items: Sequence[Sequences]) -> list[Scores]:
        return [self._count_answers(model, each) for each in items]

    def _count_answers(self, model: Decoder, items: Sequences) -> Scores:
        """Count the answers of each item that occur in the output of the model."""
        prompts = []
        answers = []
        for ids, scored in zip(items.ids, items.scored, strict=True):
            prompts.append(ids[: scored.argmax()].tolist())
            answers.append(self.tokenizer.decode(ids[scored]).lower().split())
        limit = int(items.scored.sum(1).max()) * (1 + self.zero_shot)
        rows = max(1, MAX_TOKENS // (items.ids.shape[1] + limit))
        written = []
        for start in range(0, len(prompts), rows):
            some = prompts[start : start + rows]
            written += generate(model, some, max_new_tokens=limit, end=self.tokenizer.eos)
        found = np.zeros(len(items), dtype=np.int64)
        for row, ids in enumerate(written):
            text = self.tokenizer.decode(ids).lower()
            found[row] = sum(answer in text for answer in answers[row])
        counts = np.array(list(map(len, answers)))
        tokens = sum(map(len, prompts)) + sum(map(len, written))
        return Scores(found == counts, counts, found, found, tokens)

    def own_baselines(self, subset: str, point: EvalPoint) -> Mapping[str, Scores]:
        items = self.items(subset, point)
        candidates = np.zeros(len(items))
        for row, (ids, scored) in enumerate(zip(items.ids, items.scored, strict=True)):
            prompt = self.tokenizer.decode(ids[: scored.argmax()])
            words = re.findall(CANDIDATES[subset], prompt, re.MULTILINE)
            candidates[row] = len({*self.names}.intersection(words))
        asked = self.prompts.n_answers(subset)
        found = asked**2 / candidates  # each answer is named with probability asked / candidates
        exact = np.array([1 / comb(int(count), asked) for count in candidates])
        return {"guessing in context": Scores(exact, np.full(len(items), asked), found, found)}
