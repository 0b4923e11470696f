"""Modules without memory, for their shapes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


@contextmanager
def without_memory() -> Iterator[None]:
    """Make new modules on the meta device, without initial values."""
    with torch.device("meta"), _WithoutInit():
        yield


class _WithoutInit(TorchFunctionMode):
    """Skip the functions of `torch.nn.init`; on the meta device, they import torch's compiler."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(function, "__module__", None) == torch.nn.init.__name__:
            return kwargs["tensor"]
        return function(*args, **kwargs)
