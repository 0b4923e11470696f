"""Contextual, equivariant position states, layer by layer (Zhu et al. 2025, arXiv 2501.00712)."""

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pe_bench.api import InputError, ModelConfig, Positions, State, StatefulEncoding
from pe_bench.encodings.rope import RoPE, rotate


class TAPE(StatefulEncoding, RoPE):
    """Every token has a complex state z per head and channel pair, initially e^(ip theta) as in
    RoPE.

    In each layer, with A the head's attention and m the MLP's output:

        q, k -> q z, k z            `transform_qk`: the state rotates (and scales) queries and keys
        z    -> z + sigma_h A z     `gather`: attention mixes the states of tokens, like values
        z    -> z + W_down diag(silu(W_gate m)) W_up z       `mix`: heads of one token mix

    All updates are linear in z, with coefficients that do not depend on its phase, so a global
    shift of the positions has no effect. sigma and W_up are initially zero: a new model equals
    RoPE, and has its options. A channel pair that RoPE does not rotate starts with z = 1 and is
    also mixed.

    With grouped queries every key head has a state, which also rotates its queries: a key that
    several query heads share is cached once, so it has one state. Then A z is the mean over these
    query heads, and "head" means key head in the updates. With one query head per key head this is
    the formula of the paper.

    Differences from the published code that do not change results:

    | there | here |
    |---|---|
    | both halves of cos and sin, which are always equal | one of each: Re z and Im z |
    | z expanded to `position_size` heads per token | an H x H matrix per token |
    | an update of the last layer's state, which is never used | none |
    | a random shift in training, which only changes rounding | off; `train_positions=offset` |

    `tape-ablations` has ablations and variants that the text of the paper suggests.

    Args:
        position_size: K, rows of W_gate and W_up; None is four per head, as in the paper.
    """

    family = "content"
    colour = "#882255"
    marker = "P"

    shared = False
    rotation_equivariant = True
    parameters_per_layer = "4*H*C + 8*H*H + H*H"  # in each layer but the last
    variants: ClassVar[tuple[str, ...]] = (
        "position_size=8",
        "scaling=yarn,factor=4,ramp=rotations,trainable=true",
    )

    def __init__(
        self,
        model: ModelConfig,
        layer: int = 0,
        *,
        position_size: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(model, layer, **options)
        if position_size is not None and position_size < 1:
            raise InputError(f"tape:position_size must be at least 1, not {position_size}")
        heads = model.kv_heads
        self.rows = position_size or 4 * heads
        self.updates = layer < model.layers - 1
        if self.updates:
            self.sigma = nn.Parameter(torch.zeros(heads, heads))  # summed over rows
            self.up = nn.Parameter(torch.zeros(self.rows, heads))
            self.down = nn.Parameter(torch.empty(heads, self.rows))
            self.gate = nn.Linear(model.width, self.rows, bias=False)
            nn.init.normal_(self.down, std=model.init_std)
            nn.init.normal_(self.gate.weight, std=model.init_std)

    def prepare(self, x: Tensor, positions: Positions) -> State:
        """Return the state z as [Re | Im], (B or 1, G, T, D)."""
        cos, sin = self.tables(positions.query, x.dtype)  # (B or 1, 1, T, D/2) each
        return torch.cat([cos, sin], dim=-1).expand(-1, self.model.kv_heads, -1, -1)

    def transform_qk(self, q: Tensor, k: Tensor, positions: Positions) -> tuple[Tensor, Tensor]:
        cos, sin = positions.state.chunk(2, dim=-1)  # (B, G, T, D/2) each
        groups = q.unflatten(1, (self.model.kv_heads, -1))  # (B, G, H/G, T, D)
        new_q = self.turn(groups, cos[:, :, None], sin[:, :, None])  # (B, G, H/G, T, D)
        return new_q.flatten(1, 2), self.turn(k, cos, sin)

    def turn(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotate queries or keys, (..., T, D), by the parts of a state."""
        return rotate(x, cos, sin)

    def extra_values(self, state: State) -> Tensor | None:
        z: Tensor | None = state if self.updates else None  # (B, G, T, D)
        return z

    def update_state(
        self, state: State, extra: Tensor | None, mlp_in: Tensor, mlp_out: Tensor
    ) -> State:
        if extra is None:
            return state
        return self.mix(self.gather(state, self.per_key_head(extra)), mlp_out)

    def per_key_head(self, attended: Tensor) -> Tensor:
        """Return the mean over the query heads of each key head: (B, H, T, D) -> (B, G, T, D)."""
        if self.model.kv_heads == self.model.heads:
            return attended
        mean: Tensor = attended.unflatten(1, (self.model.kv_heads, -1)).mean(2)
        return mean

    def gather(self, state: Tensor, attended: Tensor) -> Tensor:
        """Return z + sigma A z, given z and A z, each (B, G, T, D)."""
        az = attended.unflatten(-1, (2, -1))  # (B, G, T, 2, D/2)
        change = torch.einsum("h,bhtpe->bhtpe", self.sigma.sum(-1), az)  # (B, G, T, 2, D/2)
        return state + change.flatten(-2)

    def mix(self, state: Tensor, m: Tensor) -> Tensor:
        """Return z + W_down diag(silu(W_gate m)) W_up z, given z (B, G, T, D), m (B, T, C)."""
        z = state.unflatten(-1, (2, -1))  # (B, G, T, 2, D/2)
        gate = F.silu(self.gate(m))  # (B, T, K)
        outer = torch.einsum("hk,kx->khx", self.down, self.up)  # (K, G, G)
        matrices = torch.einsum("btk,khx->bthx", gate, outer)  # (B, T, G, G)
        change = torch.einsum("bthx,bxtpe->bhtpe", matrices, z)  # (B, G, T, 2, D/2)
        return state + change.flatten(-2)

    def rotate_state(self, state: State, angles: Tensor) -> State:
        return rotate(state, angles.cos(), angles.sin())
