"""Conditions of timing besides the settings: the machine, and the code itself."""

from pathlib import Path
from typing import Any

from pe_bench import decoder
from pe_bench.errors import PACKAGE
from pe_bench.registry.fingerprint import fingerprint
from pe_bench.registry.plugins import Plugin
from pe_bench.system import environment


def find_conditions(device: str) -> dict[str, Any]:
    """Return device, threads, version of torch, and a digest of the decoder's code.

    Args:
        device: "cpu" or "cuda".
    """
    found = environment.describe(device)
    files = sorted(Path(decoder.__file__).parent.glob("*.py"))
    files += [PACKAGE / "encoding.py", PACKAGE / "positions.py", PACKAGE / "wrapper.py"]
    return {
        "device": found["device"],
        "threads": found["threads"],
        "torch": found["versions"]["torch"],
        "code": fingerprint(files, ()),
    }


def code_of(encoding: Plugin) -> str:
    """Return a digest of an encoding's code; versions cover changes of numbers, but not of time."""
    in_folder = encoding.file.name == "encoding.py"
    files = sorted(encoding.file.parent.glob("*.py")) if in_folder else [encoding.file]
    return fingerprint(files, ())
