"""Find the hook that makes the outputs of a model infinite or not a number."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pe_bench.checks.interface import HOOKS
from pe_bench.checks.subject import Subject
from pe_bench.encoding import Encoding

FEW = 8  # tokens, which every training sequence has


@torch.no_grad()
def find_not_finite(subject: Subject) -> str | None:
    """Return a sentence if outputs of an untrained model are not finite because of a hook, or None.

    The sentence names the first hook that returns such a value although its arguments are finite.
    """
    model = subject.untrained_model(subject.layers).eval()
    found: list[str] = []
    for encoding in dict.fromkeys(model.encodings):
        assert isinstance(encoding, Encoding)
        for name in HOOKS:
            if encoding.overrides(name):
                setattr(encoding, name, _watch(encoding, name, found))
    outputs = model(subject.tokens(FEW))  # (B, T, V)
    if found and not outputs.isfinite().all():
        return f"the outputs of the model are not finite, because {found[0]}"
    return None


def _watch(encoding: Encoding, name: str, found: list[str]) -> Callable[..., Any]:
    """Return a hook that adds a sentence to `found` if it returns infinity or not a number."""
    hook = getattr(encoding, name)

    def watched(*args: Any) -> Any:
        result = hook(*args)
        value = _not_finite(result)
        if value and not any(map(_not_finite, args)):
            found.append(f"{type(encoding).__name__}.{name} returns {value}")
        return result

    watched.__self__ = encoding  # type: ignore[attr-defined]
    watched.__name__ = name
    return watched


def _not_finite(value: Any) -> str:
    """Return "nan", "inf" or "-inf" if a tensor has such a value, else "" """
    if isinstance(value, tuple | list):
        return next(filter(None, map(_not_finite, value)), "")
    if not isinstance(value, Tensor) or not value.is_floating_point() or value.isfinite().all():
        return ""
    if value.isnan().any():
        return "nan"
    return "inf" if value.isposinf().any() else "-inf"
