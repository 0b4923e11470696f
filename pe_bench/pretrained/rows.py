"""Rows of tokens from transformers: with padding on either side, or with several documents."""

import torch
from torch import Tensor

from pe_bench.decoder.documents import Documents
from pe_bench.decoder.model import Decoder
from pe_bench.errors import InputError


def left_padding(tokens: Tensor, mask: Tensor | None) -> Tensor:
    """Return the number of padding tokens before each row, (B,).

    Raises:
        InputError: the mask is not (B, T), or there is padding between tokens.
    """
    if mask is None:
        return tokens.new_zeros(len(tokens))
    if mask.shape != tokens.shape:
        raise InputError(
            f"attention_mask is {tuple(mask.shape)}, but must be {tuple(tokens.shape)}: the "
            "encoding determines the keys that a query may attend to"
        )
    kept = mask.bool().int()  # (B, T)
    starts = kept[:, 0] + kept.diff(dim=1).eq(1).sum(1)  # (B,)
    if bool((starts > 1).any()):
        raise InputError(
            "attention_mask has zeros between tokens: put padding before or after them"
        )
    before: Tensor = kept.cummax(dim=1).values.eq(0).sum(1)  # (B,)
    return before


def other_positions(
    position_ids: Tensor | None, tokens: Tensor, mask: Tensor | None, padding: Tensor
) -> Tensor | None:
    """Return position ids (B, T), or None if they are 0, 1, 2, ... after the padding (B,)."""
    if position_ids is None:
        return None
    given = position_ids.expand(tokens.shape)  # (B, T)
    usual = torch.arange(tokens.shape[1], device=tokens.device) - padding[:, None]  # (B, T)
    same = given == usual
    if mask is not None:
        same = same | ~mask.bool()
    return None if bool(same.all()) else given


def hidden_of_documents(model: Decoder, tokens: Tensor, ids: Tensor) -> Tensor:
    """Return hidden states (B, T, C) of rows (B, T) that consist of several documents.

    A document begins where `ids` (B, T) does not increase by one.
    """
    documents = Documents(ids)
    rows = documents.split(tokens)  # (documents, t)
    lengths = documents.lengths.cpu()
    hidden = model.hidden(rows, None, documents.ids, final_lengths=lengths)  # (documents, t, C)
    return documents.join(hidden)


def shift(x: Tensor, by: Tensor) -> Tensor:
    """Roll each row to the left by a number of places: (B, T, ...) -> (B, T, ...)."""
    if not bool(by.any()):
        return x
    places = torch.arange(x.shape[1], device=x.device) + by[:, None]  # (B, T)
    rows = torch.arange(len(x), device=x.device)[:, None]
    return x[rows, places % x.shape[1]]
