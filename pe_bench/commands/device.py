"""The option --device."""

import importlib.util

from pe_bench.errors import InputError


def find_device(wanted: str) -> str:
    """Return "cpu" or "cuda" for "auto", "cpu" or "cuda".

    Raises:
        InputError: torch or the device is missing.
    """
    if importlib.util.find_spec("torch") is None:
        raise InputError("torch is not installed: run pip install torch")
    import torch

    if wanted == "cuda" and not torch.cuda.is_available():
        raise InputError("there is no CUDA device here: use --device cpu or auto")
    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return wanted
