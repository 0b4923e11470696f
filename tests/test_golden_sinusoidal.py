"""Sinusoids, compared with the tables of public implementations."""

from typing import Any

import pytest
import torch
from torch import Tensor

from pe_bench.config import ModelConfig
from pe_bench.encodings.sinusoidal import Sinusoidal
from pe_bench.positions import Positions

TABLES = [
    ("interleaved", "interleaved_vaswani"),
    ("interleaved", "tape_sincos"),
    ("concat", "concat_mcgill"),
    ("concat", "concat_deepmind"),
    ("t2t", "concat_t2t_formula_not_run"),
]


def embedded(x: Tensor, positions: Tensor, **options: Any) -> Tensor:
    return Sinusoidal(ModelConfig(width=x.shape[-1]), **options).embed(
        x, Positions(positions, positions)
    )


@pytest.mark.parametrize(("layout", "name"), TABLES)
def test_tables(golden: Any, layout: str, name: str) -> None:
    arrays = golden("sinusoidal")
    nothing = torch.zeros(1, 64, 32, dtype=arrays[name].dtype)
    arrays.check(name, embedded(nothing, torch.arange(64)[None], layout=layout)[0])


def test_layouts_differ() -> None:
    nothing, ids = torch.zeros(1, 64, 32), torch.arange(64)[None]
    tables = [embedded(nothing, ids, layout=name) for name in ("interleaved", "concat", "t2t")]
    for i in range(3):
        assert (tables[i] - tables[i - 1]).abs().max() > 0.02


@pytest.mark.parametrize(("scale", "factor"), [("sqrt", 32**0.5), ("one", 1.0)])
def test_scale_multiplies_the_tokens_only(scale: str, factor: float) -> None:
    x, ids = torch.randn(2, 64, 32), torch.arange(64)[None]
    added = embedded(x, ids, scale=scale) - embedded(torch.zeros_like(x), ids, scale=scale)
    torch.testing.assert_close(added, factor * x)


def test_far_positions_keep_their_digits() -> None:
    """In float32 the angle 100 000 would be off by 0.004."""
    table = embedded(torch.zeros(1, 1, 32), torch.tensor([[100_000]]), layout="concat")[0, 0]
    angles = 100_000 * 10_000.0 ** -(torch.arange(16).double() / 16)
    expected = torch.cat([angles.sin(), angles.cos()]).float()
    torch.testing.assert_close(table, expected, rtol=0, atol=1e-6)
