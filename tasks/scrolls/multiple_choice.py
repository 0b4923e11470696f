"""Multiple-choice questions: the likeliest of four options under a model."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from pe_bench.api import Decoder, Items, log_likelihoods
from pe_bench.tasks.scrolls.official_scores import Clusters


def options_of(text: str) -> list[str]:
    """Return the four options of a multiple-choice question; empty for other questions."""
    pattern = r"\n\n \(A\) (.*?)\n \(B\) (.*?)\n \(C\) (.*?)\n \(D\) (.*?)\n\n"
    found = re.search(pattern, text[:20_000], re.DOTALL)
    return list(found.groups()) if found else []


def likeliest(
    model: Decoder, prompt: list[int], options: Sequence[str], outputs: Sequence[list[int]]
) -> dict[str, int]:
    """Return the option with the highest log-likelihood, and with the highest one per byte.

    Args:
        model: model in evaluation mode.
        prompt: ids of the question.
        options: texts of the options.
        outputs: ids of the options.
    """
    whole = log_likelihoods(model, prompt, outputs)
    sizes = [max(1, len(option.encode())) for option in options]
    per_byte = [nats / size for nats, size in zip(whole, sizes, strict=True)]
    return {
        "accuracy": whole.index(max(whole)),
        "accuracy_per_byte": per_byte.index(max(per_byte)),
    }


def accuracies(
    subset: str, answers: list[dict[str, Any]], clusters: Clusters, length: int
) -> list[Items]:
    """Return for each example with options whether the likeliest option is correct."""
    items = []
    for metric in ("accuracy", "accuracy_per_byte"):
        chosen = np.array([index for index, answer in enumerate(answers) if metric in answer])
        if len(chosen):
            correct = np.array([100.0 * answers[index][metric] for index in chosen])
            found = Items(subset, metric, correct, length=length, clusters=clusters[chosen])
            items.append(found)
    return items
