"""Encodings that extend another encoding."""

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pe_bench.config import ModelConfig
from pe_bench.encoding import Encoding, StatefulEncoding
from pe_bench.errors import InputError
from pe_bench.layers import Layers
from pe_bench.positions import Positions
from pe_bench.registry import plugins

OWN = (
    "bias_matrix",
    "kind_of",
    "at_layer",
    "shift_invariant",
    "parameters_per_layer",
    "version",
    "variants",
    "tunable",
    "eval_sample",
)
"""Attributes that a wrapper does not copy from its base."""

FACTS = inspect.get_annotations(Encoding) | inspect.get_annotations(StatefulEncoding)


def split_ids(ids: Tensor) -> tuple[Tensor, Tensor]:
    """Split ids (B or 1, S, 2) into the ids of the base and the added ones, (B or 1, S) each.

    From ids (B or 1, S, K + 1), the base gets K ids per token. If a caller of the model passes ids
    (B or 1, S), they are the ids of the base, and the added ids are zero.
    """
    if ids.dim() == 2:
        return ids, torch.zeros_like(ids)
    base = ids[..., 0] if ids.shape[2] == 2 else ids[..., :-1]
    return base, ids[..., -1]


def join_ids(base: Tensor, added: Tensor) -> Tensor:
    """Join ids (B or 1, S) and (B or 1, S) into (B or 1, S, 2): the inverse of `split_ids`."""
    base = base[..., None] if base.dim() == 2 else base  # (B or 1, S, K)
    rows = max(len(base), len(added))
    both = [base.expand(rows, -1, -1), added[..., None].expand(rows, -1, -1)]
    return torch.cat(both, dim=-1)  # (B or 1, S, K + 1)


class Wrapper(StatefulEncoding):
    """Base class that forwards every hook to `base`, with the ids of the base, see `split_ids`.

    A subclass overrides some hooks, usually `positions` and `embed`, and calls `super()`. It
    inherits the facts of `base`, except shift invariance, which the subclass must declare.

    Args:
        base: the encoding that this one extends.
    """

    def __init__(self, model: ModelConfig, layer: int, base: Encoding) -> None:
        super().__init__(model, layer)
        if isinstance(base, Wrapper | Layers):
            adds = isinstance(base, Wrapper)
            what = (
                "wraps another encoding itself"
                if adds
                else "has several encodings: wrap each of them"
            )
            raise InputError(
                f"{type(self).__name__} needs a single encoding as base, but "
                f"{type(base).__name__} {what}"
            )
        self.base = base
        for fact in FACTS:
            if fact not in OWN and hasattr(base, fact):
                setattr(self, fact, getattr(base, fact))

    def draw_positions(self, ids: Tensor, lengths: Tensor) -> Tensor:
        if ids.dim() == 2:
            return self.base.draw_positions(ids, lengths)
        of_base, added = split_ids(ids)
        return join_ids(self.base.draw_positions(of_base, lengths), added)

    def llama_fields(self) -> dict[str, Any] | None:
        """Return None, since a Llama supports a rotation only.

        A subclass that changes nothing in evaluation may return the fields of `base`.
        """
        return None

    def overrides(self, hook: str) -> bool:
        """Return whether this encoding or its base changes a hook's default."""
        own = getattr(type(self), hook) is not getattr(Wrapper, hook)
        return own or self.base.overrides(hook)


def _handed_on(hook: str) -> Callable[..., Any]:
    def call(self: Wrapper, *args: Any) -> Any:
        method = getattr(self.base, hook, None)
        if method is None:  # the base has no state
            return getattr(StatefulEncoding, hook)(self, *args)
        return method(*map(_of_base, args))

    return call


def _of_base(argument: Any) -> Any:
    if not isinstance(argument, Positions) or argument.query.dim() == 2:
        return argument
    query, _ = split_ids(argument.query)
    key, _ = split_ids(argument.key)
    return replace(argument, query=query, key=key)


for _name, _value in (vars(Encoding) | vars(StatefulEncoding)).items():
    _is_hook = inspect.isfunction(_value) and not _name.startswith("_")
    if _is_hook and _name not in (*OWN, *vars(Wrapper)):
        setattr(Wrapper, _name, _handed_on(_name))


def make_base(spec: str, model: ModelConfig, layer: int) -> Encoding:
    """Return an encoding for a wrapper.

    Raises:
        InputError: the encoding does not exist, or does not fit the model.
    """
    made: Encoding = plugins.load("encoding", spec).make(model, layer)
    return made
