"""Finding five digits hidden in a text up to 8 times as long as in training (exact match)."""

from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from pe_bench.api import (
    BASE,
    FAR,
    FAR_FACTORS,
    ID,
    OOD,
    TINY,
    ZERO_SHOT,
    Batch,
    EvalPoint,
    Headline,
    InputError,
    Items,
    Measurement,
    Preset,
    PromptTask,
    RowKey,
    Scores,
    Sequences,
    TaskContext,
    TrainConfig,
    collate,
)
from pe_bench.tasks.passkey.prompts import FORMATS, TEXTS, Prompts, nonsense_names

EVAL_LENGTH_FACTORS = (0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4, 6, 8)
DEPTHS = [tenth / 10 for tenth in range(11)]
FAR_DEPTHS = [0.1, 0.3, 0.5, 0.7, 0.9]
EVAL_SEED = 20_250_301

# Constants of the published script: lengths are multiples of INTERVAL.
INTERVAL = 1000
MAX_INTERVALS = 8
TRIALS = 20


def parse_depths(text: str) -> list[float]:
    """Return depths such as `0.1+0.5+0.9`, in ascending order.

    Raises:
        InputError: a depth is not a number from 0 to 1, or is given twice.
    """
    try:
        depths = sorted({float(part) for part in text.split("+")})
    except ValueError:
        depths = []
    if len(depths) < len(text.split("+")) or not 0 <= depths[0] <= depths[-1] <= 1:
        raise InputError(
            "passkey:depths must be different numbers from 0 to 1, joined by +, such as "
            f"0.1+0.5+0.9, not {text}"
        )
    return depths


