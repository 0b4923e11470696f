"""Positions, embeddings and states, which a forward pass computes once per kind of layer."""

from collections.abc import Sequence

from torch import Tensor

from pe_bench.decoder import hooks
from pe_bench.decoder.cache import Cache
from pe_bench.decoder.token_positions import find_positions
from pe_bench.encoding import Encoding
from pe_bench.positions import Positions, State


def begin_positions(
    encoding: Encoding,
    tokens: Tensor,
    cache: Cache | None,
    position_ids: Tensor | None,
    final_lengths: Tensor | None,
) -> list[Positions]:
    """Add new tokens to the cache; return the positions of the tokens so far, one for each kind.

    Args:
        encoding: the encoding, or a combination of several.
        tokens: (B, T) ids of the new tokens.
        cache: tokens of earlier passes; None: all tokens are new.
        position_ids: (B or 1, S) from the caller; None: the ids of the encoding.
        final_lengths: (B,) lengths of the finished rows; None: T. A cache has its own lengths.

    Raises:
        InputError: a position id is negative or too large for the encoding, or an argument has the
            wrong shape.
    """
    index, longest = None, tokens.shape[1]
    if cache is not None:
        index, tokens = cache.begin(tokens)  # (B, T), (B, S)
        longest, final_lengths = cache.longest, cache.final_lengths
    found = []
    for kind in encoding.layer_kinds:
        found.append(find_positions(kind, tokens, longest, position_ids, index, final_lengths))
    return found


def embed_and_prepare(
    encoding: Encoding, x: Tensor, positions: Sequence[Positions]
) -> tuple[Tensor, list[State]]:
    """Return the changed token embeddings, (B, T, C), and the first state of each kind.

    Args:
        encoding: the encoding, or a combination of several.
        x: token embeddings, (B, T, C).
        positions: return value of `begin_positions`.
    """
    pairs = list(zip(encoding.layer_kinds, positions, strict=True))
    for kind, of_kind in pairs:
        x = hooks.embed(kind, x, of_kind)  # (B, T, C)
    return x, [hooks.prepare(kind, x, of_kind) for kind, of_kind in pairs]
