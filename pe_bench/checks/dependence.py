"""Checks of what an output may depend on: no later tokens, no other rows, no shift."""

import torch
from torch import Tensor

from pe_bench.checks.differences import difference, first_difference
from pe_bench.checks.findings import NotApplicable
from pe_bench.checks.subject import (
    CONFIG,
    Subject,
    layer_outputs,
    seeded_outputs,
    training_outputs,
    with_length,
)

FIRST_ORDINARY = 1 + max(*CONFIG.digit_ids, *CONFIG.separator_ids)  # above digits and separators


@torch.no_grad()
def causal(subject: Subject) -> str | None:
    """No output depends on later tokens."""
    model = subject.model()
    for tokens in subject.short_and_long():
        changed, cut = _change_end(tokens)
        before = [outputs[:, :cut] for outputs in seeded_outputs(model, tokens)]
        after = [outputs[:, :cut] for outputs in seeded_outputs(model, changed)]
        what = with_length("changing later tokens changes the outputs", tokens)
        wrong = first_difference(after, before, what, subject.tolerance)
        if wrong:
            return wrong
    trained = subject.trained_on_long()
    for text in subject.short_and_long():
        tokens = text[:, : trained.train_length]
        # In training, positions of digits may depend on the whole row.
        changed, cut = _change_end(tokens)
        changed = _with_digits_of(tokens, changed)
        before = [outputs[:, :cut] for outputs in training_outputs(trained.model(), tokens)]
        after = [outputs[:, :cut] for outputs in training_outputs(trained.model(), changed)]
        what = with_length("in training, later tokens change the outputs", tokens)
        wrong = first_difference(after, before, what, subject.tolerance)
        if wrong:
            return wrong
    return None


@torch.no_grad()
def prefix_consistent(subject: Subject) -> str | None:
    """Outputs do not depend on the number of later tokens, if this is declared.

    With `needs_final_length`, both cases get the same length of the finished sequence.
    """
    model = subject.model()
    if not model.encoding.prefix_consistent:
        raise NotApplicable("declares prefix_consistent = False")
    for tokens in subject.short_and_long():
        finished = None
        if model.encoding.needs_final_length:
            finished = torch.full((len(tokens),), tokens.shape[1])
        what = with_length("cutting the sequence changes the outputs", tokens)
        whole = model(tokens)
        for cut in (17, _middle(tokens)):
            start = model(tokens[:, :cut], final_lengths=finished)
            wrong = difference(start, whole[:, :cut], what, subject.tolerance)
            if wrong:
                return wrong
    return None


@torch.no_grad()
def rows(subject: Subject) -> str | None:
    """The outputs of a row do not depend on the other rows of its batch."""
    model = subject.model()
    for tokens in subject.short_and_long():
        alone = layer_outputs(model, tokens[:1])
        together = [outputs[:1] for outputs in layer_outputs(model, tokens)]
        what = with_length("another row of a batch changes the outputs", tokens)
        wrong = first_difference(together, alone, what, subject.tolerance)
        if wrong:
            return wrong
    trained = subject.trained_on_long()
    for text in subject.short_and_long():
        tokens = text[:, : trained.train_length]
        # In training, random numbers may depend on the number of rows and on digits.
        others = torch.cat([tokens[:1], _with_digits_of(tokens[1:], tokens[1:].flip(1))])
        before = [outputs[:1] for outputs in training_outputs(trained.model(), tokens)]
        after = [outputs[:1] for outputs in training_outputs(trained.model(), others)]
        what = with_length("in training, another row of a batch changes the outputs", tokens)
        wrong = first_difference(after, before, what, subject.tolerance)
        if wrong:
            return wrong
    return None


@torch.no_grad()
def shift_invariant(subject: Subject) -> str | None:
    """Outputs do not change when all position ids are shifted, if this is declared."""
    model = subject.model()
    tokens = subject.tokens()
    if not model.encoding.shift_invariant:
        raise NotApplicable("declares shift_invariant = False")
    ids = torch.arange(tokens.shape[1], device=subject.device)[None]
    shift = 1000
    if model.encoding.max_position is not None:
        shift = min(shift, model.encoding.max_position - tokens.shape[1])
    plain = model(tokens, positions=ids)
    shifted = model(tokens, positions=ids + shift)
    return difference(shifted, plain, f"shifting the positions by {shift} changes the outputs")


def _middle(tokens: Tensor) -> int:
    """Return a number of tokens in the middle; it is odd, so no chunk of 2^n tokens ends there."""
    return tokens.shape[1] * 5 // 8 | 1


def _change_end(tokens: Tensor) -> tuple[Tensor, int]:
    """Return tokens (B, T) of which the last ones are others, and the number of equal ones."""
    cut = _middle(tokens)
    changed = tokens.clone()
    changed[:, cut:] = (changed[:, cut:] + 7) % CONFIG.vocab_size
    return changed, cut


def _with_digits_of(tokens: Tensor, changed: Tensor) -> Tensor:
    """Return the changed tokens (B, T), but digits and separators as they were."""
    return torch.where(tokens < FIRST_ORDINARY, tokens, changed.clamp(FIRST_ORDINARY))
