"""Reference numbers of tests/golden."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

FOLDER = Path(__file__).parent / "golden"
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}


class Golden:
    """The arrays of one file of tests/golden, and the names of those that tests have used."""

    def __init__(self, name: str) -> None:
        with np.load(FOLDER / f"{name}.npz") as arrays:
            self.arrays = {key: torch.from_numpy(array) for key, array in arrays.items()}
        self.used: set[str] = set()
        self.compared: set[str] = set()

    def __getitem__(self, key: str) -> Tensor:
        """Return an array as an input."""
        self.used.add(key)
        return self.arrays[key]

    def check(
        self,
        key: str,
        actual: Tensor,
        *,
        tolerance: float | None = None,
        where: Tensor | None = None,
    ) -> None:
        """Assert that computed numbers equal an array.

        Args:
            key: name of the array.
            actual: our numbers, of the same shape and type.
            tolerance: largest difference, relative to the largest expected value; None: 1e-10 in
                float64, 1e-5 in float32, 0 for whole numbers.
            where: entries to compare; None: all.
        """
        self.compared.add(key)
        expected = self[key]
        assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype), key
        if where is not None:
            where = where.expand(expected.shape)
            actual, expected = actual[where], expected[where]
        if tolerance is None:
            tolerance = TOLERANCE.get(expected.dtype, 0)
        finite = expected.isfinite()
        assert torch.equal(actual[~finite], expected[~finite]), f"{key}: infinities"
        actual, expected = actual[finite], expected[finite]
        error = float((actual - expected).abs().max() / expected.abs().max().clamp(min=1e-30))
        assert error <= tolerance, f"{key} differs by {error:.1e} of its largest value"
