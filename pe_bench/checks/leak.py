"""Whether the outputs of a user's encoding depend on later tokens, tested before each run."""

import torch
from torch import nn

from pe_bench.checks.encodings import causal, repeatable
from pe_bench.checks.subject import Subject
from pe_bench.encoding import Encoding
from pe_bench.errors import CRASHES, as_exception
from pe_bench.registry.plugins import Plugin, is_shipped


def find_leak(plugin: Plugin) -> str | None:
    """Return how outputs depend on later tokens, or None.

    Shipped encodings are not tested here. An encoding that does not work in the small model of
    `pe-bench check`, or that is random, cannot be tested.
    """
    subject = Subject(plugin.make)
    try:
        with torch.random.fork_rng(devices=[]), as_exception():
            if _all_shipped(subject.model()) or repeatable(subject):
                return None
            return causal(subject)
    except CRASHES:  # the run reports a crash in its own model
        return None


def _all_shipped(model: nn.Module) -> bool:
    parts = [type(part) for part in model.modules() if isinstance(part, Encoding)]
    return all(is_shipped(part) for part in parts)
