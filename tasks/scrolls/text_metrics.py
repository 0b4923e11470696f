"""Scores of generated answers and summaries against reference texts.

Token F1 and exact match follow SQuAD (Rajpurkar et al. 2016, arXiv:1606.05250), ROUGE follows
Lin (2004); the way they are combined over references and examples follows Shaham et al. (2022,
arXiv:2201.03533), whose values these equal before rounding.
"""

import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from pe_bench.api import InputError

Metric = Literal["f1", "em", "rgm"]

ROUGE_TYPES = ("rouge1", "rouge2", "rougeL")

_ARTICLE = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True)
class Score:
    """One metric over a set of examples.

    Attributes:
        metric: `f1`, `em`, `rouge1`, `rouge2`, `rougeL` or `rgm`.
        value: 0 to 100, not rounded.
        n: Number of examples.
        stderr: Standard error of `value` over examples, on the same scale; NaN for one example.
    """

    metric: str
    value: float
    n: int
    stderr: float


def normalize_answer(text: str) -> str:
    """Lower-case, then drop punctuation, then English articles, then surplus white space."""
    text = text.lower().translate(_NO_PUNCTUATION)
    return " ".join(_ARTICLE.sub(" ", text).split())


def token_f1(prediction: str, reference: str) -> float:
    """Harmonic mean of precision and recall over the multisets of normalised words, 0 to 1.

    Texts without a common word score 0, two empty texts included.
    """
    predicted = normalize_answer(prediction).split()
    expected = normalize_answer(reference).split()
    common = (Counter(predicted) & Counter(expected)).total()
    if common == 0:
        return 0.0
    precision, recall = common / len(predicted), common / len(expected)
    return 2 * precision * recall / (precision + recall)


def exact_match(prediction: str, reference: str) -> float:
    """1 if the normalised texts are equal, else 0."""
    return float(normalize_answer(prediction) == normalize_answer(reference))


def score(
    metric: Metric, predictions: Mapping[str, str], references: Mapping[str, Sequence[str]]
) -> list[Score]:
    """Scores predictions, each against the best of its references.

    Args:
        metric: `f1`, `em`, or `rgm`, the geometric mean of the corpus means of ROUGE-1, 2 and L.
            For `rgm` the best reference is chosen for each ROUGE type on its own.
        predictions: One text per example id.
        references: One or more texts per example id; the same ids.

    Returns:
        The headline metric last: one score for `f1` and `em`, four for `rgm`. Standard errors are
        jackknife estimates over examples, which for a plain mean is the usual standard error.

    Raises:
        InputError: Unknown metric, no examples, or ids, predictions or references do not fit.
    """
    if metric not in get_args(Metric):
        raise InputError(f"unknown metric {metric!r}: use one of {', '.join(get_args(Metric))}")
    _check(predictions, references)
    pairs = [(prediction, references[id_]) for id_, prediction in predictions.items()]
    if metric == "rgm":
        per_example = _rouge(pairs)
        types = [_summary(name, per_example[:, [i]]) for i, name in enumerate(ROUGE_TYPES)]
        return [*types, _summary("rgm", per_example)]
    compare = token_f1 if metric == "f1" else exact_match
    best = [max(compare(prediction, text) for text in texts) for prediction, texts in pairs]
    return [_summary(metric, np.array(best)[:, None])]


def _rouge(pairs: Sequence[tuple[str, Sequence[str]]]) -> npt.NDArray[np.float64]:
    """F-measures (examples, ROUGE types), 0 to 1."""
    from rouge_score.rouge_scorer import RougeScorer  # brings nltk with it: half a second

    # Sentence splitting only matters to rougeLsum, which is not part of the score.
    scorer = RougeScorer(list(ROUGE_TYPES), use_stemmer=False)
    best = [scorer.score_multi(texts, prediction) for prediction, texts in pairs]
    return np.array([[scores[name].fmeasure for name in ROUGE_TYPES] for scores in best])


def _summary(name: str, per_example: npt.NDArray[np.float64]) -> Score:
    """Geometric mean over columns of the means over rows, with its jackknife standard error."""
    n = len(per_example)
    value = _geometric_mean(per_example.mean(axis=0))
    if n == 1:
        return Score(name, 100 * float(value), n, float("nan"))
    without_one = _geometric_mean((per_example.sum(axis=0) - per_example) / (n - 1))
    variance = (n - 1) * without_one.var()
    return Score(name, 100 * float(value), n, 100 * float(np.sqrt(variance)))


def _geometric_mean(means: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    # Leaving one example out may round a zero to just below zero.
    product = np.maximum(means, 0).prod(axis=-1)
    return np.asarray(product ** (1 / means.shape[-1]))


def _check(predictions: Mapping[str, str], references: Mapping[str, Sequence[str]]) -> None:
    if not predictions and not references:
        raise InputError("there is nothing to score: give at least one prediction and reference")
    for id_, texts in references.items():
        if id_ not in predictions:
            raise InputError(f"example {id_!r} has no prediction: give one for every reference id")
        if isinstance(texts, str) or not texts or not all(isinstance(t, str) for t in texts):
            raise InputError(f"example {id_!r} needs a list of one or more reference strings")
    for id_, prediction in predictions.items():
        if id_ not in references:
            raise InputError(f"prediction {id_!r} has no reference: give one for every id")
        if not isinstance(prediction, str):
            raise InputError(f"prediction {id_!r} is {prediction!r}: it should be a string")
