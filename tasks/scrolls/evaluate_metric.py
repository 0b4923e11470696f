"""The scores of `text_metrics` as a module for Hugging Face `evaluate`, usable offline.

    metric = evaluate.load("/path/to/tasks/scrolls/evaluate_metric.py", "rgm")
    metric.compute(predictions=["a summary"], references=[["one reference", "another"]])

`evaluate` copies this file and reads its import lines with regular expressions. Therefore each
import has its own line, and there are no relative imports.
"""

from typing import Any, get_args

import datasets
import evaluate

from pe_bench.api import InputError
from pe_bench.tasks.scrolls.text_metrics import Metric, score_each, summarize

_DESCRIPTION = """Token F1, exact match, or the geometric mean of ROUGE-1, 2 and L, each against
the best reference of every example (Shaham et al. 2022, arXiv:2201.03533). 0 to 100."""

_INPUTS = """
Args:
    predictions: One string per example.
    references: A list of one or more strings per example.
    per_example: Whether the scores of each example are returned too, 0 to 1, as "per_example".

Returns:
    Metric name to value, 0 to 100, not rounded: "f1", or "em", or "rouge1", "rouge2", "rougeL"
    and "rgm", as the configuration name asks, and "<name>_stderr" with each.
"""


class LongDocumentMetric(evaluate.Metric):  # type: ignore[misc]
    """Score of long-document answers and summaries; `config_name` is `f1`, `em` or `rgm`."""

    def _info(self) -> evaluate.MetricInfo:
        if self.config_name not in get_args(Metric):
            raise InputError(
                f"unknown configuration {self.config_name!r}: use {', '.join(get_args(Metric))}"
            )
        text = datasets.Value("string")
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation="",
            inputs_description=_INPUTS,
            features=datasets.Features({"predictions": text, "references": [text]}),
        )

    def _compute(
        self, predictions: list[str], references: list[list[str]], per_example: bool = False
    ) -> dict[str, Any]:
        scores = score_each(self.config_name, predictions, references)
        values: dict[str, Any] = summarize(self.config_name, scores)
        return {**values, "per_example": scores} if per_example else values
