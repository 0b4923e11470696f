"""RoPE with random ascending ids from a larger pool (Ruoss et al. 2023, arXiv 2305.16843)."""

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from pe_bench.api import InputError, ModelConfig, Positions, Tunable, random_ids
from pe_bench.encodings.rope import RoPE, rotate


def other_pools(model: ModelConfig) -> list[int]:
    """Return pools of 8 and 32 training rows.

    The published pool of 2048 ids is four times its longest row of 500 tokens. A pool must not be
    smaller than the longest row of a task.
    """
    return [8 * model.train_length, 32 * model.train_length]


class RandPE(RoPE):
    """A sequence of n tokens has n distinct ids below `max`, drawn at random and sorted.

    Ids are drawn for the finished sequence, with n at least the training length, and an unfinished
    sequence has the first of these ids. So a token keeps its id during generation, which allows a
    cache, and short rows have the same gaps as long ones. In training every sequence has a separate
    draw, shared by all layers. In evaluation all sequences of n tokens have the same ids: one of
    `count` frozen draws, over which results are averaged, or the mean of all draws, id_i =
    floor((i + 1)(max + 1)/(n + 1)) - 1. A frozen draw is a ranking of the pool: n tokens have its
    first n ids, and n + 1 tokens one more.

    | published code | here |
    |---|---|
    | Ruoss et al.: one draw per batch and layer | one per sequence; `per_layer` |
    | Ruoss et al.: drawn for an encoder's whole input | for the finished sequence of a decoder |
    | Ruoss et al.: random in evaluation | random but frozen; `evaluation=even` |
    | TAPE, arithmetic: a pool of the row's length, so RoPE | rows longer than `max` are refused |
    | TAPE, SCROLLS: the same from 2048 tokens on | the same |
    | TAPE, SCROLLS: drawn again for each new token | not drawn again |

    Args:
        max: size of the pool; 2048 as in the paper.
        evaluation: "frozen" draws, or "even"ly spaced ids.
        count: number of frozen draws that evaluation is averaged over.
        per_layer: whether each layer has a separate draw. Position ids given by the caller of the
            model apply to all layers.
    """

    family = "rotary"
    colour = "#56B4E9"
    marker = "X"

    version = 2
    shift_invariant = True
    needs_final_length = True
    tunable = Tunable("max", other_pools)
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
            raise InputError("randpe draws positions itself: leave out train_positions and set max")
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

    def draw_positions(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """Return ids (B or 1, S), with `per_layer` (B or 1, S, layers)."""
        limit = self.max_position
        assert limit is not None
        longest = int(lengths.max())
        if longest > limit:
            raise InputError(
                f"{longest} tokens need as many position ids, but the pool has {limit}: "
                "use shorter sequences or a larger randpe:max"
            )
        layers = range(self.model.layers if self.per_layer else 1)
        whole = [self._draw(lengths, limit, layer, ids.device) for layer in layers]
        draws = [drawn[:, : ids.shape[1]] for drawn in whole]
        return torch.stack(draws, dim=-1) if self.per_layer else draws[0]

    def _draw(self, lengths: Tensor, limit: int, layer: int, device: torch.device) -> Tensor:
        """Return the ids of one layer for whole sequences, (B or 1, longest)."""
        if self.training:
            return random_ids(len(lengths), lengths, limit, None, device)
        if self.evaluation == "even":
            lengths = lengths[:1] if int(lengths.min()) == int(lengths.max()) else lengths
            steps = torch.arange(1, int(lengths.max()) + 1) * (limit + 1)  # (longest,)
            spaced = steps.div(lengths[:, None] + 1, rounding_mode="floor") - 1
            return spaced.clamp(max=limit - 1).to(device)  # after the end of a row
        # One seed for all lengths. Torch keeps 32 bits of it: small numbers stay distinct.
        seed = self.eval_sample * self.model.layers + layer
        return random_ids(1, lengths, limit, torch.Generator().manual_seed(seed), device)

    def transform_qk(self, q: Tensor, k: Tensor, positions: Positions) -> tuple[Tensor, Tensor]:
        if positions.query.dim() == 2:
            return super().transform_qk(q, k, positions)
        cos, sin = self.tables(positions.query[..., positions.layer], q.dtype)
        return rotate(q, cos, sin), rotate(k, cos, sin)