class Passkey(PromptTask):
    """Prompts of an exact number of tokens that hide a number; the answer is the number.

    `passkey`: one key, in the wording of Mohtashami and Jaggi 2023. `multikey`: four named keys,
    and a question for one of them. `keyvalue`: a list of names and numbers instead of filler.
    One model is trained on all three in equal parts, on prompts of every length up to
    `train.length`, with the key at any position. The loss is on the answer. Keys are drawn
    uniformly from 10000 to 99999. An item counts if greedy decoding writes the whole number
    correctly.

    | | protocol strict | protocol paper (LongLoRA, Chen et al. 2024, which TAPE used) |
    |---|---|---|
    | subsets | all three | `passkey` |
    | lengths | tokens, up to 8 times the training length | 1000 to 8000, nominal, within the same |
    | filler | cut between tokens | cut by characters, 3.75 for a token |
    | depths | 0 to 1 in tenths of the filler or list | drawn from the trial's index |
    | far lengths | 16 and 32 times the training length, not `keyvalue` | none |
    | keys | `samples` for each point | 20 trials below 50000, which repeat across lengths |

    There are means over the points in and out of distribution, also for each subset, and by length
    and by depth (over points out of distribution). There is no gate if no point is in distribution,
    as usual in protocol paper. `prompt_tokens` gives the actual number of tokens of a nominal
    length. The mean `far` is separate from all others: 25 prompts of each length and subset, at
    depths 0.1, 0.3 to 0.9. It is skipped for encodings with fewer positions.

    Preset quick trains on `passkey` alone; `passkey:kinds=all` adds the others.

    Preset paper is zero-shot, as published: a language model is trained further on rows of text of
    `train.length` tokens. It is evaluated at up to twice that length without having seen a prompt.
    All points are out of distribution, there is neither gate nor effective length, and the data are
    called `zero-shot`. The same holds for a checkpoint (`--from DIR`) that is not trained further.

    | published (Zhu et al. 2025) | preset paper |
    |---|---|
    | Llama 2 7B | `perplexity`, preset paper: 162 million parameters, C4, rows of 1024 |
    | trained further on RedPajama's sample | on C4 |
    | 64 rows of 8192 tokens, 1000 steps, AdamW, 2e-5, warm-up of 50 steps, no decay | the same |
    | documents joined by EOS, filled up with pads | windows at random places, a BOS before each |
    | positions scaled to half for all methods | set by the encoding's options |
    | LoRA, LongLoRA, theta, TAPE's own parameters | everything (others: `--from`, `--adapt.*`) |
    | half precision, `generate` | float32 logits, greedy |

    Args:
        kinds: `passkey`, or `all` three.
        depths: depths of the key in protocol strict, from 0 to 1 and joined by +: 0.1+0.5+0.9.
            None: 0 to 1 in tenths.
    """

    length_factors = EVAL_LENGTH_FACTORS
    far_samples = 25  # attention over 4096 tokens takes a quarter of a second each
    headline = Headline("exact_match", OOD)
    axes = {"length": "tokens of the prompt", "second": "depth of the key"}
    protocols = ("strict", "paper")
    presets = {
        "quick": Preset(
            TrainConfig(
                steps=1200, batch_size=16, length=128, lr=2e-3, schedule="linear", beta2=0.95
            ),
            TINY.changed(init_std=0.05),
            {"kinds": "passkey", "vocabulary": "words", "samples": 10, "gate": 95.0},
        ),
        "small": Preset(
            TrainConfig(steps=5000, batch_size=64, length=512, lr=5e-4),
            BASE,
            {"vocabulary": "words", "samples": 20},
        ),
        "mid": Preset(
            TrainConfig(steps=15_000, batch_size=64, length=1024, lr=4e-4),
            BASE.changed(layers=8),
            {"vocabulary": "words", "samples": 20},
        ),
        "paper": Preset(
            ZERO_SHOT, options={"kinds": "passkey", "samples": 20}, starts_from="perplexity"
        ),
    }

    def __init__(
        self,
        context: TaskContext,
        *,
        kinds: Literal["passkey", "all"] = "all",
        depths: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(context, **options)
        self.strict = context.protocol == "strict"
        for option, value in {"lengths": options.get("lengths"), "depths": depths}.items():
            if value is not None and not self.strict:
                raise InputError(
                    f"passkey:{option} has no effect in protocol paper, which sets its {option} "
                    "itself: leave the option out, or use protocol strict"
                )
        self.depths = DEPTHS if depths is None else parse_depths(depths)
        numbers = (10_000, 100_000) if self.strict else (1, 50_000)
        # A checkpoint that was not trained on prompts is evaluated at its own lengths.
        has_far = self.strict and not self.zero_shot and options.get("lengths") is None
        self.far_lengths = [factor * self.length for factor in FAR_FACTORS] if has_far else []
        longest = max([self.max_length, *self.far_lengths])
        self.prompts = Prompts(self.tokenizer, longest, self.names, numbers)
        self.all_subsets = tuple(FORMATS) if self.strict and kinds == "all" else ("passkey",)
        self.min_lengths = {k: self.prompts.min_lengths(k, self.length) for k in self.all_subsets}
        self.check_room()
        self.train_length = self.length + (0 if self.zero_shot else self.prompts.max_number)
        self._plan_evaluation()
        self._length_items = lru_cache(maxsize=2)(self._make_items)

    @property
    def names(self) -> list[str]:
        """Names of the facts; with whole words, no more than the entries of the longest list."""
        return nonsense_names(self.max_length // 9 if self.whole_words else None)

    def texts(self) -> list[str]:
        return [*TEXTS, *(f" {name}" for name in self.names)]

    def min_length(self, subset: str) -> int:
        return self.min_lengths[subset][0]

    def _plan_evaluation(self) -> None:
        """Choose the lengths and depths of the evaluation."""
        if self.strict:
            self.max_train_axis = self.length
            self.lengths = self.eval_lengths
            self.depth_names = [str(depth) for depth in self.depths]
            self.max_eval_tokens = self.lengths[-1] + self.prompts.max_number
            longest = max([*self.lengths, *self.far_lengths])
            self.max_far_tokens = longest + self.prompts.max_number
        else:
            self.max_train_axis = self.prompts.nominal_length(self.length)
            intervals = int(self.factors[-1] * self.max_train_axis) // INTERVAL
            intervals = min(MAX_INTERVALS, max(1, intervals))
            self.lengths = [INTERVAL * (i + 1) for i in range(intervals)]
            self.depth_names = [""]
            self.max_eval_tokens = int(self._make_items("passkey", self.lengths[-1]).lengths.max())
            self.axes = {"length": "tokens of the prompt, nominal", "second": ""}

    def eval_points(self, subset: str) -> list[EvalPoint]:
        points = []
        for length in self.lengths:
            if length >= self.min_lengths[subset][0] or not self.strict:
                trained = length <= self.max_train_axis and not self.zero_shot
                split = ID if trained else OOD
                curve = f"{subset}-length" if self.strict else ""
                points += [
                    EvalPoint(length, depth, split, curve=curve) for depth in self.depth_names
                ]
        if not FORMATS[subset].is_list:  # a far list would need more names than exist
            for length in self.far_lengths:
                for depth in FAR_DEPTHS:
                    points.append(EvalPoint(length, str(depth), FAR, curve=f"{subset}-length"))
        return points

    def items(self, subset: str, point: EvalPoint) -> Sequences:
        items = self._length_items(subset, point.length)
        names = self.depth_names
        if point.split == FAR:
            names = [str(depth) for depth in FAR_DEPTHS]
        each = len(items) // len(names)
        return items.take(np.arange(each) + each * names.index(point.second_axis))

    def _make_items(self, subset: str, length: int) -> Sequences:
        """Return the items of one length, depth by depth."""
        if not self.strict:
            return collate([self.prompts.published(length, trial) for trial in range(TRIALS)])
        rng = np.random.default_rng([EVAL_SEED, self.all_subsets.index(subset), length])
        split = FAR if length in self.far_lengths else ""
        samples = self.count(subset, EvalPoint(length, split=split))
        depths = np.repeat(FAR_DEPTHS if split else self.depths, samples)
        return collate(self.prompts.samples(subset, rng, np.full(len(depths), length), depths))

    def prompt_batch(self, seed: int, step: int, done: float = 1.0) -> Batch:
        rng = np.random.default_rng([seed, step])
        samples = []
        n_kinds = len(self.min_lengths)
        for i, (kind, min_lengths) in enumerate(self.min_lengths.items()):
            rows = (self.train.batch_size + (step + i) % n_kinds) // n_kinds
            questions = int(rng.integers(1, len(min_lengths) + 1))
            if rows:
                lengths = rng.integers(min_lengths[questions - 1], self.length + 1, rows)
                samples += self.prompts.samples(kind, rng, lengths, questions=questions)
        return collate(samples).batch()

    def measure(self, subset: str, point: EvalPoint, scores: Scores) -> list[Items]:
        found = super().measure(subset, point, scores)
        if point.second_axis and self._is_longer(point.length):
            depth = RowKey(f"{subset}-depth", second_axis=point.second_axis)
            found = [replace(each, groups=(*each.groups, depth)) for each in found]
        if not self.strict:
            items = self.items(subset, point)
            tokens = items.lengths - items.scored.sum(1).astype(np.float64)
            found.append(Items(subset, "prompt_tokens", tokens, length=point.length))
        return found

    def summarize(self, measured: list[Measurement]) -> list[Measurement]:
        by_depth: dict[tuple[str, str], list[Measurement]] = {}
        for row in measured:
            if row.second_axis and row.length is not None and self._is_longer(row.length):
                by_depth.setdefault((row.subset, row.second_axis), []).append(row)
        means = super().summarize(measured)
        for (kind, depth), rows in by_depth.items():
            means.append(replace(self.mean(f"{kind}-depth", rows), second_axis=depth))
        return means

    def _is_longer(self, length: int) -> bool:
        """Return whether the means by depth include a length."""
        return length > self.max_train_axis and length not in self.far_lengths
