"""Shared by all tests: a cache of their own, real documents, golden numbers."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

# One thread: the models are tiny, and threads that wait for each other on a busy machine cost
# ten times what they save. Before torch is imported, and inherited by subprocesses.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Tests mean the CPU's numbers, and `--device auto` would take a GPU: `pe-bench check all --device
# cuda` and benchmarks/gpu_first.py are for those.
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import numpy as np
import pytest
import torch
from torch import Tensor

DATA = Path(os.environ.get("PE_BENCH_DATA", Path(__file__).parents[2] / "shared" / "data"))


@pytest.fixture(autouse=True, scope="session")
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Nothing is read from the user's cache or written to it."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PE_BENCH_CACHE", str(folder))
        yield folder


@pytest.fixture
def real_documents() -> Path:
    """Real documents in the official layouts, where this machine has them."""
    if not DATA.is_dir():
        pytest.skip(f"no real documents in {DATA}: set PE_BENCH_DATA")
    return DATA


@pytest.fixture(autouse=True, scope="session")
def cheap_seeds_and_files() -> Iterator[None]:
    """Spare thousands of small calls what only a GPU or a power cut would make use of."""
    with pytest.MonkeyPatch.context() as patch:
        # For every device that is not there, torch.manual_seed writes down the whole stack.
        for device in (torch.cuda, torch.xpu, torch.mtia):
            if not device.is_available():
                patch.setattr(device, "manual_seed_all", lambda seed: None)
        patch.setattr(os, "fsync", lambda file: None)
        yield


FOLDER = Path(__file__).parent / "golden"
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}
touched: dict[str, dict[str, str]] = {}
"""File -> array -> "input" or "compared", for all golden numbers that tests have used."""


class Golden:
    """The arrays of one file of tests/golden, and a record of what was done with each."""

    def __init__(self, name: str) -> None:
        with np.load(FOLDER / f"{name}.npz") as arrays:
            self.arrays = {key: torch.from_numpy(array) for key, array in arrays.items()}
        self.record = touched.setdefault(name, {})

    def __getitem__(self, key: str) -> Tensor:
        """An array to compute with."""
        self.record.setdefault(key, "input")
        return self.arrays[key]

    def check(
        self,
        key: str,
        actual: Tensor,
        *,
        tolerance: float | None = None,
        where: Tensor | None = None,
    ) -> None:
        """Asserts that an array is what we compute.

        Args:
            key: name of the array.
            actual: our numbers, of the same shape and type.
            tolerance: largest difference, relative to the largest expected value; None: 1e-10 in
                float64, 1e-5 in float32, 0 for whole numbers.
            where: which entries mean anything; None: all.
        """
        self.record[key] = "compared"
        expected = self.arrays[key]
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


@pytest.fixture
def golden() -> type[Golden]:
    """golden("rope") opens a file."""
    return Golden


@pytest.fixture(scope="session")
def golden_record() -> dict[str, dict[str, str]]:
    """What has been done with every golden array so far."""
    return touched


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked `last` look at what the others have left."""
    items.sort(key=lambda item: item.get_closest_marker("last") is not None)


def pytest_collection_finish() -> None:
    """Modules and tests stay to the end: the garbage collector need not look at them again."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How much was held against reference implementations."""
    uses = [use for arrays in touched.values() for use in arrays.values()]
    if uses:
        compared, read = uses.count("compared"), uses.count("input")
        terminalreporter.write_line(f"golden arrays: {compared} compared, {read} read as inputs")
