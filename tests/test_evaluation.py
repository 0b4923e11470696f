"""Evaluation of a model, averaged over the draws of an encoding."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from pe_bench.results.items import Items
from pe_bench.runs.evaluation import evaluate
from pe_bench.task import Evaluation


def measure(lengths_of_draws: list[list[int]]) -> Evaluation:
    """Return an evaluation whose draws have items of the given lengths, each with score 1."""
    draws = iter(lengths_of_draws)

    def found(*_: Any) -> Evaluation:
        items = [Items("a", "accuracy", np.ones(2), length=length) for length in next(draws)]
        return Evaluation([], (), items)

    model: Any = SimpleNamespace(
        lm_head=torch.nn.Linear(1, 1),
        encoding=SimpleNamespace(eval_samples=len(lengths_of_draws)),
        eval=lambda: None,
        use_eval_sample=lambda sample: None,
    )
    task: Any = SimpleNamespace(measures_time=False, evaluate=found)
    files: Any = SimpleNamespace(journal=lambda *_: SimpleNamespace(seconds=0.0))
    return evaluate(model, task, "a", 0, files, "fp32")[0]


def test_draws_are_averaged() -> None:
    assert [cell.length for cell in measure([[8, 16], [8, 16]]).items] == [8, 16]


def test_draws_with_other_points_have_no_mean() -> None:
    with pytest.raises(
        FloatingPointError, match="different draws of position ids have non-finite logits"
    ):
        measure([[8, 16], [8]])
