"""Contextual, equivariant position states, layer by layer (Zhu et al. 2025, arXiv 2501.00712)."""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pe_bench.api import InputError, ModelConfig, State
from pe_bench.encodings.rope import RoPE, rotate

AXES = {
    "heads": ("", "h", "pe"),
    "heads-apart": ("p", "h", "e"),
    "channels": ("", "e", "hp"),
    "all": ("", "he", "p"),
}
"""Axes of a state, bhtpe = (B, H, T, 2, E) with p its cos and its sin part: which have weights of
their own, which are mixed, which go through the same weights."""


class TAPE(RoPE):
    """Every token carries a complex state z per head and channel pair, first RoPE's e^(ip theta).

    In each layer, with A the head's attention and m the MLP's output:

        q, k -> q z, k z            the state rotates (and scales) queries and keys
        z    -> z + sigma_h A z     the state is attended with the values, weights shared
        z    -> z + W_down diag(silu(W_gate m)) W_up z       heads of one token mix

    All updates are linear in z with coefficients that do not depend on its phase, hence a global
    shift of the positions changes nothing. sigma and W_up start at zero: a new model is RoPE, whose
    options it has; a pair of channels that stands still there begins with z = 1 and is mixed too.

    What differs from the published code, the numbers being the same: it stores both halves of
    cos and sin, equal throughout, here is one of each; it expands z to `position_size` heads per
    token, here the H x H matrix per token is formed; it updates the last layer's state, which
    nobody reads. Its random shift in training, here `train_ids=offset`, changes nothing but
    rounding and is off.

    The defaults are the published code, the options its ablations and what its text suggests:

    | there | here |
    |---|---|
    | adape (TAPE itself), the text's mixing of attended heads | -, `post_mix=matrix` |
    | adattention, adamlp | `mlp_mix=false`, `post_mix=off` |
    | adatensor, adavector, adawoeq | `mixing=` `heads-apart`, `channels`, `all` |
    | adayarn | `scaling=yarn,ramp=rotations,trainable=true` |

    Args:
        position_size: rows of W_gate and W_up; None is the paper's four per head.
        post_mix: what becomes of the attended state. "rowsum": sigma_h is the sum of row h of an
            H x H matrix, as in the published code; "matrix": that matrix mixes the heads;
            "off": nothing, A z is not computed.
        mlp_mix: whether the third line takes place.
        gate_input: "mlp_out": m is the MLP's output; "mlp_in": its normalised input.
        layers: which layers change the state: "all", "earlier-half" (index below layers // 2) or
            "later-half"; the last one never does.
        mixing: what the updates mix. "heads": heads, the same way for cos and sin, equivariant.
            "heads-apart": heads, cos and sin with W_up, W_down and sigma of their own.
            "channels": the D entries of cos, and those of sin, of each head; sigma is per entry.
            "all": the H D entries of cos, and those of sin; sigma is per head. The last two
            make the halves of cos and sin differ, so the state is [cos | sin] of D entries each.
    """

    shared = False
    rotation_equivariant = True
    parameters_per_layer = "4*H*C + 8*H*H + H*H"  # in each layer but the last
    variants = (
        "position_size=8,post_mix=matrix,gate_input=mlp_in,layers=earlier-half",
        "mlp_mix=false",
        "mixing=heads-apart,post_mix=off",
        "mixing=channels,post_mix=matrix",
        "mixing=all,layers=later-half",
        "scaling=yarn,factor=4,ramp=rotations,trainable=true",
    )

    def __init__(
        self,
        model: ModelConfig,
        layer: int = 0,
        *,
        position_size: int | None = None,
        post_mix: Literal["rowsum", "matrix", "off"] = "rowsum",
        mlp_mix: bool = True,
        gate_input: Literal["mlp_out", "mlp_in"] = "mlp_out",
        layers: Literal["all", "earlier-half", "later-half"] = "all",
        mixing: Literal["heads", "heads-apart", "channels", "all"] = "heads",
        **options: Any,
    ) -> None:
        super().__init__(model, layer, **options)
        if position_size is not None and position_size < 1:
            raise InputError(f"tape:position_size must be at least 1, not {position_size}")
        if model.groups != model.heads:
            raise InputError(
                f"every head has position states of its own: use as many kv_heads as heads "
                f"({model.heads}), not {model.groups}"
            )
        if not mlp_mix:
            if post_mix == "off":
                raise InputError("tape:mlp_mix=false,post_mix=off changes no state: use rope")
            if position_size or gate_input != "mlp_out" or mixing == "all":
                raise InputError(
                    "position_size, gate_input and mixing=all are about the MLP's update: "
                    "leave them out, or tape:mlp_mix=true"
                )
        changing = range(model.layers - 1)
        if layers != "all":
            half = model.layers // 2
            changing = changing[:half] if layers == "earlier-half" else changing[half:]
            if not changing:
                raise InputError(
                    f"tape:layers={layers} leaves none of {model.layers} layers to change the "
                    "state, which the last never does: use more layers"
                )
        self.post_mix, self.mlp_mix, self.gate_input = post_mix, mlp_mix, gate_input
        self.mixing = mixing
        self.whole = mixing in ("channels", "all")  # halves of cos and sin that differ
        self.shift_invariant = self.rotation_equivariant = mixing == "heads"
        self.updates = layer in changing
        own, mixed, _ = AXES[mixing]
        rows = position_size or 4 * model.heads
        size = {"h": model.heads, "p": 2, "e": model.head_dim, "k": rows}
        if self.updates and post_mix != "off":
            self.sigma = nn.Parameter(torch.zeros([size[a] for a in own + 2 * mixed[0]]))
        if self.updates and mlp_mix:
            self.up = nn.Parameter(torch.zeros([size[a] for a in f"{own}k{mixed}"]))
            self.down = nn.Parameter(torch.empty([size[a] for a in f"{own}{mixed}k"]))
            self.gate = nn.Linear(model.width, rows, bias=False)
            for random in (self.down, self.gate.weight):
                nn.init.normal_(random, std=model.init_std)

    def begin(self, x: Tensor, positions: Tensor) -> State:
        """The state z as [Re | Im], (B or 1, H, T, D), or [cos | sin], (B or 1, H, T, 2 D)."""
        tables = super().begin(x, positions)
        parts = [table for table in tables for _ in range(1 + self.whole)]
        return torch.cat(parts, dim=-1).expand(-1, self.model.heads, -1, -1)

    def rotate(
        self, q: Tensor, k: Tensor, state: State, features: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        cos, sin = state.chunk(2, dim=-1)
        turned = rotate_apart if self.whole else rotate
        return turned(q, cos, sin), turned(k, cos, sin)

    def extra_values(self, state: State) -> Tensor | None:
        values: Tensor | None = state if self.updates and self.post_mix != "off" else None
        return values

    def update(self, state: State, extra: Tensor | None, mlp_in: Tensor, mlp_out: Tensor) -> State:
        if extra is not None:
            state = self.gather(state, extra)
        if self.updates and self.mlp_mix:
            state = self.mix(state, mlp_out if self.gate_input == "mlp_out" else mlp_in)
        return state

    def gather(self, state: Tensor, attended: Tensor) -> Tensor:
        """z + sigma A z, all (B, H, T, D or 2 D)."""
        own, mixed, _ = AXES[self.mixing]
        source = "bhtpe" if self.post_mix == "rowsum" else "bhtpe".replace(mixed[0], "x")
        read = f"{own}{mixed[0]}x,{source}->bhtpe"  # an x on one side only is summed over
        attended = attended.unflatten(-1, (2, -1))
        return state + torch.einsum(read, self.sigma, attended).flatten(-2)

    def mix(self, state: Tensor, m: Tensor) -> Tensor:
        """z + W_down diag(silu(W_gate m)) W_up z, state (B, H, T, D or 2 D), m (B, T, C)."""
        own, mixed, rest = AXES[self.mixing]
        gate, z = F.silu(self.gate(m)), state.unflatten(-1, (2, -1))
        if mixed == "h":  # few: one H x H matrix per token is smaller than P rows of z
            outer = torch.einsum(f"{own}hk,{own}kx->k{own}hx", self.down, self.up)
            matrices = torch.einsum(f"btk,k{own}hx->bt{own}hx", gate, outer)
            change = torch.einsum(f"bt{own}hx,bxtpe->bhtpe", matrices, z)
        else:
            rows = torch.einsum(f"k{mixed},bhtpe->btk{rest}", self.up, z)
            change = torch.einsum(f"btk,btk{rest},{mixed}k->bhtpe", gate, rows, self.down)
        return state + change.flatten(-2)


def rotate_apart(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """As `rotate` with tables (B, H, T, D), whose halves need not be equal."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin
