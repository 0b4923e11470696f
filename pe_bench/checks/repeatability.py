"""Check that outputs depend on seed, weights and input only, not on earlier passes."""

import torch

from pe_bench.checks.differences import first_difference
from pe_bench.checks.subject import Subject, layer_outputs, seeded_outputs, training_outputs
from pe_bench.decoder.model import Decoder

SHORT = 12  # tokens


@torch.no_grad()
def repeatable(subject: Subject) -> str | None:
    """The same seed and input give the same outputs, whatever the model has seen before."""
    wrong = find_randomness(subject) or find_seed_difference(subject)
    if wrong:
        return wrong
    model, tokens = subject.model(), subject.tokens(SHORT)
    return first_difference(
        training_outputs(model, tokens),
        training_outputs(model, tokens),
        "in training, the same seed and input give different outputs: they differ",
        subject.tolerance,
    ) or find_memory(subject)


@torch.no_grad()
def find_randomness(subject: Subject) -> str | None:
    """Return a sentence on outputs in evaluation that differ although the input is the same."""
    model, tokens = subject.model(), subject.tokens()
    first = layer_outputs(model, tokens)
    again = layer_outputs(model, tokens)
    return first_difference(
        again,
        first,
        "the same input twice gives different outputs: they differ",
        subject.tolerance,
    )


@torch.no_grad()
def find_seed_difference(subject: Subject) -> str | None:
    """Return a sentence on outputs of two new models that differ although the seed is the same."""
    tokens, short = subject.tokens(), subject.tokens(SHORT)
    return first_difference(
        seeded_outputs(subject.model(), tokens),
        seeded_outputs(subject.model(), tokens),
        "two models with the same seed have different outputs: they differ",
        subject.tolerance,
    ) or first_difference(
        training_outputs(subject.model(), short),
        training_outputs(subject.model(), short),
        "in training, the same seed and input give different outputs: they differ",
        subject.tolerance,
    )


def find_memory(subject: Subject) -> str | None:
    """Return a sentence on outputs that depend on earlier texts or on earlier weights.

    Buffers may change, such as a running mean, because they are saved with a model.
    """
    return _find_memory_of_texts(subject) or _find_memory_of_weights(subject)


@torch.no_grad()
def _find_memory_of_texts(subject: Subject) -> str | None:
    tokens = subject.tokens()
    for training, earlier, which in (
        (False, tokens, "an earlier text"),
        (False, tokens[:, :SHORT], "an earlier, shorter text"),
        (False, subject.tokens(subject.longest), "an earlier, longer text"),
        (True, tokens[:, : subject.train_length], "an earlier text in training"),
    ):
        model, new = subject.model(), subject.model()
        seeded_outputs(model.train(training), earlier)
        new.load_state_dict(model.state_dict())  # the same buffers
        after = seeded_outputs(model.eval(), tokens)
        expected = seeded_outputs(new, tokens)
        what = f"{which} changes the outputs"
        wrong = first_difference(after, expected, what, subject.tolerance)
        if wrong:
            return wrong
    return None


def _find_memory_of_weights(subject: Subject) -> str | None:
    """Compare a model whose weights change between two passes with one that always had these."""
    tokens = subject.tokens(SHORT)
    for mode in ("evaluation", "training"):
        training = mode == "training"
        model, new = subject.model().train(training), subject.model().train(training)
        _change_weights(new)
        # A hook may keep results only while gradients are computed, or only while they are not.
        with torch.set_grad_enabled(training):
            seeded_outputs(model, tokens)
            seeded_outputs(new, tokens)
            if not training:  # weights change in training, where a hook may drop what it has kept
                model.train()
            _change_weights(model)
            if not training:
                model.eval()
            new.load_state_dict(model.state_dict())  # the same buffers
            wrong = first_difference(
                seeded_outputs(model, tokens),
                seeded_outputs(new, tokens),
                f"in {mode} mode, a result kept on self from before a change of the weights "
                "changes the outputs",
                subject.tolerance,
            )
        if wrong:
            return wrong
    return None


@torch.no_grad()
def _change_weights(model: Decoder) -> None:
    for parameter in model.parameters():
        parameter.mul_(0.75)
