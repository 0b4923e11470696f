"""Which hooks of an encoding compute in half precision?"""

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pe_bench.checks.findings import hook_of
from pe_bench.checks.subject import TRAIN_LENGTH, Subject, training_outputs
from pe_bench.errors import source_line

HALF = (torch.bfloat16, torch.float16)


class HalfPrecision(Exception):
    """An operation has an argument or a result in half precision; the message names the type."""


class RefuseHalfPrecision(TorchDispatchMode):
    """Raises HalfPrecision at the first operation in half precision."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        returned = func(*args, **(kwargs or {}))
        for value in tree_leaves((args, returned)):
            if isinstance(value, Tensor) and value.dtype in HALF:
                raise HalfPrecision(str(value.dtype).removeprefix("torch."))
        return returned


@torch.no_grad()
def precision(subject: Subject) -> str | None:
    """No hook or constructor computes in half precision, which rounds positions away."""
    try:
        with RefuseHalfPrecision():
            model = subject.model()
            for tokens in subject.short_and_long():
                model(tokens)
            training_outputs(model, subject.tokens(TRAIN_LENGTH))
    except HalfPrecision as kind:
        return f"{hook_of(kind)} computes in {kind} ({source_line(kind)}): use float32"
    return None
