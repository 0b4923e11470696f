"""Random position ids, for encodings that draw them in training or freeze them in evaluation."""

import torch
from torch import Tensor

from pe_bench.errors import InputError


def random_ids(
    rows: int,
    lengths: int | Tensor,
    limit: int,
    generator: torch.Generator | None,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Draw distinct ids from 0 to limit - 1 in ascending order: (rows, length) on the device.

    Each row is a random permutation of all ids, cut off after `lengths` ids.

    Args:
        rows: number of draws.
        lengths: number of ids in every row; or in each row, (B,) on the CPU, with `rows` equal to
            B, or to 1 for a single permutation. Shorter rows are padded with the last id,
            limit - 1. If all lengths are equal, the result has `rows` rows.
        limit: number of ids to draw from.
        generator: random number generator on the CPU; None: torch's default.
        device: device that sorts the ids; the result is the same on all devices.

    Raises:
        InputError: there are fewer ids than tokens.
    """
    counts = torch.as_tensor(lengths).view(-1, 1)  # (B or 1, 1)
    longest = int(counts.max())
    if longest > limit:
        raise InputError(
            f"{longest} tokens need as many position ids, but there are {limit}: raise the limit"
        )
    drawn = torch.rand(rows, limit, generator=generator, device="cpu")
    # Float32 has ties, whose order in an unstable sort depends on the device.
    order = drawn.to(device, non_blocking=True).argsort(dim=1, stable=True)  # (rows, limit)
    ranked = order[:, :longest]
    if int(counts.min()) == longest:
        return ranked.sort(dim=1).values
    left_out = torch.arange(longest) >= counts  # (B, longest)
    left_out = left_out.to(device, non_blocking=True)
    return torch.where(left_out, limit, ranked).sort(dim=1).values.clamp(max=limit - 1)
