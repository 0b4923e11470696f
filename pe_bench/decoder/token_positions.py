"""Position ids: from the encoding or from the caller."""

import torch
import torch.nn.functional as F
from torch import Tensor

from pe_bench.decoder import hooks
from pe_bench.encoding import Encoding
from pe_bench.errors import InputError
from pe_bench.positions import Positions


def find_positions(
    encoding: Encoding,
    tokens: Tensor,
    longest: int | None = None,
    position_ids: Tensor | None = None,
    index: Tensor | None = None,
    final_lengths: Tensor | None = None,
) -> Positions:
    """Return the positions of the tokens so far.

    Args:
        encoding: the encoding, which computes position ids.
        tokens: (B, S) ids of all tokens so far.
        longest: length of the longest row; None: S. (A cache may round S up.)
        position_ids: (B or 1, longest) from the caller; None: the ids of the encoding.
        index: (B, T) indices of the new tokens; None: all are new.
        final_lengths: (B,) lengths of the finished rows; None: S.

    Raises:
        InputError: a position id is negative or too large for the encoding, or an argument has the
            wrong shape.
    """
    batch, length = tokens.shape
    if longest is None:
        longest = length
    if position_ids is not None:
        if position_ids.shape not in ((batch, longest), (1, longest)):
            raise InputError(
                f"positions are {tuple(position_ids.shape)}, but must be {(batch, longest)} or "
                f"{(1, longest)}, one for each token so far"
            )
        position_ids = F.pad(position_ids, (0, length - longest))
    if final_lengths is not None and final_lengths.shape != (batch,):
        raise InputError(
            f"final_lengths are {tuple(final_lengths.shape)}, but must be {(batch,)}, one for each "
            "row"
        )
    computed = hooks.position_ids(encoding, tokens)  # (B or 1, S) or (B or 1, S, K)
    if position_ids is not None:
        ids, drawn, is_arange = _replace_ids(computed, position_ids), False, False
    else:
        if final_lengths is None:
            final_lengths = torch.full((batch,), length)
        ids = hooks.draw_positions(encoding, computed, final_lengths)
        drawn = ids is not computed
        is_arange = not drawn and not encoding.overrides("positions")  # 0, 1, 2, ...
    query = ids
    if index is not None:
        rows = torch.arange(len(index), device=index.device)[:, None]
        query = ids.expand(len(index), *ids.shape[1:])[rows, index]  # (B, T) or (B, T, K)
    if not drawn or ids.is_cpu:  # reading drawn ids on a GPU would synchronise with it
        check_position_ids(encoding.max_position, query, longest - 1 if is_arange else None)
    # `visible` is passed explicitly: torch.compile cannot trace a dataclass as a default value.
    all_arange = is_arange and index is None
    return Positions(query, ids, index, visible=encoding.visible, is_arange=all_arange)


def check_position_ids(limit: int | None, positions: Tensor, last: int | None) -> None:
    """Check the ids of new tokens, (B or 1, T) or (B or 1, T, K).

    Args:
        limit: number of position ids of the encoding; None: no limit.
        positions: the ids.
        last: the largest id; None: it has to be read from the tensor.

    Raises:
        InputError: an id is negative or too large for the encoding.
    """
    if limit is None:
        return
    if last is None:
        ids = positions if positions.dim() == 2 else positions[..., 0]
        first, last = (int(end) for end in ids.aminmax())
        if first < 0:
            raise InputError(f"this encoding has positions 0 to {limit - 1}, not {first}")
    if last >= limit:
        raise InputError(
            f"this encoding has positions 0 to {limit - 1}, not {last}: "
            "use shorter sequences or a larger table"
        )


def _replace_ids(computed: Tensor, position_ids: Tensor) -> Tensor:
    """Replace the ids of an encoding, or the first of several, by ids (B or 1, S)."""
    if computed.dim() == 2:
        return position_ids
    first = position_ids[..., None]  # (B or 1, S, 1)
    others = computed[..., 1:]  # (B or 1, S, K - 1)
    rows = max(len(first), len(others))
    return torch.cat([first.expand(rows, -1, -1), others.expand(rows, -1, -1)], dim=-1)
