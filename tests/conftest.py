"""Shared fixtures: a temporary cache, a fixed random state, real documents, golden numbers."""

import gc
import os
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

# The models are tiny, so one thread is enough, and waiting threads on a busy machine cost ten times
# the time that they save. Set before torch is imported; subprocesses inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Tests expect numbers of a CPU, and `--device auto` would select a GPU. GPUs are tested by
# `pe-bench check all --device cuda` and benchmarks/gpu_first.py.
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import pytest

pytest.register_assert_rewrite("golden_arrays")

# Fixtures import what they need. The process that hands out tests loads this file too, and its
# workers would wait for torch to be imported there.
if TYPE_CHECKING:
    from golden_arrays import Golden
    from matplotlib.figure import Figure

DATA = Path(os.environ.get("PE_BENCH_DATA", Path(__file__).parents[2] / "shared" / "data"))


MEMORY = Path("/dev/shm")  # on Linux
LONG = ("test_devices", "test_grid", "test_kills", "test_resume")


@pytest.fixture(autouse=True, scope="session")
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Use a temporary cache instead of the user's."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PE_BENCH_CACHE", str(folder))
        yield folder


@pytest.fixture(autouse=True)
def random_state() -> None:
    """Set the same random state before every test."""
    import numpy as np
    import torch

    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def torch_settings() -> Iterator[None]:
    """Every test begins with the same settings of torch, which commands change for a process."""
    import torch

    precision = torch.get_float32_matmul_precision()
    tf32 = torch.backends.cudnn.allow_tf32
    cudnn_attention = torch.backends.cuda.cudnn_sdp_enabled()
    threads = torch.get_num_threads()
    yield
    torch.set_float32_matmul_precision(precision)
    torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cuda.enable_cudnn_sdp(cudnn_attention)
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)


@pytest.fixture
def four_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run checks of encodings with four layers instead of nine, enough for most encodings."""
    import torch

    from pe_bench.checks.subject import Subject

    monkeypatch.setattr(Subject.model, "__defaults__", (torch.float64, 4))


@pytest.fixture
def untested(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plugins of users are not tested in the plan, so that logs have only calls of runs."""
    from pe_bench.grid import plan

    monkeypatch.setattr(plan, "find_faults", lambda tasks, runs: ())


@pytest.fixture
def real_documents() -> Path:
    """Return the folder of real documents in the official layouts, if this machine has them."""
    if not DATA.is_dir():
        pytest.skip(f"no real documents in {DATA}: set PE_BENCH_DATA")
    return DATA


@pytest.fixture(autouse=True, scope="session")
def cheap_seeds_and_files() -> Iterator[None]:
    """Skip the seeding of absent devices and the flushing of files, which slow down small tests."""
    import torch

    with pytest.MonkeyPatch.context() as patch:
        # torch.manual_seed formats a stack trace for every absent device.
        for device in (torch.cuda, torch.xpu, torch.mtia):
            if not device.is_available():
                patch.setattr(device, "manual_seed_all", lambda seed: None)
        patch.setattr(os, "fsync", lambda file: None)
        # Tests edit plugins within a second, so a .pyc of the same size would count as up to date.
        patch.setattr(sys, "dont_write_bytecode", True)
        yield


@pytest.fixture(autouse=True, scope="session")
def blank_figures() -> Iterator[None]:
    """Draw figures but save empty files, unless a test uses `real_figures`."""
    from pe_bench.reporting import figure_files

    def save(figure: "Figure", paths: Sequence[Path], stamp: str = "") -> None:
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figure_files, "save", save)
        yield


@pytest.fixture
def real_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Save figures as real files."""
    from pe_bench.reporting import figure_files, panels

    monkeypatch.setattr(figure_files, "save", panels.save)


@pytest.fixture(scope="module")
def golden(request: pytest.FixtureRequest) -> Iterator[Callable[[str], "Golden"]]:
    """Open files, as in golden("rope"); the tests of a module must use all of their arrays."""
    from golden_arrays import Golden

    opened: dict[str, Golden] = {}

    def open_file(name: str) -> Golden:
        return opened.setdefault(name, Golden(name))

    yield open_file
    chosen = request.config.getoption("keyword") or "::" in " ".join(request.config.args)
    if not chosen and not request.session.testsfailed:
        unused = {name: file.arrays.keys() - file.used for name, file in opened.items()}
        assert not any(unused.values()), unused
        assert all(file.compared for file in opened.values())


def pytest_configure(config: pytest.Config) -> None:
    """Write temporary files to memory, and keep the tests of a file in one process.

    Tests write and remove tens of thousands of small files, which takes minutes on some disks; the
    tests of a file share fixtures.
    """
    if "TMPDIR" not in os.environ and os.access(MEMORY, os.W_OK):
        status = os.statvfs(MEMORY)
        runs_programs = not status.f_flag & os.ST_NOEXEC  # some tests run what they write
        if runs_programs and status.f_bavail * status.f_frsize > 4 * 2**30:
            os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)
    if config.getoption("dist", "no") == "load":  # pytest -n 2
        config.option.dist = "loadfile"
        config.option.loadscopereorder = False  # see below


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with files of few, long tests; at the end, they would keep a single process busy."""
    tests = Counter(item.path for item in items)
    items.sort(key=lambda item: (item.path.stem not in LONG, -tests[item.path], item.path))


def pytest_collection_finish() -> None:
    """Exclude modules and tests from garbage collection, since they stay until the end."""
    gc.collect()
    gc.freeze()
