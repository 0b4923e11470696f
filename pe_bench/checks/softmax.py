"""Checks of visible keys, temperatures and replacements of the softmax."""

import torch

from pe_bench.checks.differences import difference
from pe_bench.checks.findings import NotApplicable
from pe_bench.checks.subject import CONFIG, LENGTH, TRAIN_LENGTH, Subject
from pe_bench.decoder import hooks
from pe_bench.decoder.layer import AttentionLayer
from pe_bench.positions import in_order


@torch.no_grad()
def out_of_sight(subject: Subject) -> str | None:
    """Keys outside of `visible` do not change the output of a layer."""
    tokens = subject.tokens()
    length = tokens.shape[1]
    generator = torch.Generator(subject.device).manual_seed(4)
    shape = (2, *tokens.shape, CONFIG.width)
    x, other = torch.randn(shape, generator=generator, dtype=torch.float64, device=subject.device)
    columns = torch.arange(length, device=subject.device)[None]
    checked = False
    for index in range(CONFIG.layers):
        layer = AttentionLayer(subject.config, subject.make_encoding, index)
        layer.to(subject.device, torch.float64).eval()
        visible = layer.encoding.visible
        if not visible.hides(length):
            continue
        checked = True
        seen = visible.mask(columns[:, -1:], columns)[:, 0, 0, :, None]  # (1, T, 1)
        before = layer.attend(x, tokens=tokens)[0][:, -1]  # (B, C)
        changed = torch.where(seen, x, other)  # (B, T, C)
        after = layer.attend(changed, tokens=tokens)[0][:, -1]  # (B, C)
        what = f"keys outside of `visible` change the output of layer {index}"
        wrong = difference(after, before, what)
        if wrong is not None:
            return wrong
    if not checked:
        raise NotApplicable("sees all tokens")
    return None


@torch.no_grad()
def temperature(subject: Subject) -> str | None:
    """Temperatures are finite and not negative for any number of keys."""
    model = subject.model()
    if not model.encoding.overrides("temperature"):
        raise NotApplicable("has no temperature")
    counts = subject.length(8 * TRAIN_LENGTH)
    for index in range(model.config.layers):
        positions = in_order(counts, torch.device(subject.device))
        factors = hooks.temperature(model.encoding_of(index), positions, 1)
        if factors is not None and not (factors.isfinite() & (factors >= 0)).all():
            return f"layer {index} has a temperature below 0 or not finite within {counts} keys"
    return None


@torch.no_grad()
def normalise(subject: Subject) -> str | None:
    """A replacement of the softmax gives masked keys no weight."""
    model = subject.model()
    if not model.encoding.overrides("normalise"):
        raise NotApplicable("has the softmax")
    generator = torch.Generator(subject.device).manual_seed(5)
    logits = torch.randn(1, CONFIG.heads, LENGTH, LENGTH, generator=generator)
    later = torch.ones(LENGTH, LENGTH).triu(1).bool()
    logits = logits.masked_fill(later, -torch.inf).to(subject.device)
    for index in range(model.config.layers):
        weights = model.encoding_of(index).normalise(logits)
        if not weights.isfinite().all():
            return f"layer {index} has attention weights that are not finite"
        if weights[..., later].any():
            return f"layer {index} gives attention weight to keys that are masked"
    return None
