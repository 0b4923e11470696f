"""Parts of positions, such as those of a block of queries, agree with the whole."""

import gc
import weakref
from typing import Any

import pytest
import torch

from pe_bench.errors import InputError
from pe_bench.positions import Positions, in_order
from pe_bench.visibility import EVERYTHING, Visibility

LENGTH = 12
QUERIES = torch.tensor([7, 8, 11])
KEYS = {
    "the first": slice(0, 9),
    "from the first on": slice(None, 9),
    "the last": slice(4, None),
    "in the middle": slice(3, 10),
    "chosen ones": torch.tensor([0, 1, 6, 7, 8, 11]),
}


@pytest.mark.parametrize("keys", KEYS.values(), ids=KEYS)
@pytest.mark.parametrize(
    "visible",
    [EVERYTHING, Visibility(window=3), Visibility(window=3, first=2), Visibility(chunk=4)],
    ids=["everything", "window", "window and first keys", "chunk"],
)
@pytest.mark.parametrize("missing", [0, 2])
def test_a_part_has_the_ids_and_the_mask_of_the_whole(
    keys: slice | torch.Tensor, visible: Visibility, missing: int
) -> None:
    """With missing keys, as in rows that are padded on the left."""
    ids = 3 * torch.arange(LENGTH)[None]
    columns = torch.arange(LENGTH)[None] - missing if missing else None
    whole = Positions(ids, ids, columns=columns, visible=visible)
    part = whole.part(QUERIES, keys)
    assert part.query.equal(whole.query[:, QUERIES]) and part.key.equal(whole.key[:, keys])
    assert part.key_column.equal(whole.key_column[:, keys])
    within = isinstance(keys, torch.Tensor) or (keys.stop or LENGTH) > int(QUERIES.max())
    queries = QUERIES if within else QUERIES[:2]  # a query is among the keys
    part = whole.part(queries, keys)
    assert part.query_column.equal(whole.query_column[:, queries])
    assert part.causal.equal(whole.causal[:, :, queries][..., keys])


@pytest.mark.parametrize(
    "wrong", [{"window": 2.5}, {"window": True}, {"chunk": 0}, {"first": -1}, {"first": None}]
)
def test_visibility_takes_whole_numbers_only(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(InputError, match=f"{name} must be (a whole number|at least [01]), not"):
        Visibility(**wrong)


def test_once_keeps_a_result_for_each_function_and_number() -> None:
    positions = in_order(5, torch.device("cpu"))
    calls = []

    def add(ids: torch.Tensor, number: float) -> torch.Tensor:
        calls.append(number)
        return ids + number

    first = positions.once(add, positions.query, 2.0)
    assert positions.once(add, positions.query.clone(), 2.0) is first
    assert torch.equal(positions.once(add, positions.query, 5.0), positions.query + 5)
    assert calls == [2.0, 5.0]


def test_once_keeps_no_reference_to_the_positions() -> None:
    gc.disable()
    try:
        positions = in_order(5, torch.device("cpu"))
        positions.once(lambda given: given.query + 1, positions)
        watched = weakref.ref(positions)
        del positions
        assert watched() is None
    finally:
        gc.enable()
