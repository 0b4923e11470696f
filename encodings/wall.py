"""A forget gate for each channel of a key (Tilde Research 2026, Wall attention)."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pe_bench.api import Encoding, InputError, ModelConfig, Positions

CHUNK = 16
"""Keys that share an anchor; decides speed and memory, not results."""


class Wall(Encoding):
    """logit_ij = sum_c q_ic k_jc exp(P_ic - P_jc) / sqrt(D), P = cumulated ln sigmoid(W x + b).

    There is one gate per query head, channel and token; FoX has one per head and token. b is
    initially 8, where gates are nearly 1; W is initialised from N(0, init_std). There are no other
    positions.

    The factors exp(P_i) and exp(-P_j) would overflow. Here all exponents are at most 0: keys decay
    to the end of their chunk, and from there to the query. Within the query's chunk each pair is
    computed separately. Sums are in float64, so that neighbouring tokens differ in long texts.

    | published code | here |
    |---|---|
    | options: normalised queries and keys, window, output gate | left out |
    | a fused kernel | sums over chunks; blocks of queries keep memory small |

    The tests compare with flash-linear-attention (naive_wall_attn, MIT), to which the authors
    contributed their code.

    Args:
        scalar_gate: whether to add c_i - c_j of FoX, with one gate per head, whose bias is also
            initially 8.
        bias_init: initial value of b.
    """

    family = "content"
    colour = "#999933"
    marker = "D"

    shared = False
    shift_invariant = True
    parameters_per_layer = "C*C + C"
    variants = ("scalar_gate=true,bias_init=2",)

    def __init__(
        self,
        model: ModelConfig,
        layer: int = 0,
        *,
        scalar_gate: bool = False,
        bias_init: float = 8.0,
    ) -> None:
        super().__init__(model, layer)
        if not math.isfinite(bias_init):
            raise InputError(f"wall:bias_init must be a finite number, not {bias_init}")
        gates = model.head_dim + scalar_gate
        self.scalar_gate = scalar_gate
        self.gates = nn.Linear(model.width, model.heads * gates)
        nn.init.normal_(self.gates.weight, std=model.init_std)
        nn.init.constant_(self.gates.bias, bias_init)

    def token_features(self, x: Tensor, positions: Positions) -> Tensor:
        """Return ln sigmoid(W x + b), (B, H, T, D), or D + 1 with a scalar gate."""
        gates: Tensor = self.gates(x).unflatten(-1, (self.model.heads, -1))  # (B, T, H, D)
        return F.logsigmoid(gates.transpose(1, 2))

    def scan_features(self, features: Tensor) -> Tensor:
        """Return the running sums, float64."""
        # A GPU sums in parallel only along the last axis.
        return features.mT.double().cumsum(dim=-1).mT

    def separable_bias(self, positions: Positions) -> Tensor | None:
        if not self.scalar_gate or positions.features is None:
            return None
        return positions.features[..., -1]  # (B, H, S)

    def product(self, q: Tensor, k: Tensor, positions: Positions) -> Tensor:
        assert positions.features is not None  # `token_features` made them
        assert positions.query_features is not None
        dim = q.shape[-1]
        keys = k.shape[2]
        q = q / math.sqrt(dim)
        at_query = positions.query_features[..., None, :dim]  # (B, H, T, 1, D)
        sums = _chunks(positions.features[..., :dim])  # (B, H, N, chunk, D)
        k = _chunks(k)  # (B, H, N, chunk, D)
        ends = sums[..., -1:, :]  # (B, H, N, 1, D)

        faded = k * (ends - sums).to(q.dtype).exp()  # (B, H, N, chunk, D)
        since = (at_query - ends.squeeze(3)[:, :, None]).to(q.dtype)  # (B, H, T, N, D)
        weakened = q[..., None, :] * since.clamp(max=0).exp()  # (B, H, T, N, D)
        far = (weakened.transpose(2, 3) @ faded.mT).transpose(2, 3)  # (B, H, T, N, chunk)

        number = positions.query_index // CHUNK  # (B or 1, T)
        between = (at_query - _pick(sums, number)).to(q.dtype)  # (B, H, T, chunk, D)
        near = _pick(k, number) * between.clamp(max=0).exp() @ q[..., None]  # (B, H, T, chunk, 1)
        own = torch.arange(k.shape[2], device=q.device) == number[..., None]  # (B or 1, T, N)
        logits = torch.where(own[:, None, ..., None], near.mT, far)  # (B, H, T, N, chunk)
        return logits.flatten(3)[..., :keys]  # (B, H, T, S)


def _chunks(per_key: Tensor) -> Tensor:
    """Divide keys into chunks, the last one filled with copies: -> (B, H, N, CHUNK, F)."""
    missing = -per_key.shape[2] % CHUNK
    copies = per_key[:, :, -1:].expand(-1, -1, missing, -1)
    chunks: Tensor = torch.cat([per_key, copies], dim=2).unflatten(2, (-1, CHUNK))
    return chunks


def _pick(chunks: Tensor, number: Tensor) -> Tensor:
    """Return a chunk for each query: (B, H, N, CHUNK, F), (B or 1, T) -> (B, H, T, CHUNK, F)."""
    flat = chunks.flatten(3)  # (B, H, N, CHUNK F)
    shape = (len(flat), flat.shape[1], -1, flat.shape[3])
    picked = flat.gather(2, number[:, None, :, None].expand(shape))  # (B, H, T, CHUNK F)
    chunk: Tensor = picked.unflatten(3, (CHUNK, -1))
    return chunk
