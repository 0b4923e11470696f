"""Check that outputs depend on seed, weights and input only, not on earlier passes."""

import torch

from pe_bench.checks.differences import first_difference
from pe_bench.checks.subject import Subject, layer_outputs, training_outputs
from pe_bench.decoder.model import Decoder

SHORT = 12  # tokens


def repeatable(subject: Subject) -> str | None:
    """The same seed and input give the same outputs, whatever the model has seen before."""
    return find_randomness(subject) or find_memory(subject)


@torch.no_grad()
def find_randomness(subject: Subject) -> str | None:
    """Return a sentence on outputs that differ although seed and input are the same."""
    model, tokens = subject.model(), subject.tokens()
    first = layer_outputs(model, tokens)
    again = layer_outputs(model, tokens)
    new = layer_outputs(subject.model(), tokens)
    return (
        first_difference(again, first, "the same input twice gives different outputs: they differ")
        or first_difference(new, first, "two models with the same seed have different outputs")
        or first_difference(
            training_outputs(model, tokens[:, :SHORT]),
            training_outputs(model, tokens[:, :SHORT]),
            "in training, the same seed and input give different outputs: they differ",
        )
    )


def find_memory(subject: Subject) -> str | None:
    """Return a sentence on outputs that depend on earlier texts or on earlier weights."""
    return _find_memory_of_texts(subject) or _find_memory_of_weights(subject)


@torch.no_grad()
def _find_memory_of_texts(subject: Subject) -> str | None:
    tokens, longer = subject.tokens(), subject.tokens(subject.longest)
    new = layer_outputs(subject.model(), tokens)
    for earlier, which in ((tokens[:, :SHORT], "shorter"), (longer, "longer")):
        model = subject.model()
        layer_outputs(model, earlier)
        after = layer_outputs(model, tokens)
        wrong = first_difference(after, new, f"an earlier, {which} text changes the outputs")
        if wrong:
            return wrong
    return None


def _find_memory_of_weights(subject: Subject) -> str | None:
    """Compare a model whose weights change between two passes with a new one with these weights."""
    model = subject.model()
    tokens = subject.tokens(SHORT)
    for mode in ("evaluation", "training"):
        outputs = training_outputs if mode == "training" else layer_outputs
        # A hook may keep results only while gradients are computed, or only while they are not.
        with torch.set_grad_enabled(mode == "training"):
            outputs(model, tokens)
            new = subject.model()
            _change_weights(model, new)
            wrong = first_difference(
                outputs(model, tokens),
                outputs(new, tokens),
                f"in {mode} mode, a result kept on self from before a change of the weights "
                "changes the outputs",
            )
        if wrong:
            return wrong
    return None


@torch.no_grad()
def _change_weights(model: Decoder, other: Decoder) -> None:
    """Change the weights of a model in place, and give the new ones to another model."""
    weights = dict(model.named_parameters())
    for name, copied in other.named_parameters():
        weights[name].mul_(0.75)
        copied.copy_(weights[name])
