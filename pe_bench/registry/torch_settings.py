"""Settings of torch that hold for the whole process, which a plugin must not change."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pe_bench.errors import InputError

REFUSED = ("default dtype", "default device", "gradient mode")
"""Settings that change numbers. The number of threads is only restored: libraries set it, too."""


class ChangedTorch(InputError):
    """A plugin has changed a setting of torch."""


@contextmanager
def keeping_torch_settings(where: str) -> Iterator[None]:
    """Restore the settings of torch at the end, and refuse code that has changed them.

    Args:
        where: name or file of the plugin, for the message.

    Raises:
        ChangedTorch: a setting was changed, which would change the numbers of other plugins.
    """
    before = _settings()
    changed: list[str] = []
    try:
        yield
    finally:
        after = _settings()
        before = before or _defaults(after)
        changed += [name for name in after if after[name] != before[name]]
        if changed:
            _restore(before)
    refused = [name for name in changed if name in REFUSED]
    if refused:
        raise ChangedTorch(
            f"{where} changes the {' and the '.join(refused)} of torch for all plugins: set dtype, "
            "device and gradients of single tensors instead"
        )


def _settings() -> dict[str, Any]:
    """Return the settings by name; {}: torch is not imported yet."""
    if "torch" not in sys.modules:
        return {}
    import torch

    return {
        "default dtype": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "gradient mode": torch.is_grad_enabled(),
        "number of threads": torch.get_num_threads(),
    }


def _defaults(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that torch has after its import; the number of threads is unknown."""
    if not settings:
        return {}
    import torch

    usual = {"default dtype": torch.float32, "default device": torch.device("cpu")}
    return {**settings, **usual, "gradient mode": True}


def _restore(settings: dict[str, Any]) -> None:
    import torch

    torch.set_default_dtype(settings["default dtype"])
    device = settings["default device"]
    if torch.get_default_device() != device:
        # Any other value than None slows down every later call of torch.
        torch.set_default_device(None if device == torch.device("cpu") else device)
    torch.set_grad_enabled(settings["gradient mode"])
    torch.set_num_threads(settings["number of threads"])
