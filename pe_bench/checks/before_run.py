"""A test of a user's encoding before each run, for faults that a run would not notice."""

from contextlib import suppress

import torch
from torch import nn

from pe_bench.checks.cached_decoding import cache, ragged
from pe_bench.checks.dependence import causal, prefix_consistent, rows
from pe_bench.checks.findings import NotApplicable
from pe_bench.checks.not_finite import FEW, find_not_finite
from pe_bench.checks.repeatability import find_memory, find_randomness, find_seed_difference
from pe_bench.checks.subject import (
    CONFIG,
    LENGTH,
    LONG,
    Subject,
    layer_outputs,
    training_outputs,
)
from pe_bench.config import ModelConfig
from pe_bench.decoder.model import Decoder
from pe_bench.decoder.unsaved import find_unsaved
from pe_bench.encoding import Encoding
from pe_bench.errors import CRASHES, FaultyPlugin, InputError, as_exception
from pe_bench.registry.plugins import Plugin
from pe_bench.registry.torch_settings import ChangedTorch, keeping_torch_settings
from pe_bench.registry.versions import is_shipped
from pe_bench.system.console import warn

LONGEST = 515  # tokens; attention works in blocks from 512 tokens on
TOLERANCE = 1e-4  # hooks may compute in float32, whose errors grow over the layers


def find_fault(plugin: Plugin, longest: int = LONG, layers: int = CONFIG.layers) -> str | None:
    """Return a sentence on the first fault of an encoding, or None.

    The faults are layers that do not fit together, hooks that change arguments in place or settings
    of torch, random values that are not saved, weights that a forward pass creates, outputs that
    are not finite, and outputs that depend on earlier texts or weights, on later tokens, on their
    number, on other rows of a batch, or on the use of a cache. Of shipped encodings, only the
    layers are tested. If torch draws random numbers in evaluation, outputs are compared after a
    seed, and only for later tokens. Outputs with other random numbers cannot be compared. Warnings
    say so, and what the comparison found.

    Args:
        plugin: the encoding.
        longest: number of tokens of the longest sequence of the run. The test has sequences of 40
            tokens, and of this length or of 515 tokens, whichever is less.
        layers: number of layers of the run's model. An encoding that does not work with the layers
            of `pe-bench check` is tested with these, and not at all if it does not work either.
    """
    try:
        with torch.random.fork_rng(devices=[]), keeping_torch_settings("the encoding"):
            for length in dict.fromkeys((LENGTH, min(max(longest, LENGTH), LONGEST))):
                fault = None
                for count in dict.fromkeys((CONFIG.layers, layers)):
                    subject = Subject(
                        plugin.make, longest=length, tolerance=TOLERANCE, layers=count
                    )
                    with suppress(*CRASHES):  # the run reports a crash in its own model
                        fault = _find_in_small_model(subject, plugin.label)
                        break
                if fault:
                    return fault
    except ChangedTorch as error:
        return str(error)
    return None


def find_refusal(plugin: Plugin, model: ModelConfig) -> str | None:
    """Return why a model refuses what an encoding returns, such as a wrong shape, or None.

    Crashes are not reported here, and models with more than 10 million weights are not built.

    Args:
        plugin: the encoding.
        model: shape of the run's model.
    """
    of_layer = model.width * (4 * model.width + 3 * model.mlp_width)
    if model.layers * of_layer + 2 * model.width * model.vocab_size > 10**7:
        return None
    with torch.random.fork_rng(devices=[]), keeping_torch_settings("the encoding"):
        try:
            with as_exception(), torch.no_grad():
                decoder = Decoder(model, plugin.make)
                limit = decoder.encoding.max_position or FEW
                decoder(torch.arange(min(FEW, limit, model.vocab_size))[None])  # (1, T)
        except InputError as error:
            return str(error)
        except CRASHES:
            return None
    return None


def _find_in_small_model(subject: Subject, label: str) -> str | None:
    try:
        with as_exception():
            model = subject.model()
            if _all_shipped(model):
                return None
            return (
                find_unsaved(subject.make_encoding, subject.config)
                or _find_late_weights(model, subject)
                or find_not_finite(subject)
                or _find_leak(subject, label)
            )
    except FaultyPlugin as error:
        return str(error)


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


def _find_leak(subject: Subject, label: str) -> str | None:
    """Return a sentence on outputs that depend on something that they must not depend on.

    Results show if outputs are not finite; these spread to earlier tokens, because 0 times infinity
    is not a number.
    """
    if find_seed_difference(subject):
        if subject.longest == LENGTH:  # once
            warn(
                f"{label}: the same seed and input give different outputs, so they are not tested "
                "for a dependence on later tokens"
            )
        return None
    if not _is_finite(subject):
        return None
    leak = find_memory(subject)
    random = not leak and find_randomness(subject)
    if random:
        if subject.longest == LENGTH:  # once
            _warn_of_randomness(subject, label)
        return None
    leak = leak or causal(subject) or _find_dependence_on_length(subject) or rows(subject)
    if leak:
        return f"its results would be wrong: {leak}; see pe-bench check"
    return _find_wrong_cache(subject)


def _warn_of_randomness(subject: Subject, label: str) -> None:
    warn(f"{label}: outputs in evaluation are random, as with a dropout that is always active")
    leak = causal(subject)  # each pass after a seed
    if leak:
        warn(f"{label}: {leak}, unless later tokens change the number of random draws")


def _find_wrong_cache(subject: Subject) -> str | None:
    """Return a sentence on outputs that differ if keys and values are cached."""
    try:
        found = cache(subject)
        if not found and subject.longest == LENGTH:
            found = ragged(subject)
    except NotApplicable:
        return None
    except InputError as error:  # of a hook that returns more than the new tokens
        found = str(error)
    return found and (
        f"its KV cache would be wrong: {found}; hooks get only new tokens, whose ids are "
        "positions.query; to generate without a cache, set prefix_consistent = False"
    )


@torch.no_grad()
def _is_finite(subject: Subject) -> bool:
    model = subject.model()
    return all(bool(model(tokens).isfinite().all()) for tokens in subject.short_and_long())


def _find_dependence_on_length(subject: Subject) -> str | None:
    """Return a sentence on outputs that depend on the number of later tokens, if undeclared."""
    try:
        found = prefix_consistent(subject)
    except NotApplicable:
        return None
    return found and f"{found}; if this is by design, set prefix_consistent = False"
