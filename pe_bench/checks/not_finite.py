"""Find the hook that makes the outputs of a model infinite or not a number."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pe_bench.checks.interface import HOOKS
from pe_bench.checks.subject import Subject
from pe_bench.encoding import Encoding

FEW = 8  # tokens, which every training sequence has
VALUES = ("nan", "inf", "-inf")
"""Values to report, the worst first: -inf may only hide a key."""


@torch.no_grad()
def find_not_finite(subject: Subject) -> str | None:
    """Return a sentence if outputs of an untrained model are not finite because of a hook, or None.

    The sentence names a hook that returns such a value although its arguments are finite.
    """
    model = subject.untrained_model(subject.layers).eval()
    found: dict[str, str] = {}
    for encoding in dict.fromkeys(model.encodings):
        assert isinstance(encoding, Encoding)
        for name in HOOKS:
            if encoding.overrides(name):
                setattr(encoding, name, _watch(encoding, name, found))
    outputs = model(subject.tokens(FEW))  # (B, T, V)
    if not found or outputs.isfinite().all():
        return None
    worst = min(found, key=VALUES.index)
    return f"the outputs of the model are not finite, because {found[worst]} returns {worst}"


def _watch(encoding: Encoding, name: str, found: dict[str, str]) -> Callable[..., Any]:
    """Return a hook that adds its name to `found`, by the value, if its result is not finite."""
    hook = getattr(encoding, name)

    def watched(*args: Any) -> Any:
        result = hook(*args)
        value = _not_finite(result)
        if value and not any(map(_not_finite, args)):
            found.setdefault(value, f"{type(encoding).__name__}.{name}")
        return result

    watched.__self__ = encoding  # type: ignore[attr-defined]
    watched.__name__ = name
    return watched


def _not_finite(value: Any) -> str:
    """Return one of `VALUES` that a tensor has, the worst; "" if it is finite or no tensor."""
    if isinstance(value, tuple | list):
        return next(filter(None, map(_not_finite, value)), "")
    if not isinstance(value, Tensor) or not value.is_floating_point() or value.isfinite().all():
        return ""
    if value.isnan().any():
        return "nan"
    return "inf" if value.isposinf().any() else "-inf"
