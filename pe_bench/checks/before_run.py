"""A test of a user's encoding before each run: faults that make its numbers wrong."""

import torch
from torch import nn

from pe_bench.checks.encodings import causal, repeatable
from pe_bench.checks.subject import Subject, layer_outputs, training_outputs
from pe_bench.decoder.model import Decoder
from pe_bench.encoding import Encoding
from pe_bench.errors import CRASHES, InputError, as_exception
from pe_bench.registry.plugins import Plugin, is_shipped
from pe_bench.registry.torch_settings import keeping_torch_settings


def find_fault(plugin: Plugin) -> str | None:
    """Return a sentence on a fault that makes the results wrong, or None.

    The faults are outputs that depend on later tokens, parameters that are created in a forward
    pass, and changed settings of torch. Shipped encodings are not tested. An encoding that does
    not work in the small model of `pe-bench check`, or that is random, cannot be tested.
    """
    try:
        with torch.random.fork_rng(devices=[]), keeping_torch_settings("it"):
            return _find_in_small_model(Subject(plugin.make))
    except InputError as error:
        return str(error) if str(error).startswith("it changes") else None


def _find_in_small_model(subject: Subject) -> str | None:
    try:
        with as_exception():
            model = subject.model()
            if _all_shipped(model):
                return None
            late = _find_late_parameters(model, subject)
            if late:
                return late
            return None if repeatable(subject) else causal(subject)
    except CRASHES:  # the run reports a crash in its own model
        return None


def _all_shipped(model: nn.Module) -> bool:
    parts = [type(part) for part in model.modules() if isinstance(part, Encoding)]
    return all(is_shipped(part) for part in parts)


@torch.no_grad()
def _find_late_parameters(model: Decoder, subject: Subject) -> str | None:
    """Return which parameters and buffers a forward pass adds, which are not trained or saved."""
    stored = model.state_dict(keep_vars=True).keys()
    trained = set(model.parameters())
    layer_outputs(model, subject.tokens())
    training_outputs(model, subject.tokens())
    late: dict[str, None] = {}  # an ordered set
    for name, value in model.state_dict(keep_vars=True).items():
        if name not in stored or (isinstance(value, nn.Parameter) and value not in trained):
            late[name.rpartition(".")[2]] = None
    if not late:
        return None
    return f"a forward pass creates {', '.join(late)}: create parameters and buffers in __init__"
