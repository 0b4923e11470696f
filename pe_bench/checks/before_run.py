"""A test of a user's encoding before each run, for faults that a run would not notice."""

import torch
from torch import nn

from pe_bench.checks.differences import first_difference
from pe_bench.checks.encodings import causal, prefix_consistent, repeatable
from pe_bench.checks.findings import NotApplicable
from pe_bench.checks.subject import Subject, layer_outputs, training_outputs
from pe_bench.decoder.model import Decoder
from pe_bench.decoder.unsaved import find_unsaved
from pe_bench.encoding import Encoding
from pe_bench.errors import CRASHES, FaultyPlugin, as_exception
from pe_bench.registry.plugins import Plugin
from pe_bench.registry.torch_settings import ChangedTorch, keeping_torch_settings
from pe_bench.registry.versions import is_shipped


def find_fault(plugin: Plugin) -> str | None:
    """Return a sentence on the first fault of an encoding, or None.

    The faults are layers that do not fit together, hooks that change settings of torch, random
    values that are not saved, weights that a forward pass creates, and outputs that depend on later
    tokens, on their number, or on other rows of a batch. Of shipped encodings, only the layers are
    tested. An encoding that does not work in the small model of `pe-bench check` cannot be tested,
    and the outputs of a random one cannot be compared.
    """
    try:
        with torch.random.fork_rng(devices=[]), keeping_torch_settings("the encoding"):
            return _find_in_small_model(Subject(plugin.make))
    except ChangedTorch as error:
        return str(error)


def _find_in_small_model(subject: Subject) -> str | None:
    try:
        with as_exception():
            model = subject.model()
            if _all_shipped(model):
                return None
            return (
                find_unsaved(subject.make_encoding, subject.config)
                or _find_late_weights(model, subject)
                or _find_leak(subject)
            )
    except FaultyPlugin as error:
        return str(error)
    except CRASHES:  # the run reports a crash in its own model
        return None


def _all_shipped(model: nn.Module) -> bool:
    parts = [type(part) for part in model.modules() if isinstance(part, Encoding)]
    return all(is_shipped(part) for part in parts)


def _find_late_weights(model: Decoder, subject: Subject) -> str | None:
    """Return a sentence on parameters and buffers that a forward pass creates."""
    stored = model.state_dict(keep_vars=True).keys()
    trained = set(model.parameters())
    layer_outputs(model, subject.tokens())  # with gradients, as in training
    training_outputs(model, subject.tokens())
    parameters: dict[str, None] = {}  # an ordered set
    buffers: dict[str, None] = {}
    for full, value in model.state_dict(keep_vars=True).items():
        name = full.rpartition(".")[2]
        if isinstance(value, nn.Parameter):
            if value not in trained:
                parameters[name] = None
        elif full not in stored:
            buffers[name] = None
    if parameters:
        return (
            f"a forward pass creates {', '.join(parameters)}, which would not be trained: create "
            "parameters in __init__"
        )
    if buffers:
        return (
            f"a forward pass creates {', '.join(buffers)}, so checkpoints could not be loaded: "
            "create buffers in __init__, or with persistent=False"
        )
    return None


@torch.no_grad()
def _find_leak(subject: Subject) -> str | None:
    """Return a sentence on outputs that depend on tokens or rows that they must not depend on."""
    if repeatable(subject):
        return None
    leak = causal(subject) or _find_dependence_on_length(subject)
    if leak is None:
        model, tokens = subject.model(), subject.tokens()
        alone = layer_outputs(model, tokens[:1])
        together = [outputs[:1] for outputs in layer_outputs(model, tokens)]
        leak = first_difference(together, alone, "another row of a batch changes the outputs")
    return leak and f"its results would be wrong: {leak}; see pe-bench check"


def _find_dependence_on_length(subject: Subject) -> str | None:
    """Return a sentence on outputs that depend on the number of later tokens, if undeclared."""
    try:
        found = prefix_consistent(subject)
    except NotApplicable:
        return None
    return found and f"{found}; if this is by design, set prefix_consistent = False"
