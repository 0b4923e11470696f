"""Checks of far positions: precise in bfloat16, finite, and refused beyond a table."""

import math

import torch
from torch import Tensor

from pe_bench.checks.findings import NotApplicable
from pe_bench.checks.subject import LENGTH, TRAIN_LENGTH, Subject
from pe_bench.errors import InputError


@torch.no_grad()
def bfloat16(subject: Subject) -> str | None:
    """In bfloat16, outputs at far positions are as precise as at near ones.

    The relative error against float32 may be at most twice the error near position 0, plus 0.01.
    With `logits_grow` it may grow with the logits.
    """
    narrow = subject.model(torch.float32).bfloat16()
    wide = subject.model(torch.float32)
    wide.load_state_dict(narrow.state_dict())  # the same rounded weights
    tokens = subject.tokens(64)
    length = tokens.shape[1]
    span = subject.length(8192)
    near = torch.arange(length, device=subject.device)[None]
    errors = []
    sizes = []
    for ids in (near, near + span - length, near * (span // length)):
        logits: list[Tensor] = []
        expected = wide.lm_head(wide.hidden(tokens, positions=ids, logits=logits)).double()
        error = (narrow(tokens, positions=ids).double() - expected).square().mean().sqrt()
        errors.append(float(error / expected.square().mean().sqrt()))
        sizes.append(_size(torch.stack(logits)))
    first, *far = errors
    if math.isnan(first):
        raise NotApplicable("needs finite outputs near position 0")
    growth = max(1.0, sizes[1] / sizes[0], sizes[2] / sizes[0])
    declared = wide.encoding.logits_grow
    bound = 2 * first * (growth if declared else 1.0) + 0.01
    if all(error <= bound for error in far):  # False if an error is NaN
        return None
    wrong = (
        f"relative error {first:.3f} near position 0, but {far[0]:.3f} near {span} and "
        f"{far[1]:.3f} over all positions; at most {bound:.3f} is expected"
    )
    if growth > 1.2 and not declared:
        wrong += (
            f"; far logits are {growth:.1f} times as large: if this is intended, "
            "set logits_grow = True"
        )
    return wrong


@torch.no_grad()
def finite(subject: Subject) -> str | None:
    """Outputs are finite at 8 times the training length and at random increasing ids."""
    model = subject.model(torch.float32)
    span = subject.length(8 * TRAIN_LENGTH)
    for backend in ("eager", "auto"):  # a fused kernel may hide an overflow
        if not model(subject.tokens(span), backend=backend).isfinite().all():
            return f"not finite at length {span}"
    generator = torch.Generator().manual_seed(2)
    span = subject.length(2048)
    ids = torch.randperm(span, generator=generator)[:LENGTH].sort().values[None]
    tokens = subject.tokens(ids.shape[1])
    if not model(tokens, positions=ids.to(subject.device)).isfinite().all():
        return "not finite at random increasing position ids"
    return None


@torch.no_grad()
def max_position(subject: Subject) -> str | None:
    """A position beyond the declared table is refused with a message."""
    model = subject.model()
    limit = model.encoding.max_position
    if limit is None:
        raise NotApplicable("has no table of positions")
    ids = torch.tensor([[limit - 1, limit]], device=subject.device)
    model(subject.tokens(2), positions=ids - 1)
    try:
        model(subject.tokens(2), positions=ids)
    except InputError:
        return None
    return f"position {limit} is accepted although there are {limit}"


def _size(logits: Tensor) -> float:
    """Return the root mean square of the attention logits at unmasked keys."""
    return float(logits[logits.isfinite()].double().square().mean().sqrt())
