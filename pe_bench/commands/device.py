"""The options `--device` and `--precision`."""

import importlib.util
import os
import re
from collections.abc import Sequence
from typing import Any, Literal

from pe_bench.errors import InputError
from pe_bench.option_table import option

Precision = Literal["fp32", "bf16"]
VISIBLE = "CUDA_VISIBLE_DEVICES"
INSTEAD = "use --device cpu or auto"
QUICK = "quick"  # the preset for two cores


def device_option(default: str | None, text: str) -> Any:
    """Return the dataclass field for the option of the device; `text` describes the default."""
    return option(default, f"auto, cpu, cuda or cuda:1; default: {text}", read=read_device)


def read_device(words: Sequence[str]) -> str:
    """Return the name of a device.

    Raises:
        ValueError: it is not a name of a device.
    """
    (word,) = words
    if word not in ("auto", "cpu", "cuda") and not re.fullmatch(r"cuda:\d{1,3}", word):
        raise ValueError(f"must be auto, cpu, cuda or cuda:1, not '{word}'")
    return word


_shown: dict[str, str] = {}
"""Value of VISIBLE after the GPU with a number has become the only visible one."""


def find_device(wanted: str, preset: str = QUICK) -> str:
    """Return "cpu" or "cuda" for a value of `--device`, and set up torch for it.

    If the value has a number, that GPU becomes the only visible one of this process, so that "cuda"
    means this GPU.

    Args:
        wanted: "auto", "cpu", "cuda", or "cuda" with a number, such as "cuda:1".
        preset: preset of the runs.

    Raises:
        InputError: torch or the device is missing, or a preset for GPUs would run on the CPU
            although the machine has a GPU.
    """
    if importlib.util.find_spec("torch") is None:
        raise InputError("torch is not installed: run pip install torch")
    device, _, number = wanted.partition(":")
    if number:  # before the start of CUDA, which reads the variable only once
        _show_only(wanted, number)
    import torch

    from pe_bench.system import environment

    if device == "cuda" and not torch.cuda.is_available():
        raise InputError(f"there is no {wanted if number else 'CUDA device'} here: {INSTEAD}")
    if wanted == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
        hidden = os.environ.get(VISIBLE) == ""  # the user's choice
        if device == "cpu" and preset != QUICK and not hidden:
            _refuse_idle_gpu(preset)
    environment.set_up(device)
    return device


def find_precision(wanted: str, device: str, preset: str) -> Precision:
    """Return "fp32" or "bf16" for "auto", "fp32" or "bf16".

    "auto" is bf16 for the larger presets on a GPU that supports it, because its matrix products are
    several times as fast. TF32, which is nearly as coarse, is always off.
    """
    if wanted != "auto":
        return "bf16" if wanted == "bf16" else "fp32"
    if device != "cuda" or preset == QUICK:
        return "fp32"
    import torch

    has_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    return "bf16" if has_bf16 else "fp32"


def _refuse_idle_gpu(preset: str) -> None:
    import torch

    from pe_bench.system import environment

    gpu = environment.ask_driver("name")
    if gpu is not None:
        raise InputError(
            f"torch {torch.__version__} cannot use the {gpu} here (driver "
            f"{environment.ask_driver('driver_version')}): install a driver and a torch that fit, "
            f"or write --device cpu to run the preset {preset} on the CPU"
        )


def _show_only(wanted: str, number: str) -> None:
    """Make one GPU the only visible one of this process.

    A second call with the same number does nothing, because the first one has renumbered the GPUs.
    """
    before = os.environ.get(VISIBLE)
    if before is not None and _shown.get(number) == before:
        return
    visible = [] if before is None else before.split(",")
    if before is not None and int(number) >= len(visible):
        raise InputError(f"there is no {wanted} here ({VISIBLE}={before}): {INSTEAD}")
    _shown[number] = number if before is None else visible[int(number)]
    os.environ[VISIBLE] = _shown[number]
