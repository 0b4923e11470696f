"""RoPE at random ascending ids from a larger pool (Ruoss et al. 2023, arXiv 2305.16843)."""

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from pe_bench.api import InputError, ModelConfig, Positions, random_ids
from pe_bench.encodings.rope import RoPE, rotate


class RandPE(RoPE):
    """S tokens take S distinct ids below `max`, drawn at random and put in order, as positions.

    In training every sequence has a draw of its own, which all layers share. In evaluation the
    ids are a fixed function of the length, the same for all rows: random ones, of which there are
    `count` to average over, or the mean of all draws, id_i = floor((i + 1)(max + 1)/(S + 1)) - 1.
    Either way a token's id depends on how many follow, so there is no cache. The n-th frozen draw
    is one ranking of the pool: S tokens take its first S ids, S + 1 tokens one more.

    | published code | here |
    |---|---|
    | Ruoss et al.: one draw per batch and layer | one per sequence; `per_layer` |
    | Ruoss et al.: random in evaluation, in an encoder | frozen or even, in a decoder |
    | TAPE, arithmetic: the pool is the sequence: RoPE | a longer sequence than `max` is refused |
    | TAPE, SCROLLS: the same from 2048 tokens on | the same |

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
        if self.train_positions != "contiguous":
            raise InputError("randpe draws positions itself: leave train_positions out, set max")
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
        self.eval_samples = count if evaluation == "frozen" else 1
        self.per_layer = per_layer
        self.shift_invariant = not per_layer

    def positions(self, tokens: Tensor) -> Tensor:
        rows, length = tokens.shape
        return self.ids(rows, length, 0).to(tokens.device)

    def ids(self, rows: int, length: int, layer: int) -> Tensor:
        """Return the ids of a layer, (rows, length) in training and (1, length) in evaluation.

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
        seed = self.eval_sample * self.model.layers + layer
        return random_ids(1, length, limit, torch.Generator().manual_seed(seed))

    def transform_qk(self, q: Tensor, k: Tensor, positions: Positions) -> tuple[Tensor, Tensor]:
        if not self.per_layer or positions.layer == 0:
            return super().transform_qk(q, k, positions)
        ids = self.ids(q.shape[0], q.shape[2], positions.layer).to(q.device)
        cos, sin = self.tables(ids, q.dtype)
        return rotate(q, cos, sin), rotate(k, cos, sin)
