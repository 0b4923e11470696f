"""Rows of transformers: padding on either side, and position ids."""

import pytest
import torch

from pe_bench.errors import InputError
from pe_bench.pretrained.rows import left_padding, other_positions, shift

TOKENS = torch.tensor([[7, 8, 9, 4], [1, 2, 3, 4]])
PADDED = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 0]])


def test_padding_before_a_row_is_counted() -> None:
    assert left_padding(TOKENS, None).tolist() == [0, 0]
    assert left_padding(TOKENS, PADDED).tolist() == [2, 0]
    assert left_padding(TOKENS, torch.zeros_like(TOKENS)).tolist() == [4, 4]
    with pytest.raises(InputError, match="zeros between tokens"):
        left_padding(TOKENS, torch.tensor([[1, 0, 1, 1], [1, 1, 1, 1]]))
    with pytest.raises(InputError, match=r"attention_mask is \(2, 3\)"):
        left_padding(TOKENS, PADDED[:, 1:])


def test_rows_are_shifted_to_the_left_and_back() -> None:
    by = torch.tensor([1, 0])
    moved = shift(TOKENS, by)
    assert moved.tolist() == [[8, 9, 4, 7], [1, 2, 3, 4]]
    assert torch.equal(shift(moved, -by), TOKENS)
    assert shift(TOKENS, 0 * by) is TOKENS


def test_position_ids_are_left_out_where_they_are_the_usual_ones() -> None:
    padding = left_padding(TOKENS, PADDED)
    usual = torch.arange(4) - padding[:, None]
    clamped = usual.clamp(min=1)  # the position ids of padding in transformers
    assert other_positions(None, TOKENS, PADDED, padding) is None
    assert other_positions(usual, TOKENS, None, padding) is None
    assert other_positions(usual.clamp(min=0), TOKENS, PADDED, padding) is None
    assert other_positions(torch.arange(4)[None], TOKENS, None, 0 * padding) is None
    found = other_positions(clamped, TOKENS, PADDED, padding)
    assert found is not None and torch.equal(found, clamped)
