"""Device, package versions and memory of a measurement."""

import contextlib
import ctypes
import os
import platform
import resource
import subprocess
import sys
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from pe_bench.system import commit

# Parameters of malloc, from malloc.h of glibc, and their largest values.
TRIM_THRESHOLD = -1
MMAP_THRESHOLD = -3
MOST_KEPT = 2**31 - 1
LARGEST_ON_HEAP = 2**25

# Linux: writing 5 to the first file resets the peak memory, which the second reports as VmHWM.
PEAK_RESET = Path("/proc/self/clear_refs")
STATUS = Path("/proc/self/status")
PACKAGES = ("pe-bench", "torch", "lightning", "numpy", "rouge-score", "tokenizers")


def set_up(device: str) -> None:
    """Set global options of torch and of the allocator.

    On a GPU, float32 is not rounded to TF32, which keeps 10 of the 23 bits of the mantissa. cuDNN's
    attention is disabled: it needs up to a second to plan each new shape, and some versions return
    wrong gradients with a mask.
    """
    commit.find_commit()  # before the checkout can change
    if device == "cuda":
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cuda.enable_cudnn_sdp(False)
    else:
        _keep_freed_memory()


def _keep_freed_memory() -> None:
    """Let tensors reuse freed memory, which glibc would otherwise return to the system.

    Requesting the same pages again in each step takes up to a quarter of the time of a training
    step of PaTH, and varies at random.
    """
    libc = ctypes.CDLL(None)
    if sys.platform == "linux" and hasattr(libc, "mallopt"):
        libc.mallopt(MMAP_THRESHOLD, LARGEST_ON_HEAP)
        libc.mallopt(TRIM_THRESHOLD, MOST_KEPT)


def return_freed_memory() -> None:
    """Return freed memory to the system, so that it counts as available."""
    libc = ctypes.CDLL(None)
    if sys.platform == "linux" and hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)


def is_out_of_memory(error: BaseException | None) -> bool:
    """Return whether an exception says that the memory of the CPU or the GPU is used up."""
    # On the CPU torch raises a plain RuntimeError.
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "allocate" in str(error)


def name_of(device: str) -> str:
    """Return the name of the GPU or the processor."""
    return torch.cuda.get_device_name() if device == "cuda" else _processor()


def describe(device: str, devices: int = 1, strategy: str | None = None) -> dict[str, Any]:
    """Return device, versions, and the commit of the code if it runs from a checkout.

    Args:
        device: "cpu" or "cuda".
        devices: number of data-parallel processes, one device each.
        strategy: distributed strategy of these processes; None: a single process.
    """
    return {
        "device": name_of(device),
        "device_type": device,
        "devices": devices,
        "strategy": strategy,
        "clock": ask_driver("clocks.sm") if device == "cuda" else _cpu_field("cpu MHz"),
        "driver": ask_driver("driver_version") if device == "cuda" else None,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if device == "cuda" else None,
        "tf32": _tf32() if device == "cuda" else None,
        "sdpa": _fused_kernels() if device == "cuda" else None,
        "threads": torch.get_num_threads(),
        "waiting": os.environ.get("OMP_WAIT_POLICY", "default").lower(),  # policy of idle threads
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": {name: _version(name) for name in PACKAGES},
        "git": commit.find_commit(),
    }


def reset_peak_memory(device: str) -> None:
    """Reset the peak of the memory in use, if the device or the system supports it."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        return
    with contextlib.suppress(OSError):
        PEAK_RESET.write_text("5", encoding="ascii")


def peak_memory(device: str) -> int:
    """Return the peak memory in bytes since `reset_peak_memory`, of the GPU or of the process.

    If the system cannot reset the peak of a process, the result is the peak since the process
    started.
    """
    if device == "cuda":
        return int(torch.cuda.max_memory_allocated())
    with contextlib.suppress(OSError, StopIteration, ValueError):
        lines = STATUS.read_text(encoding="utf-8").splitlines()
        peak = next(line for line in lines if line.startswith("VmHWM:"))
        return int(peak.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _processor() -> str:
    return _cpu_field("model name") or platform.processor() or platform.machine()


def _cpu_field(name: str) -> str | None:
    """Return a field of the first processor in /proc/cpuinfo, such as its clock, or None."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith(name):
                return line.partition(":")[2].strip()
    return None


def _tf32() -> list[str]:
    """Return the float32 operations that may use TF32."""
    allowed = {
        "matmul": torch.get_float32_matmul_precision() != "highest",
        "convolution": torch.backends.cudnn.allow_tf32,
    }
    return [name for name, on in allowed.items() if on]


def _fused_kernels() -> list[str]:
    """Return the enabled kernels of `scaled_dot_product_attention`."""
    cuda = torch.backends.cuda
    allowed = {
        "flash": cuda.flash_sdp_enabled(),
        "mem_efficient": cuda.mem_efficient_sdp_enabled(),
        "cudnn": cuda.cudnn_sdp_enabled(),
        "math": cuda.math_sdp_enabled(),
    }
    return [name for name, on in allowed.items() if on]


def ask_driver(field: str) -> str | None:
    """Query a field of the first visible GPU from the driver, such as its clock, or None."""
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "").partition(",")[0] or "0"
    command = ["nvidia-smi", "-i", first, f"--query-gpu={field}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


@cache
def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
