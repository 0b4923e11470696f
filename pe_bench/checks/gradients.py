"""Do gradients reach the parameters, and does training change those of encodings?"""

import torch
from torch import Tensor

from pe_bench.checks.subject import Subject
from pe_bench.decoder.model import Decoder

STEPS = 5  # a parameter may have a gradient only after another one has changed
LEARNING_RATE = 1e-2


def gradients(subject: Subject) -> str | None:
    """Every parameter gets a gradient, and training changes it from its initial value."""
    trained = subject.trained_on_long()
    tokens = trained.tokens(trained.longest)  # some parameters serve far distances only
    model = trained.model().train()
    training_loss(model, tokens).backward()
    without = [
        name
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and (parameter.grad is None or not parameter.grad.any())
    ]
    if without:
        return f"no gradient reaches {', '.join(without)}"
    unchanged = find_unchanged_parameters(trained.untrained_model(), tokens)
    return describe_unchanged([f"encodings.{name}" for name in unchanged]) if unchanged else None


def find_unchanged_parameters(model: Decoder, tokens: Tensor) -> list[str]:
    """Train a new model for a few steps and return the parameters of encodings without a change.

    Weight decay is left out: it would change parameters without a gradient.

    Args:
        model: a model with its initial values.
        tokens: (B, T) ids to train on.
    """
    model.train()
    unchanged = {
        name: (parameter, parameter.detach().clone())
        for name, parameter in model.encodings.named_parameters()
        if parameter.requires_grad
    }
    optimizer = torch.optim.Adam(model.parameters(), LEARNING_RATE)
    for _ in range(STEPS):
        if not unchanged:
            break
        training_loss(model, tokens).backward()
        optimizer.step()
        optimizer.zero_grad()
        unchanged = {
            name: (parameter, initial)
            for name, (parameter, initial) in unchanged.items()
            if torch.equal(parameter, initial)
        }
    return list(unchanged)


def training_loss(model: Decoder, tokens: Tensor) -> Tensor:
    """Return the loss that a training step minimises, a scalar; tokens (B, T)."""
    loss = model.loss(tokens)
    extra = model.extra_loss()
    return loss if extra is None else loss + extra


def describe_unchanged(names: list[str]) -> str:
    """Return a sentence on the parameters that `find_unchanged_parameters` returns."""
    return (
        f"{STEPS} steps of training do not change {', '.join(names)}: is it multiplied by another "
        "parameter that is zero at first?"
    )
