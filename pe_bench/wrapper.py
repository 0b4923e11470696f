"""Encodings that add something to another one."""

import torch
from torch import Tensor

from pe_bench.config import ModelConfig
from pe_bench.encoding import Encoding, Pairs, State
from pe_bench.errors import InputError
from pe_bench.registry import plugins


def split_ids(ids: Tensor) -> tuple[Tensor, Tensor]:
    """The base's ids and those added to them, each (B or 1, S), of ids (B or 1, S, 2).

    Ids (B or 1, S), as a caller of the model may give in place of an encoding's own, are the
    base's; what is added to them is then zero.
    """
    return (ids, torch.zeros_like(ids)) if ids.dim() == 2 else (ids[..., 0], ids[..., 1])


def join_ids(base: Tensor, added: Tensor) -> Tensor:
    """(B or 1, S) and (B or 1, S) -> (B or 1, S, 2), what `split_ids` takes apart."""
    return torch.stack(torch.broadcast_tensors(base, added), dim=-1)


class Wrapper(Encoding):
    """Hands every hook on to `base`, which sees the first of the ids that each token carries.

    A subclass overrides what it changes, `positions` and `embed` as a rule, and calls `super()`.
    The facts are those of `base`, except that shift invariance is the subclass's to claim.

    Args:
        base: the encoding that this one adds to.
    """

    def __init__(self, model: ModelConfig, layer: int, base: Encoding) -> None:
        super().__init__(model, layer)
        if isinstance(base, Wrapper):
            raise InputError(
                f"{type(self).__name__} needs a base that stands alone, and "
                f"{type(base).__name__} adds to another encoding itself"
            )
        self.base = base
        self.shared = base.shared
        self.prefix_consistent = base.prefix_consistent
        self.max_position = base.max_position
        self.rotation_equivariant = base.rotation_equivariant
        self.permutation_equivariant = base.permutation_equivariant
        self.draws = base.draws

    def positions(self, tokens: Tensor) -> Tensor:
        return self.base.positions(tokens)

    def draw_ids(self, positions: Tensor) -> Tensor:
        if positions.dim() == 2:
            return self.base.draw_ids(positions)
        ids, added = split_ids(positions)
        return join_ids(self.base.draw_ids(ids), added)

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        return self.base.embed(x, split_ids(positions)[0])

    def begin(self, x: Tensor, positions: Tensor) -> State:
        return self.base.begin(x, split_ids(positions)[0])

    def key_features(self, x: Tensor, state: State) -> Tensor | None:
        return self.base.key_features(x, state)

    def accumulate(self, features: Tensor) -> Tensor:
        return self.base.accumulate(features)

    def rotate(
        self, q: Tensor, k: Tensor, state: State, features: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        return self.base.rotate(q, k, state, features)

    def decay(self, features: Tensor | None, positions: Tensor) -> Tensor | None:
        return self.base.decay(features, split_ids(positions)[0])

    def bias(self, query_positions: Tensor, key_positions: Tensor) -> Tensor | None:
        return self.base.bias(split_ids(query_positions)[0], split_ids(key_positions)[0])

    def extra_values(self, state: State) -> Tensor | None:
        return self.base.extra_values(state)

    def logits(
        self, scores: Tensor, q: Tensor, k: Tensor, features: Tensor | None, pairs: Pairs
    ) -> Tensor:
        queries, keys = split_ids(pairs.query_positions)[0], split_ids(pairs.key_positions)[0]
        return self.base.logits(scores, q, k, features, Pairs(queries, keys, pairs.causal))

    def update(self, state: State, extra: Tensor | None, mlp_in: Tensor, mlp_out: Tensor) -> State:
        return self.base.update(state, extra, mlp_in, mlp_out)

    def turn(self, state: State, angles: Tensor) -> State:
        return self.base.turn(state, angles)

    def overrides(self, hook: str) -> bool:
        """Whether this encoding or its base has a hook of its own."""
        own = getattr(type(self), hook) is not getattr(Wrapper, hook)
        return own or self.base.overrides(hook)


def make_base(spec: str, model: ModelConfig, layer: int) -> Encoding:
    """An encoding for another one to add to.

    Raises:
        InputError: there is no such encoding, or it does not fit the model.
    """
    made: Encoding = plugins.load("encoding", spec).make(model, layer)
    return made
