"""RoPE at random ascending ids from a larger pool (Ruoss et al. 2023, arXiv 2305.16843)."""

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from pe_bench.api import InputError, ModelConfig, State, random_ids
from pe_bench.encodings.rope import RoPE


class RandPE(RoPE):
    """S tokens take S distinct ids below `max`, drawn at random and put in order, as positions.

    In training every sequence has a draw of its own, which all layers share. In evaluation the
    ids are a fixed function of the length, the same for all rows: random ones, of which there are
    `count` to average over, or the mean of all draws, id_i = floor((i + 1)(max + 1)/(S + 1)) - 1.
    Either way a token's id depends on how many follow, so there is no cache. The n-th frozen draw
    is one ranking of the pool: S tokens take its first S ids, S + 1 tokens one more.

    What differs from published code: Ruoss et al. have one draw for a whole batch and a fresh one
    in each layer, at test time too, in a bidirectional encoder. Both TAPE repositories make their
    pool no larger than the sequence where it matters, the arithmetic one always, the language
    model's in SCROLLS from 2048 tokens on. A full pool in order is 0 to S - 1, hence RandPE there
    is RoPE. Here a sequence that outgrows the pool is refused. Other encodings can be trained on
    random ids too, by train_ids=random.

    Args:
        max: size of the pool, the paper's.
        evaluation: "frozen" draws, or "even"ly spaced ids.
        count: how many frozen draws evaluation is averaged over.
        per_layer: every layer draws its own ids, from the second on also where a caller of the
            model gives the first layer's.
    """

    prefix_consistent = False
    variants: ClassVar[tuple[str, ...]] = ("max=512,evaluation=even", "per_layer=true,count=2")

    def __init__(
        self,
        model: ModelConfig,
        layer: int = 0,
        *,
        max: int = 2048,
        evaluation: Literal["frozen", "even"] = "frozen",
        count: int = 4,
        per_layer: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(model, layer, **options)
        if self.train_ids != "plain":
            raise InputError("randpe draws its ids itself: leave train_ids out, set randpe:max")
        if max < model.train_length:
            raise InputError(
                f"randpe:max must be at least the training length {model.train_length}, not {max}"
            )
        if count < 1:
            raise InputError(f"randpe:count must be at least 1, not {count}")
        if evaluation == "even" and count != 4:
            raise InputError("randpe:count has no effect with evaluation=even: leave it out")
        self.max_position = max
        self.evaluation = evaluation
        self.draws = count if evaluation == "frozen" else 1
        self.per_layer = per_layer
        self.shift_invariant = not per_layer

    def positions(self, tokens: Tensor) -> Tensor:
        rows, length = tokens.shape
        return self.ids(rows, length, 0).to(tokens.device)

    def ids(self, rows: int, length: int, layer: int) -> Tensor:
        """Ids of a layer, (rows, length) in training and (1, length) in evaluation.

        Raises:
            InputError: the pool is smaller than the sequence.
        """
        limit = self.max_position
        assert limit is not None
        if length > limit:
            raise InputError(
                f"{length} tokens need as many position ids and the pool has {limit}: "
                "use shorter sequences or a larger randpe:max"
            )
        if self.training:
            return random_ids(rows, length, limit, None)
        if self.evaluation == "even":
            steps = torch.arange(1, length + 1) * (limit + 1)
            return steps.div(length + 1, rounding_mode="floor")[None] - 1
        # One seed for all lengths. Torch keeps 32 bits of it: small numbers stay distinct.
        seed = self.draw * self.model.layers + layer
        return random_ids(1, length, limit, torch.Generator().manual_seed(seed))

    def begin(self, x: Tensor, positions: Tensor) -> State:
        """cos and sin as RoPE's; a tuple of these for all layers where each has its own."""
        begin = super().begin
        state = begin(x, positions)
        if not self.per_layer:
            return state
        rows, length, _ = x.shape
        later = [self.ids(rows, length, layer) for layer in range(1, self.model.layers)]
        return state, *(begin(x, ids.to(x.device)) for ids in later)

    def rotate(
        self, q: Tensor, k: Tensor, state: State, features: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        return super().rotate(q, k, state[0] if self.per_layer else state, features)

    def update(self, state: State, extra: Tensor | None, mlp_in: Tensor, mlp_out: Tensor) -> State:
        return state[1:] if self.per_layer else state

    def turn(self, state: State, angles: Tensor) -> State:
        if isinstance(state, tuple) and isinstance(state[0], tuple):  # a state for each layer
            return tuple(self.turn(of_layer, angles) for of_layer in state)
        return super().turn(state, angles)
