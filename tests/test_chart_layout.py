"""Limits, ticks, and positions of names in charts."""

import pytest

from pe_bench.reporting import chart_layout as layout


def test_limits_have_room_for_markers() -> None:
    assert layout.pad(0, 100, by=0.1) == (-10, 110)
    assert layout.pad(3, 3) == (2, 4) and layout.pad(4, 4, log=True) == (2, 8)
    low, high = layout.pad(1, 16, log=True, by=0.25)
    assert (low, high) == pytest.approx((0.5, 32))


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ((3, 97), (-3, 103)),
        ((75, 100), (58.8, 101.2)),
        ((41, 44), (38.8, 81.2)),
        ((110, 120), (78.8, 121.2)),  # overheads
        ((-5, 3), (-11.2, 31.2)),
    ],
)
def test_percentages_have_tens_and_a_least_range(
    ends: tuple[float, float], expected: tuple[float, float]
) -> None:
    assert layout.percent_limits(*ends) == pytest.approx(expected)


def test_ticks_are_few_and_have_the_last_value() -> None:
    assert layout.keep_apart([1, 2, 3, 4, 5, 6, 7, 8], log=True) == [1, 2, 3, 4, 6, 8]
    wide = [2048, 4096, 8192, 12288, 16384]  # of these labels, the last two would touch
    assert layout.keep_apart(wide, log=True) == [2048, 4096, 8192, 16384]
    narrow = layout.keep_apart([2.0**n for n in range(7, 15)], log=True, characters=36)
    assert narrow == [128, 256, 512, 1024, 4096, 16384]
    many = layout.keep_apart(list(range(4, 401)), log=False)
    assert len(many) <= layout.MOST_TICKS + 1 and many[-1] == 400
    assert layout.even_ticks([8, 16, 32]) == [(0.5, "8"), (1.5, "16"), (2.5, "32")]
    ticks = layout.even_ticks([1000.0 * i for i in range(13)])
    assert [label for _, label in ticks] == ["0", "3,000", "6,000", "9,000", "12,000"]
    assert layout.octaves(70) == [0, 1, 4, 16, 64]


def test_names_cover_neither_names_nor_points() -> None:
    limits = (0.0, 1.0)
    assert layout.place_names({"one": (0.5, 0.5)}, limits, limits) == {"one": "right"}
    assert layout.place_names({"one": (0.99, 0.5)}, limits, limits) == {"one": "left"}
    crowded = {"first": (0.5, 0.5), "second": (0.55, 0.5)}
    assert layout.place_names(crowded, limits, limits) == {"first": "left", "second": "right"}
    stacked = {f"encoding {i}": (0.5, 0.5) for i in range(6)}
    found = layout.place_names(stacked, limits, limits)
    assert sorted(found.values()) == ["above", "below", "left", "right"]  # the others have no name
