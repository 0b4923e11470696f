"""Recall that one matching token cannot answer: by order, by two tokens, by value (accuracy)."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pe_bench.api import (
    BASE,
    FIRST,
    HELD_OUT_SEED,
    ID,
    IGNORE,
    OOD,
    SMALL,
    TINY,
    Batch,
    EvalPoint,
    Headline,
    InputError,
    LengthGeneralizationTask,
    Preset,
    Scores,
    Sequences,
    Stage,
    TaskContext,
    TokenIds,
    TrainConfig,
    Vocabulary,
    stack,
    stage_at,
)

EVAL_SEED = 20_251_125

TRAINED_VALUES = (2, 4)
"""Values of a key in training."""

MORE_VALUES = 8  # values of a key, only in evaluation
LEAST_KEYS = 4  # per row in evaluation

MARKERS = {"latest": FIRST, "first": FIRST + 1, "two-token": FIRST + 2, "reverse": FIRST + 3}
NTH = FIRST + 4
"""Marker of the first value; those of the second to the last trained one follow."""

KINDS = (*MARKERS, "nth")
ORDERS = ("latest", "first", "nth")
"""Kinds whose keys are one token that comes several times."""

FIRST_WORD = NTH + max(TRAINED_VALUES)
STAGE_WORDS = 4  # minimum in use: two keys of two tokens


class Facts(NamedTuple):
    """Contents of rows: records and questions.

    Attributes:
        keys: (N, n, 1 or 2) the key of each record, in the order of the row.
        values: (N, n) the value of each record.
        markers: (N, m) first token of each question.
        places: (N, m) index of the record that each question is about.
    """

    keys: TokenIds
    values: TokenIds
    markers: TokenIds
    places: TokenIds


class Recall(LengthGeneralizationTask):
    """Five kinds of question about n records `key value` that an induction head cannot answer.

    An induction head finds an earlier occurrence of the last token and names the token after it.
    Here keys occur several times, have two tokens, or are the answer.

    | subset | a row ends with | asks for |
    |---|---|---|
    | `latest` | `LATEST k` for every key | the last value of the key |
    | `first` | `FIRST k` for every key | the first value of the key |
    | `nth` | `NTH_i k` for every key | the i-th value of the key, i from 1 to 4 |
    | `two-token` | `BOTH a b` for n / w keys | the value after `a b` |
    | `reverse` | `KEY v` for n / w values | the key before `v` |

    Every key has w values (the second axis), so there are n / w keys. Records are in random order,
    and all values of a row are different. In `two-token`, each first token and each second token
    occurs in w records, and each pair in one. Rows do not show answers, and the questions of a row
    are about different records. `accuracy` is the percentage of correct answers, `exact_match` the
    percentage of rows without an error.

    One model is trained on all kinds in equal parts: on `records` records with w = 2 and w = 4, and
    on half that number with w = 2. During the first 40 % of the steps, the curriculum has two
    records with different keys, at first with few words. Without it no kind is learned within the
    steps of preset quick. In these rows `latest`, `first` and `nth` are the same question, so they
    share one part. Two fifths of the remaining steps have a quarter of `records`, with w = 1 or 2.

    Preset quick has `latest`, `first` and `reverse`: in trials with one seed `t5` learned all three
    within its steps, and no encoding learned the others. `recall:kinds=all` adds them.

    | mean over points | rows |
    |---|---|
    | `in-distribution` | the three trained sizes |
    | `longer` | 2 and 4 times `records`, w = 2 and 4 |
    | `more-values` | w = 8, `records` records or more |
    | `out-of-distribution` (headline) | both |

    Each kind has its own means and gate. The baseline `a record of the key` picks one of the w
    records of the key at random (in `two-token` of the first token, in `reverse` any record). This
    is the best answer without knowing order, second token and value. The baseline `the last record`
    answers with the last record of the row.

    These rows are our design, so preset paper repeats no publication. Related tasks:
    `flipflop` asks for the latest of many writes (Liu et al. 2023, arXiv 2306.00946), MQAR for the
    only value of a key (Arora et al. 2023, arXiv 2312.04927), RULER for one of several needles
    (Hsieh et al. 2024, arXiv 2404.06654).

    Args:
        kinds: `all`, or subsets joined by +, as in latest+nth.
        records: number of records in the longest training rows, a multiple of 16.
        words: number of possible keys, and of possible values.
    """

    headline = Headline("accuracy", OOD)
    all_subsets = KINDS
    point_metrics = ("accuracy", "exact_match")
    autoregressive = False
    averages_each_subset = True
    axes = {"length": "records", "second": "values of a key"}
    presets = {
        "quick": Preset(
            TrainConfig(steps=2000, batch_size=64, lr=3e-3),
            TINY.changed(layers=2, init_std=0.05),
            {"kinds": "latest+first+reverse", "records": 16, "words": 64, "gate": 90.0},
        ),
        "small": Preset(
            TrainConfig(steps=10_000, batch_size=128, lr=1e-3),
            SMALL,
            {"records": 64, "words": 512},
        ),
        "mid": Preset(
            TrainConfig(steps=20_000, batch_size=128, lr=5e-4),
            BASE,
            {"records": 128, "words": 2048, "samples": 200},
        ),
        "paper": Preset(
            TrainConfig(steps=40_000, batch_size=256, lr=5e-4),
            BASE,
            {"records": 128, "words": 8192, "samples": 500},
        ),
    }

    def __init__(
        self,
        context: TaskContext,
        *,
        kinds: str = "all",
        records: int = 16,
        words: int = 64,
        **options: Any,
    ) -> None:
        super().__init__(context, **options)
        self.all_subsets = KINDS if kinds == "all" else tuple(kinds.split("+"))
        self.check_kinds(KINDS)
        if records % 16 or not 16 <= records <= 4096:
            raise InputError(
                f"{self.name}:records must be a multiple of 16, up to 4096, not {records}"
            )
        self.check_range(words=(words, 4 * records, 2**20))
        self.records = records
        self.words = words
        self.vocabulary = Vocabulary(FIRST_WORD + 2 * words)

    def eval_points(self, subset: str) -> list[EvalPoint]:
        points = []
        curve = f"{subset}-length"
        for length in (self.records // 2, self.records, 2 * self.records, 4 * self.records):
            for values in (*TRAINED_VALUES, MORE_VALUES):
                # Two tokens need as many second tokens as there are records of a first one.
                least = max(LEAST_KEYS, values) if subset == "two-token" else LEAST_KEYS
                if length // values < least:
                    continue
                if values == MORE_VALUES:
                    if length >= self.records:
                        points.append(EvalPoint(length, str(values), OOD, ("more-values",)))
                elif length > self.records:
                    points.append(EvalPoint(length, str(values), OOD, ("longer",), curve))
                elif length == self.records or values == 2:
                    points.append(EvalPoint(length, str(values), ID, curve=curve))
        return points

    def items(self, subset: str, point: EvalPoint) -> Sequences:
        return _lay_out(self._evaluated(subset, point), subset)

    def batch(self, subset: str | None, seed: int, step: int) -> Batch:
        steps = self.train.steps
        return self._mixed(seed, step, stage_at(step / steps if steps else 1.0))

    def held_out_batch(self, subset: str | None, step: int) -> Batch:
        return self._mixed(HELD_OUT_SEED, step, Stage())

    def baseline_batch(self, subset: str | None, step: int) -> Batch:
        return self._mixed(0, step, Stage())

    def own_baselines(self, subset: str, point: EvalPoint) -> Mapping[str, Scores]:
        facts = self._evaluated(subset, point)
        values = int(point.second_axis)
        among = point.length // values if subset == "reverse" else values
        counts = np.full(self.samples, facts.places.shape[1])
        by_chance = np.full(facts.places.shape, 1 / among)
        row = np.arange(self.samples)[:, None]
        records = facts.keys[..., 0] if subset == "reverse" else facts.values
        is_last = records[row, facts.places] == records[:, -1:]
        return {
            "a record of the key": _expected(by_chance, counts),
            "the last record": _expected(is_last.astype(np.float64), counts),
        }

    def _evaluated(self, subset: str, point: EvalPoint) -> Facts:
        values = int(point.second_axis)
        rng = np.random.default_rng([EVAL_SEED, KINDS.index(subset), point.length, values])
        return _draw(rng, subset, self.samples, (point.length, values), self.words)

    def _mixed(self, seed: int, step: int, stage: Stage) -> Batch:
        """Return rows of one size, of all kinds in equal parts."""
        rng = np.random.default_rng([seed, step])
        whole = self.records
        sizes = [
            (whole // 4, 1),
            (whole // 4, 2),
            (whole // 2, 2),
            *((whole, values) for values in TRAINED_VALUES),
        ]
        size = sizes[rng.integers(len(sizes))]
        in_use = None
        if stage.facts is not None:
            size = (stage.facts, 1)
            in_use = len(stage.in_use(range(self.words), STAGE_WORDS))
        kinds = [kind for kind in self.all_subsets if kind not in ORDERS]
        orders = [kind for kind in self.all_subsets if kind in ORDERS]
        if stage.facts is None:
            kinds += orders
        elif orders:  # these have equal answers if every key has one value
            kinds.append(orders[step % len(orders)])
        parts = []
        for index, kind in enumerate(kinds):
            rows = (self.train.batch_size + (step + index) % len(kinds)) // len(kinds)
            if rows:
                facts = _draw(rng, kind, rows, size, self.words, in_use)
                parts.append(_lay_out(facts, kind))
        return stack(parts).batch()


def _draw(
    rng: np.random.Generator,
    kind: str,
    rows: int,
    size: tuple[int, int],
    words: int,
    in_use: int | None = None,
) -> Facts:
    """Return the contents of rows of one size.

    Args:
        rng: source of everything that is random.
        kind: kind of the questions.
        rows: number of rows.
        size: records of each row, and values of each key.
        words: number of possible keys, and of possible values.
        in_use: number of words to choose from; None: all.
    """
    length, values = size
    n_keys = length // values
    row = np.arange(rows)[:, None]
    # Records are numbered key by key, and shuffled in the row.
    number = _shuffled(rng, rows, length)  # (N, n)
    key = number // values  # (N, n)
    parts = [key]
    if kind == "two-token":  # each second token has as many records as each first one
        parts.append(n_keys + (key + number % values) % n_keys)
    names = _shuffled(rng, rows, in_use or words)  # (N, words in use)
    keys = np.stack([names[row, part] for part in parts], axis=-1)  # (N, n, 1 or 2)
    told = _shuffled(rng, rows, in_use or words)[:, :length]  # (N, n)
    markers: TokenIds = np.full((rows, n_keys), MARKERS.get(kind, NTH))
    if kind in ("two-token", "reverse"):
        places = _shuffled(rng, rows, length)[:, :n_keys]  # (N, m)
    else:
        asked = _shuffled(rng, rows, n_keys)  # (N, m)
        places_of = key.argsort(axis=1, kind="stable").reshape(rows, n_keys, values)
        which = np.zeros(asked.shape, dtype=np.int64)
        if kind == "latest":
            which[:] = values - 1
        elif kind == "nth":
            which[:] = rng.integers(0, min(values, max(TRAINED_VALUES)), asked.shape)
            markers = NTH + which
        places = places_of[row, asked, which]  # (N, m)
    return Facts(FIRST_WORD + keys, FIRST_WORD + words + told, markers, places)


def _lay_out(facts: Facts, kind: str) -> Sequences:
    """Return rows of records and then questions, without the answers."""
    rows = len(facts.keys)
    row = np.arange(rows)[:, None]
    asked = facts.keys[row, facts.places]  # (N, m, 1 or 2)
    answers = facts.values[row, facts.places]  # (N, m)
    if kind == "reverse":
        asked, answers = answers[..., None], asked[..., 0]
    records = np.concatenate([facts.keys, facts.values[..., None]], axis=-1)  # (N, n, 2 or 3)
    questions = np.concatenate([facts.markers[..., None], asked], axis=-1)  # (N, m, 2 or 3)
    wanted = np.full(questions.shape, IGNORE)
    wanted[..., -1] = answers
    ids = np.concatenate([records.reshape(rows, -1), questions.reshape(rows, -1)], axis=1)
    targets = np.full(ids.shape, IGNORE)
    targets[:, records[0].size :] = wanted.reshape(rows, -1)
    return Sequences(ids, targets != IGNORE, np.full(rows, ids.shape[1]), targets)


def _shuffled(rng: np.random.Generator, rows: int, count: int) -> TokenIds:
    """Return a permutation of the numbers below `count` for each row: (rows, count)."""
    return rng.permuted(np.tile(np.arange(count), (rows, 1)), axis=1)


def _expected(chances: npt.NDArray[np.float64], counts: TokenIds) -> Scores:
    """Return the expected scores of answers with the given probabilities of being right, (N, m)."""
    leading = chances.cumprod(axis=1)
    return Scores(leading[:, -1], counts, leading.sum(1), chances.sum(1))
