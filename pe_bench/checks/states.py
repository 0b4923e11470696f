"""Checks of encodings that pass a state from layer to layer."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pe_bench.checks.differences import difference
from pe_bench.checks.findings import NotApplicable
from pe_bench.checks.subject import CONFIG, Subject
from pe_bench.encoding import StatefulEncoding
from pe_bench.errors import InputError
from pe_bench.positions import Positions


@torch.no_grad()
def permutation(subject: Subject) -> str | None:
    """`update_state` of permuted tokens returns the permuted state."""
    model = subject.model()
    tokens = subject.tokens()
    encoding = model.encoding
    if not (isinstance(encoding, StatefulEncoding) and encoding.overrides("update_state")):
        raise NotApplicable("passes its state on unchanged")
    if not encoding.permutation_equivariant:
        raise NotApplicable("declares permutation_equivariant = False")
    calls: list[tuple[Any, Any, Any]] = []
    for each in model.encodings:
        _record_calls(each, "update_state", calls)
    model(tokens)
    for _, (state, *_), returned in calls:
        for tensor in [*_tensors(state), *_tensors(returned)]:
            if tensor.shape[-2:-1] != tokens.shape[1:]:
                raise InputError(
                    f"a tensor of a state is {tuple(tensor.shape)}: its last axis but one must "
                    f"have the {tokens.shape[1]} tokens, as in (B, H, T, F)"
                )
    order = torch.randperm(tokens.shape[1], generator=torch.Generator().manual_seed(3))
    for update, args, returned in calls:
        actual = update(*_map_tensors(args, lambda t: t[..., order, :]))
        expected = _map_tensors(returned, lambda t: t[..., order, :])
        for one, other in zip(_tensors(actual), _tensors(expected), strict=True):
            wrong = difference(one, other, "the order of the tokens changes a state")
            if wrong is not None:
                return wrong
    return None


@torch.no_grad()
def rotation(subject: Subject) -> str | None:
    """Equal rotations of the feature planes of all states do not change outputs, if declared."""
    model = subject.model()
    tokens = subject.tokens()
    encoding = model.encoding
    if not (isinstance(encoding, StatefulEncoding) and encoding.rotation_equivariant):
        raise NotApplicable("does not declare rotation_equivariant = True")
    expected = model(tokens)
    prepare = encoding.prepare
    seen: list[tuple[Tensor, Tensor]] = []
    angles = torch.linspace(0.5, 3.0, CONFIG.head_dim // 2, dtype=expected.dtype)
    angles = angles.to(subject.device)

    def rotated(x: Tensor, positions: Positions) -> Any:
        before = prepare(x, positions)
        after = encoding.rotate_state(before, angles)
        seen.extend(zip(_tensors(before), _tensors(after), strict=True))
        return after

    encoding.prepare = rotated  # type: ignore[method-assign]
    actual = model(tokens)
    if all(torch.equal(before, after) for before, after in seen):
        return "rotate_state does not change the state"
    return difference(actual, expected, "rotating the states changes the outputs")


def _record_calls(owner: Any, hook: str, calls: list[tuple[Any, Any, Any]]) -> None:
    """Append (hook, arguments, result) to a list at every call of a hook."""
    original = getattr(owner, hook)

    def record(*args: Any) -> Any:
        returned = original(*args)
        calls.append((original, args, returned))
        return returned

    setattr(owner, hook, record)


def _map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return a state with `change` applied to every tensor."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, tuple):
        return tuple(_map_tensors(part, change) for part in value)
    return value


def _tensors(state: Any) -> list[Tensor]:
    """Return the tensors of a state, in order."""
    if isinstance(state, tuple):
        return [tensor for part in state for tensor in _tensors(part)]
    return [state] if isinstance(state, Tensor) else []
