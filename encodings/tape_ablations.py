"""TAPE with parts changed or removed (ablations of Zhu et al. 2025, arXiv 2501.00712)."""

from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pe_bench.api import InputError, ModelConfig, Positions, State
from pe_bench.encodings.rope import rotate
from pe_bench.encodings.tape import TAPE

AXES = {
    "heads": ("", "h", "pe"),
    "heads-apart": ("p", "h", "e"),
    "channels": ("", "e", "hp"),
    "all": ("", "he", "p"),
}
"""Axes of a state, bhtpe = (B, G, T, 2, E), where p indexes its cos and its sin part: axes with
separate weights, axes that are mixed, axes that share weights."""


class TAPEAblations(TAPE):
    """TAPE with updates along any choice of axes.

    Options for the ablations of the published code, and for variants in the text of the paper:

    | there | here |
    |---|---|
    | adape (TAPE itself) | `tape` |
    | mixing of attended heads as in the text | `post_mix=matrix` |
    | adattention, adamlp | `mlp_mix=false`, `post_mix=off` |
    | adatensor, adavector, adawoeq | `mixing=` `heads-apart`, `channels`, `all` |
    | adayarn | `scaling=yarn,ramp=rotations,trainable=true`, for `tape` too |

    Args:
        post_mix: update with the attended state. "rowsum": sigma_h is the sum of row h of an
            H x H matrix, as in the published code; "matrix": this matrix mixes the heads;
            "off": no update, and A z is not computed.
        mlp_mix: whether to update with `mix`.
        gate_input: "mlp_out": m is the output of the MLP; "mlp_in": its normalised input.
        layers: layers that update the state: "all", "earlier-half" (index below layers // 2) or
            "later-half"; the last layer never does.
        mixing: axes that the updates mix. "heads": heads, equally for cos and sin (equivariant).
            "heads-apart": heads, with separate W_up, W_down and sigma for cos and sin.
            "channels": the D entries of cos, and those of sin, of each head; sigma is per entry.
            "all": the H D entries of cos, and those of sin; sigma is per head. With the last two
            the halves of cos and sin differ, so the state is [cos | sin] with D entries each.
    """

    family = "content"
    label = "TAPE"
    colour = "#882255"
    marker = "X"

    variants: ClassVar[tuple[str, ...]] = (
        "position_size=8,post_mix=matrix,gate_input=mlp_in,layers=earlier-half",
        "mlp_mix=false",
        "mixing=heads-apart,post_mix=off",
        "mixing=channels,post_mix=matrix",
        "mixing=all,layers=later-half",
    )

    def __init__(
        self,
        model: ModelConfig,
        layer: int = 0,
        *,
        post_mix: Literal["rowsum", "matrix", "off"] = "rowsum",
        mlp_mix: bool = True,
        gate_input: Literal["mlp_out", "mlp_in"] = "mlp_out",
        layers: Literal["all", "earlier-half", "later-half"] = "all",
        mixing: Literal["heads", "heads-apart", "channels", "all"] = "heads",
        **options: Any,
    ) -> None:
        super().__init__(model, layer, **options)
        if not mlp_mix:
            if post_mix == "off":
                raise InputError("mlp_mix=false,post_mix=off changes no state: use rope")
            if options.get("position_size") or gate_input != "mlp_out" or mixing == "all":
                raise InputError(
                    "position_size, gate_input and mixing=all apply only to the MLP's update: "
                    "leave them out, or set mlp_mix=true"
                )
        changing = range(model.layers - 1)
        half = model.layers // 2
        if layers == "earlier-half":
            changing = changing[:half]
        elif layers == "later-half":
            changing = changing[half:]
        if layers != "all" and not changing:
            raise InputError(
                f"layers={layers} selects none of the {model.layers} layers that update the "
                "state, which excludes the last one: use more layers"
            )
        self.post_mix = post_mix
        self.mlp_mix = mlp_mix
        self.gate_input = gate_input
        self.mixing = mixing
        self.whole = mixing in ("channels", "all")  # the halves of cos and sin differ
        self.rotation_equivariant = mixing == "heads"
        self.shift_invariant = mixing == "heads"
        if self.updates:
            self._replace_weights(layer in changing)
        self.updates = layer in changing

    def _replace_weights(self, updates: bool) -> None:
        """Replace the weights of TAPE by weights with the shapes that the options need."""
        del self.sigma, self.up, self.down, self.gate
        own, mixed, _ = AXES[self.mixing]
        size = {"h": self.model.kv_heads, "p": 2, "e": self.model.head_dim, "k": self.rows}
        if updates and self.post_mix != "off":
            self.sigma = nn.Parameter(torch.zeros([size[a] for a in own + 2 * mixed[0]]))
        if updates and self.mlp_mix:
            self.up = nn.Parameter(torch.zeros([size[a] for a in f"{own}k{mixed}"]))
            self.down = nn.Parameter(torch.empty([size[a] for a in f"{own}{mixed}k"]))
            self.gate = nn.Linear(self.model.width, self.rows, bias=False)
            nn.init.normal_(self.down, std=self.model.init_std)
            nn.init.normal_(self.gate.weight, std=self.model.init_std)

    def prepare(self, x: Tensor, positions: Positions) -> State:
        """Return z as [Re | Im], (B or 1, G, T, D), or as [cos | sin], (B or 1, G, T, 2 D)."""
        state = super().prepare(x, positions)
        if not self.whole:
            return state
        cos, sin = state.chunk(2, dim=-1)  # (B or 1, G, T, D/2) each
        return torch.cat([cos, cos, sin, sin], dim=-1)

    def turn(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return rotate_whole(x, cos, sin) if self.whole else rotate(x, cos, sin)

    def extra_values(self, state: State) -> Tensor | None:
        return None if self.post_mix == "off" else super().extra_values(state)

    def update_state(
        self, state: State, extra: Tensor | None, mlp_in: Tensor, mlp_out: Tensor
    ) -> State:
        if extra is not None:
            state = self.gather(state, self.per_key_head(extra))
        if self.updates and self.mlp_mix:
            state = self.mix(state, mlp_out if self.gate_input == "mlp_out" else mlp_in)
        return state

    def gather(self, state: Tensor, attended: Tensor) -> Tensor:
        """Return z + sigma A z, all (B, G, T, D or 2 D)."""
        own, mixed, _ = AXES[self.mixing]
        source = "bhtpe" if self.post_mix == "rowsum" else "bhtpe".replace(mixed[0], "x")
        read = f"{own}{mixed[0]}x,{source}->bhtpe"  # an axis x on one side only is summed
        attended = attended.unflatten(-1, (2, -1))  # (B, G, T, 2, E)
        return state + torch.einsum(read, self.sigma, attended).flatten(-2)

    def mix(self, state: Tensor, m: Tensor) -> Tensor:
        """Return z + W_down diag(silu(W_gate m)) W_up z, z (B, G, T, D or 2 D), m (B, T, C)."""
        own, mixed, rest = AXES[self.mixing]
        gate = F.silu(self.gate(m))  # (B, T, K)
        z = state.unflatten(-1, (2, -1))  # (B, G, T, 2, E)
        if mixed == "h":  # one G x G matrix per token is smaller than K rows of z
            outer = torch.einsum(f"{own}hk,{own}kx->k{own}hx", self.down, self.up)
            matrices = torch.einsum(f"btk,k{own}hx->bt{own}hx", gate, outer)
            change = torch.einsum(f"bt{own}hx,bxtpe->bhtpe", matrices, z)
        else:
            rows = torch.einsum(f"k{mixed},bhtpe->btk{rest}", self.up, z)
            change = torch.einsum(f"btk,btk{rest},{mixed}k->bhtpe", gate, rows, self.down)
        return state + change.flatten(-2)

    def rotate_state(self, state: State, angles: Tensor) -> State:
        if not self.whole:
            return super().rotate_state(state, angles)
        raise NotImplementedError(f"mixing={self.mixing} has no rotation of its states")


def rotate_whole(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate as `rotate` does, with tables (..., T, D) whose halves need not be equal."""
    first, second = x.chunk(2, dim=-1)  # (B, H, T, D/2) each
    return x * cos + torch.cat([-second, first], dim=-1) * sin
