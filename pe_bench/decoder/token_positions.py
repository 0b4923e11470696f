"""Where tokens lie: the ids that an encoding gives them, or those that a caller gives."""

import torch
from torch import Tensor

from pe_bench.decoder import hooks
from pe_bench.encoding import Encoding
from pe_bench.errors import InputError
from pe_bench.positions import Positions


def find_positions(
    encoding: Encoding,
    tokens: Tensor,
    length: int,
    given: Tensor | None,
    index: Tensor | None,
    final_lengths: Tensor | None,
) -> Positions:
    """Return the positions of tokens so far: those given, or an encoding's own.

    Args:
        encoding: it numbers the tokens.
        tokens: (B, S) ids of all tokens so far.
        length: of the longest row.
        given: (B or 1, S) position ids in place of the encoding's own.
        index: (B, T) which of the S tokens are new; None: all.
        final_lengths: (B,) lengths of the rows when they are complete; None: that of `tokens`.

    Raises:
        InputError: a position is past the encoding's table.
    """
    own = hooks.position_ids(encoding, tokens)  # (B or 1, S) or (B or 1, S, K)
    if given is not None:
        ids, drawn, counted = _replace_ids(own, given), False, False
    else:
        if final_lengths is None:
            final_lengths = torch.full((len(tokens),), tokens.shape[1])
        ids = hooks.draw_positions(encoding, own, final_lengths)
        drawn = ids is not own
        counted = not drawn and not encoding.overrides("positions")  # 0, 1, 2, ...
    query = ids
    if index is not None:
        rows = torch.arange(len(index), device=index.device)[:, None]
        query = ids.expand(len(index), *ids.shape[1:])[rows, index]  # (B, T) or (B, T, K)
    if not drawn or ids.is_cpu:  # to read drawn ids of a GPU would be to wait for it
        _refuse_past_table(encoding.max_position, query, length - 1 if counted else None)
    # Given here too, as torch.compile cannot follow a dataclass to a default of its own kind.
    all_counted = counted and index is None
    return Positions(query, ids, index, visible=encoding.visible, counted=all_counted)


def _refuse_past_table(limit: int | None, positions: Tensor, last: int | None) -> None:
    """Check the ids of new tokens, (B or 1, T) or (B or 1, T, K).

    Args:
        limit: number of positions that an encoding has.
        positions: the ids.
        last: the largest, None where it is not known without reading them.

    Raises:
        InputError: one is past the encoding's table.
    """
    if limit is None:
        return
    if last is None:
        ids = positions if positions.dim() == 2 else positions[..., 0]
        last = int(ids.max())
    if last >= limit:
        raise InputError(
            f"this encoding has positions 0 to {limit - 1} and was asked for {last}: "
            "use shorter sequences or a larger table"
        )


def _replace_ids(own: Tensor, given: Tensor) -> Tensor:
    """Return given ids (B or 1, S) in place of an encoding's, of the first of several."""
    if own.dim() == 2:
        return given
    first = given[..., None]  # (B or 1, S, 1)
    rest = own[..., 1:]  # (B or 1, S, K - 1)
    rows = max(len(first), len(rest))
    return torch.cat([first.expand(rows, -1, -1), rest.expand(rows, -1, -1)], dim=-1)
