"""Shared by all tests: a cache of their own, and where the real documents are."""

import os
from pathlib import Path

# One thread: the models are tiny, and threads that wait for each other on a busy machine cost
# ten times what they save. Before torch is imported, and inherited by subprocesses.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest

DATA = Path(os.environ.get("PE_BENCH_DATA", Path(__file__).parents[2] / "shared" / "data"))


@pytest.fixture(autouse=True, scope="session")
def cache_folder(tmp_path_factory: pytest.TempPathFactory):
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
