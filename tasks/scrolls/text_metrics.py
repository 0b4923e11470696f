"""Scores of generated answers and summaries against reference texts.

Token F1 and exact match follow SQuAD (Rajpurkar et al. 2016, arXiv:1606.05250), and ROUGE follows
Lin (2004). The combination over references and examples follows Shaham et al. (2022,
arXiv:2201.03533). The values equal theirs before rounding.
"""

import math
import re
import string
from collections import Counter
from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from pe_bench.api import InputError

Metric = Literal["f1", "em", "rgm"]

ROUGE_TYPES = ("rouge1", "rouge2", "rougeL")

_ARTICLE = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
    """Lower-case a text, then remove punctuation, English articles and surplus white space."""
    text = text.lower().translate(_NO_PUNCTUATION)
    return " ".join(_ARTICLE.sub(" ", text).split())


def token_f1(prediction: str, reference: str) -> float:
    """Return the harmonic mean of precision and recall over multisets of normalised words, 0 to 1.

    Texts without a common word score 0, including two empty texts.
    """
    predicted = normalize_answer(prediction).split()
    expected = normalize_answer(reference).split()
    common = (Counter(predicted) & Counter(expected)).total()
    if common == 0:
        return 0.0
    precision, recall = common / len(predicted), common / len(expected)
    return 2 * precision * recall / (precision + recall)


def exact_match(prediction: str, reference: str) -> float:
    """Return 1 if the normalised texts are equal, else 0."""
    return float(normalize_answer(prediction) == normalize_answer(reference))


def score(
    metric: Metric, predictions: Sequence[str], references: Sequence[Sequence[str]]
) -> dict[str, float]:
    """Score predictions, each against the best of its references.

    Args:
        metric: `f1`, `em`, or `rgm`, the geometric mean of the corpus means of ROUGE-1, 2 and L.
            For `rgm`, the best reference is chosen separately for each ROUGE type.
        predictions: one text per example.
        references: one or more texts per example.

    Returns:
        Values from 0 to 100, not rounded: `f1` or `em`; or `rouge1`, `rouge2`, `rougeL`, `rgm`.
        Each is followed by its standard error `<name>_stderr`: a jackknife estimate over examples,
        which equals the usual one for a plain mean; nan for a single example.

    Raises:
        InputError: the metric is unknown, there are no examples, or the numbers of predictions and
            references differ.
    """
    return summarize(metric, score_each(metric, predictions, references))


def summarize(metric: Metric, per_example: npt.NDArray[np.float64]) -> dict[str, float]:
    """Return the result of `score` from the result of `score_each`."""
    values: dict[str, float] = {}
    if metric == "rgm":
        for column, name in enumerate(ROUGE_TYPES):
            values |= _summary(name, per_example[:, [column]])
    return values | _summary(metric, per_example)


def score_each(
    metric: Metric, predictions: Sequence[str], references: Sequence[Sequence[str]]
) -> npt.NDArray[np.float64]:
    """Score each prediction. Arguments and errors are the same as for `score`.

    Returns:
        Values from 0 to 1, (examples, 1), or (examples, ROUGE types) for `rgm`.
    """
    if metric not in get_args(Metric):
        raise InputError(f"unknown metric {metric!r}: use one of {', '.join(get_args(Metric))}")
    _check(predictions, references)
    pairs = list(zip(predictions, references, strict=True))
    if metric == "rgm":
        return _rouge(pairs)
    compare = token_f1 if metric == "f1" else exact_match
    best = []
    for prediction, texts in pairs:
        best.append(max(compare(prediction, text) for text in texts))
    return np.array(best)[:, None]


def _rouge(pairs: Sequence[tuple[str, Sequence[str]]]) -> npt.NDArray[np.float64]:
    """Return F-measures (examples, ROUGE types), 0 to 1."""
    from rouge_score.rouge_scorer import RougeScorer  # late: it imports nltk, which takes 0.5 s

    # Sentence splitting matters only for rougeLsum, which is not part of the score.
    scorer = RougeScorer(list(ROUGE_TYPES), use_stemmer=False)
    measures = []
    for prediction, texts in pairs:
        scores = scorer.score_multi(texts, prediction)
        measures.append([scores[name].fmeasure for name in ROUGE_TYPES])
    return np.array(measures)


def _summary(name: str, per_example: npt.NDArray[np.float64]) -> dict[str, float]:
    """Return the geometric mean over columns of the means over rows, with its jackknife error."""
    n = len(per_example)
    value = _geometric_mean(per_example.mean(axis=0))
    stderr = math.nan
    if n > 1:
        without_one = _geometric_mean((per_example.sum(axis=0) - per_example) / (n - 1))
        stderr = float(np.sqrt((n - 1) * without_one.var()))
    return {name: 100 * float(value), f"{name}_stderr": 100 * stderr}


def _geometric_mean(means: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    # Without one example, rounding may turn a zero into a tiny negative number.
    product = np.maximum(means, 0).prod(axis=-1)
    return np.asarray(product ** (1 / means.shape[-1]))


def _check(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> None:
    if not len(predictions) or len(predictions) != len(references):
        raise InputError(
            f"{len(predictions)} predictions and {len(references)} lists of references cannot be "
            "scored: give equal numbers, at least one"
        )
    for index, prediction in enumerate(predictions):
        if not isinstance(prediction, str):
            raise InputError(f"prediction {index} is {prediction!r}: it must be a string")
    for index, texts in enumerate(references):
        if isinstance(texts, str) or not texts or not all(isinstance(t, str) for t in texts):
            raise InputError(f"references {index} must be a list of one or more strings")
