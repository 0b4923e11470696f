"""Where the tokens of a forward pass stand: the argument that most hooks of an encoding take."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from pe_bench.errors import InputError
from pe_bench.visibility import EVERYTHING, Visibility

State = Any
"""What a `StatefulEncoding` carries from layer to layer: None, a tensor, a tuple of tensors."""

Result = TypeVar("Result")

ALIGNED = 64
"""Blocks of queries begin at a multiple of it where a product is prepared."""


@dataclass(frozen=True)
class Positions:
    """Position ids of the queries and keys of one layer, and what an encoding made of the tokens.

    Attributes:
        query: position ids of the new tokens, (B or 1, T).
        key: position ids of all tokens so far, (B or 1, S).
        index: place of each new token among the keys, (B or 1, T); None: T == S, in order.
        columns: number of each key in its sequence, (B or 1, S), below 0 where there is no key;
            None: 0, 1, 2, ...
        visible: which keys a query may look at.
        layer: index of the layer, from 0.
        features: what `scan_features` returned, (B, H, S, F), or None.
        prepared: what `prepare_product` returned, (B, H, S, F), or None.
        state: what the layer before handed on, see `StatefulEncoding`.
        counted: ids of queries and keys are 0, 1, 2, ... in every row.
        falling: queries are the last keys, the last first, as attention in blocks has them.
    """

    query: Tensor
    key: Tensor
    index: Tensor | None = None
    columns: Tensor | None = None
    visible: Visibility = EVERYTHING
    layer: int = 0
    features: Tensor | None = None
    prepared: Tensor | None = None
    state: State = None
    counted: bool = False
    falling: bool = False
    _kept: dict[Any, Any] = field(default_factory=dict, repr=False)

    @property
    def distance(self) -> Tensor:
        """How far back each key is, (B or 1, T, S); 0 for later keys. Made at every call."""
        return (self.query[:, :, None] - self.key[:, None, :]).clamp(min=0)

    @property
    def place(self) -> Tensor:
        """Place of each query among the keys, (B or 1, T)."""
        if self.index is not None:
            return self.index
        return torch.arange(self.query.shape[1], device=self.query.device)[None]

    @property
    def column(self) -> Tensor:
        """Number of each query in its sequence, from 0, (B or 1, T)."""
        place = self.place
        if self.columns is None:
            return place
        rows = max(len(self.columns), len(place))
        return self.columns.expand(rows, -1).gather(1, place.expand(rows, -1))

    @property
    def key_column(self) -> Tensor:
        """Number of each key in its sequence, from 0, (B or 1, S); below 0: there is no key."""
        if self.columns is not None:
            return self.columns
        return torch.arange(self.key.shape[1], device=self.key.device)[None]

    @property
    def count(self) -> Tensor:
        """Number of keys that each query may look at, (B or 1, T)."""
        return self.visible.count(self.column)

    @property
    def causal(self) -> Tensor:
        """True where a query may look at a key, (B or 1, 1, T, S). Made at every call."""
        seen = self.visible.mask(self.column, self.key_column)
        return seen if self.columns is None else seen & (self.columns >= 0)[:, None, None]

    @property
    def query_features(self) -> Tensor | None:
        """`features` of the new tokens, (B, H, T, F), or None."""
        return None if self.features is None else at_queries(self.features, self.index)

    def part(self, queries: Tensor, keys: slice | Tensor) -> "Positions":
        """Return the positions of some queries and keys.

        The state stays that of all new tokens.

        Args:
            queries: their rows, (t,).
            keys: their places in rising order, (s,), or from where to where.
        """
        places = self.place[:, queries]  # (B or 1, t)
        if isinstance(keys, slice):
            start = keys.start or 0
            index = places - start
            in_order = start == 0 and self.columns is None
        else:
            index = torch.searchsorted(keys, places.contiguous())
            in_order = False
        return replace(
            self,
            query=self.query[:, queries],
            key=self.key[:, keys],
            index=index,
            columns=None if in_order else self.key_column[:, keys],
            features=None if self.features is None else self.features[:, :, keys],
            prepared=None if self.prepared is None else self.prepared[:, :, keys],
            counted=False,
            _kept={},
        )

    def at_places(self, columns: Tensor, index: Tensor) -> "Positions":
        """Return the positions where the keys are those of some columns only.

        Args:
            columns: of the keys, (B, S), below 0 where there is no key.
            index: place of each new token among them, (B, T).
        """
        rows = torch.arange(len(columns), device=columns.device)[:, None]
        key = self.key.expand(len(columns), *self.key.shape[1:])[rows, columns.clamp(min=0)]
        return replace(self, key=key, columns=columns, index=index, counted=False, _kept={})

    def alone(self) -> "Positions":
        """Return the same positions without what `once` has kept of them."""
        return replace(self, _kept={})

    def once(self, compute: Callable[..., Result], *args: Any) -> Result:
        """Return compute(*args), computed in the first layer of a forward pass, kept for the rest.

        For tables of position ids, such as cosines. Do not use it for what depends on the layer,
        on `features` or on `state`.
        """
        if compute not in self._kept:
            self._kept[compute] = compute(*args)
        return cast(Result, self._kept[compute])


def in_order(tokens: int, device: torch.device) -> Positions:
    """Return the positions 0, 1, ..., tokens - 1 of queries that are also the keys."""
    ids = torch.arange(tokens, device=device)[None]
    return Positions(ids, ids, counted=True)


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
    at_key = -c[..., None, :]  # (B or 1, H, 1, S); negated here, its gradient has S numbers only
    return at_query + at_key


def random_ids(
    rows: int,
    lengths: int | Tensor,
    limit: int,
    generator: torch.Generator | None,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Draw distinct ids from 0 to limit - 1 in ascending order: (rows, length) on the device.

    Every row is a ranking of all ids, of which it takes the first `lengths`.

    Args:
        rows: number of draws.
        lengths: ids of every row; or of each row (B,) on the CPU, where `rows` is B, or 1 and all
            have one ranking. Rows that end early repeat the last id there is; where all end alike,
            the result has no more than `rows`.
        limit: number of ids to draw from.
        generator: of random numbers on the CPU; None: torch's own.
        device: where the ids are put in order; they are the same on all.

    Raises:
        InputError: there are fewer ids than tokens.
    """
    counts = torch.as_tensor(lengths).view(-1, 1)  # (B or 1, 1)
    longest = int(counts.max())
    if longest > limit:
        raise InputError(
            f"{longest} tokens need as many position ids, there are {limit}: ask for more"
        )
    drawn = torch.rand(rows, limit, generator=generator, device="cpu")
    # Float32 has ties, which an unstable sort would order otherwise on another device.
    order = drawn.to(device, non_blocking=True).argsort(dim=1, stable=True)  # (rows, limit)
    ranked = order[:, :longest]
    if int(counts.min()) == longest:
        return ranked.sort(dim=1).values
    left_out = torch.arange(longest) >= counts  # (B, longest)
    left_out = left_out.to(device, non_blocking=True)
    return torch.where(left_out, limit, ranked).sort(dim=1).values.clamp(max=limit - 1)
