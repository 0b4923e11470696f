"""Checks that decoding with a cache agrees with a full forward pass."""

from collections.abc import Sequence

import torch
from torch import Tensor

from pe_bench.checks.differences import difference
from pe_bench.checks.findings import NotApplicable
from pe_bench.checks.subject import Subject, with_length
from pe_bench.decoder.cache import Cache
from pe_bench.decoder.generation import generate
from pe_bench.decoder.model import Decoder


@torch.no_grad()
def cache(subject: Subject) -> str | None:
    """Decoding token by token gives the logits of a full forward."""
    model = _cacheable(subject)
    for tokens in subject.short_and_long():
        memory = Cache(len(tokens), tokens.shape[1], subject.device)
        decoded = torch.cat([model(step, memory) for step in _steps(tokens)], dim=1)
        what = with_length("decoding with a cache changes the outputs", tokens)
        wrong = difference(decoded, model(tokens), what, subject.tolerance)
        if wrong:
            return wrong
    return None


@torch.no_grad()
def chunks(subject: Subject) -> str | None:
    """Feeding a prompt in pieces gives the logits of a full forward."""
    model = _cacheable(subject)
    for tokens in subject.short_and_long():
        memory = Cache(len(tokens), tokens.shape[1], subject.device)
        pieces = torch.cat([model(piece, memory) for piece in tokens.split(13, dim=1)], dim=1)
        what = with_length("feeding the prompt in pieces changes the outputs", tokens)
        wrong = difference(pieces, model(tokens), what, subject.tolerance)
        if wrong:
            return wrong
    return None


def ragged(subject: Subject) -> str | None:
    """Prompts of unequal length in one batch continue as each does alone."""
    new_tokens = 6
    model = _cacheable(subject)
    for tokens in subject.short_and_long(rows=3):
        texts = tokens[:, :-new_tokens].tolist()
        prompts = [texts[0], texts[1][:5], texts[2][:-3]]
        if not all(prompts):
            raise NotApplicable("has too few positions for prompts of unequal length")
        together = generate(model, prompts, max_new_tokens=new_tokens, end=-1)
        for prompt, continued in zip(prompts, together, strict=True):
            row = torch.tensor([[*prompt, *continued]], device=subject.device)  # (1, T)
            with torch.no_grad():
                logits = model(row, final_lengths=torch.tensor([row.shape[1]]))  # (1, T, V)
            alone = logits[0, len(prompt) - 1 : -1].argmax(-1)
            if alone.tolist() != continued:
                return f"a prompt of {len(prompt)} tokens continues differently among longer ones"
    return None


def _steps(tokens: Tensor) -> Sequence[Tensor]:
    """Divide tokens (B, T): one by one around powers of two, where tables may end, else together.

    A short text is a prompt of 30 tokens and ten single ones.
    """
    cuts: list[int] = []
    for bound in (35, 64, 128):
        cuts += range(bound - 5, min(bound + 6, tokens.shape[1]))
    return tokens.tensor_split(cuts, dim=1)


def _cacheable(subject: Subject) -> Decoder:
    model = subject.model()
    if not model.encoding.prefix_consistent:
        raise NotApplicable("needs prefix consistency, which it does not declare")
    return model
