"""Positions of the tokens in a forward pass, the argument of most hooks of an encoding."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from pe_bench.errors import FaultyPlugin
from pe_bench.visibility import EVERYTHING, Visibility

State = Any
"""State of a `StatefulEncoding`: None, a tensor, or a tuple of tensors."""

PLAIN = (bool, int, float, str, torch.dtype)
"""Types of arguments that distinguish the results of `once`."""

Result = TypeVar("Result")

ALIGNED = 64
"""If a product is prepared, blocks of queries begin at a multiple of this number."""


@dataclass(frozen=True)
class Positions:
    """Position ids of the queries and keys of one layer, and features and state of the encoding.

    Attributes:
        query: position ids of the new tokens, (B or 1, T).
        key: position ids of all tokens so far, (B or 1, S).
        index: index of each new token among the keys, (B or 1, T); None: T == S, in order.
        columns: index of each key in its sequence, (B or 1, S), below 0 for missing keys; None:
            0, 1, 2, ...
        visible: the keys that a query may attend to.
        layer_index: index of the layer, from 0; None: the positions stand for all layers.
        features: return value of `scan_features`, (B, H, S, F), or None.
        prepared: return value of `prepare_product`, (B, H, S, F), or None.
        state: state from the previous layer, see `StatefulEncoding`.
        is_arange: whether the ids of queries and keys are 0, 1, 2, ... in every row.
        is_reversed_suffix: whether the queries are the last keys, in descending order, as in
            attention by blocks.
    """

    query: Tensor
    key: Tensor
    index: Tensor | None = None
    columns: Tensor | None = None
    visible: Visibility = EVERYTHING
    layer_index: int | None = 0
    features: Tensor | None = None
    prepared: Tensor | None = None
    state: State = None
    is_arange: bool = False
    is_reversed_suffix: bool = False
    _kept: dict[Any, Any] = field(default_factory=dict, repr=False)

    @property
    def layer(self) -> int:
        """Index of the layer, from 0.

        Raises:
            FaultyPlugin: the hook is called once for all layers.
        """
        if self.layer_index is None:
            raise FaultyPlugin(
                "a result that all layers share cannot depend on positions.layer: set "
                "shared = False, or leave out `once`"
            )
        return self.layer_index

    @property
    def distance(self) -> Tensor:
        """Distance of each query from each earlier key, 0 for other keys, (B or 1, T, S).

        Not cached.
        """
        return (self.query[:, :, None] - self.key[:, None, :]).clamp(min=0)

    @property
    def query_index(self) -> Tensor:
        """Index of each query among the keys, (B or 1, T)."""
        if self.index is not None:
            return self.index
        return torch.arange(self.query.shape[1], device=self.query.device)[None]

    @property
    def query_column(self) -> Tensor:
        """Index of each query in its sequence, from 0, (B or 1, T)."""
        query_index = self.query_index
        if self.columns is None:
            return query_index
        rows = max(len(self.columns), len(query_index))
        return self.columns.expand(rows, -1).gather(1, query_index.expand(rows, -1))

    @property
    def key_column(self) -> Tensor:
        """Index of each key in its sequence, from 0, (B or 1, S); below 0 for missing keys."""
        if self.columns is not None:
            return self.columns
        return torch.arange(self.key.shape[1], device=self.key.device)[None]

    @property
    def count(self) -> Tensor:
        """Number of keys that each query may attend to, (B or 1, T)."""
        return self.visible.count(self.query_column)

    @property
    def causal(self) -> Tensor:
        """True where a query may attend to a key, (B or 1, 1, T, S). Not cached."""
        seen = self.visible.mask(self.query_column, self.key_column)
        return seen if self.columns is None else seen & (self.columns >= 0)[:, None, None]

    @property
    def query_features(self) -> Tensor | None:
        """`features` of the new tokens, (B, H, T, F), or None."""
        return None if self.features is None else at_queries(self.features, self.index)

    def part(self, queries: Tensor, keys: slice | Tensor) -> "Positions":
        """Return the positions of some queries and keys.

        The state is not sliced: it contains all new tokens.

        Args:
            queries: indices of the queries, (t,).
            keys: indices of the keys in ascending order, (s,), or their range.
        """
        chosen = self.query_index[:, queries]  # (B or 1, t)
        if isinstance(keys, slice):
            start = keys.start or 0
            index = chosen - start
            in_order = start == 0 and self.columns is None
        else:
            index = torch.searchsorted(keys, chosen.contiguous())
            in_order = False
        return replace(
            self,
            query=self.query[:, queries],
            key=self.key[:, keys],
            index=index,
            columns=None if in_order else self.key_column[:, keys],
            features=None if self.features is None else self.features[:, :, keys],
            prepared=None if self.prepared is None else self.prepared[:, :, keys],
            is_arange=False,
            _kept={},
        )

    def with_keys(self, columns: Tensor, index: Tensor) -> "Positions":
        """Return the positions with a subset of the keys.

        Args:
            columns: indices of the keys in their sequences, (B, S), below 0 for missing keys.
            index: index of each new token among these keys, (B, T).
        """
        rows = torch.arange(len(columns), device=columns.device)[:, None]
        key = self.key.expand(len(columns), *self.key.shape[1:])[rows, columns.clamp(min=0)]
        return replace(self, key=key, columns=columns, index=index, is_arange=False, _kept={})

    def alone(self) -> "Positions":
        """Return the same positions with an empty cache of `once`."""
        return replace(self, _kept={})

    def of_all_layers(self) -> "Positions":
        """Return the positions without what differs between layers."""
        return replace(self, layer_index=None, features=None, prepared=None, state=None)

    def once(self, compute: Callable[..., Result], *args: Any) -> Result:
        """Return compute(*args), computed in the first layer of a forward pass and then cached.

        For functions of the position ids, such as tables of cosines. Tensors among the arguments
        must be the same in all layers; each combination of other arguments has its own result. The
        result must not depend on the layer, on `features` or on `state`: positions among the
        arguments do not have them.

        Raises:
            FaultyPlugin: the result depends on the layer.
        """
        plain = [one for one in args if isinstance(one, PLAIN)]
        key = (compute, *plain)
        if key not in self._kept:
            common = [one.of_all_layers() if isinstance(one, Positions) else one for one in args]
            self._kept[key] = compute(*common)
        return cast(Result, self._kept[key])


def in_order(tokens: int, device: torch.device) -> Positions:
    """Return the positions 0, 1, ..., tokens - 1 of queries that are also the keys."""
    ids = torch.arange(tokens, device=device)[None]
    return Positions(ids, ids, is_arange=True)


def at_queries(per_token: Tensor, index: Tensor | None) -> Tensor:
    """Return the columns of the new tokens: (B or 1, H, S, F), (B or 1, T) -> (B or 1, H, T, F)."""
    if index is None:
        return per_token
    rows = max(len(per_token), len(index))
    columns = index[:, None, :, None].expand(rows, per_token.shape[1], -1, per_token.shape[3])
    return per_token.expand(rows, -1, -1, -1).gather(2, columns)


def separable_matrix(c: Tensor, index: Tensor | None) -> Tensor:
    """Return c_i - c_j: (B or 1, H, S), (B or 1, T) -> (B or 1, H, T, S)."""
    at_query = at_queries(c[..., None], index)  # (B or 1, H, T, 1)
    at_key = -c[..., None, :]  # (B or 1, H, 1, S); negated first, its gradient has only S numbers
    return at_query + at_key
