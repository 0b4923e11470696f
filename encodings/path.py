"""Householder reflections accumulated from key to query (Yang et al. 2025, arXiv 2505.16381)."""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pe_bench.api import ALIGNED, Encoding, InputError, ModelConfig, Positions

CHUNK = ALIGNED
"""Tokens whose reflections are multiplied out together; decides speed, not results."""


class PaTH(Encoding):
    """logit_ij = k_j^T H_{j+1} ... H_i q_i / sqrt(D), H_t = I - beta_t w_t w_t^T.

    For each head, w = silu(conv3(W_up W_down x)) divided by its length, with a causal depthwise
    convolution, and beta = 2 sigmoid(W x + b), initially 1. All weights are initialised from
    N(0, init_std), and b is zero.

    | published code | here |
    |---|---|
    | adds 1e-6 to w's squared length | divides by the length |
    | grouped queries: one w per key head, at full rank | one per query head |

    Computation: for a range of tokens, let the rows of W be the vectors w, and let M be the inverse
    of I + strictly_lower(diag(beta) W W^T), times diag(beta). The product of the matrices H of the
    range, last token first, is I - W^T M W; for a part of the range it has the same part of M. So
    one triangular solve per chunk gives all products that start or end in the chunk, and queries
    are propagated over the chunks from last to first. In float32 the logits of 2048 tokens have an
    error of 1e-6 of the largest, and of 2e-5 in the worst case that was tried (nearly equal w, beta
    near 2).

    Args:
        gate: "fox" adds c_i - c_j of FoX to the logits; "fla" adds it divided by sqrt(D), as in
            flash-linear-attention, the authors' code.
        rank: rank of W_up W_down.
    """

    family = "content"
    colour = "#332288"
    marker = "D"

    shared = False
    shift_invariant = True
    parameters_per_layer = "32*(C + C) + 3*C + C*H + H"
    variants = ("gate=fox", "gate=fla,rank=8")

    def __init__(
        self,
        model: ModelConfig,
        layer: int = 0,
        *,
        gate: Literal["none", "fox", "fla"] = "none",
        rank: int = 32,
    ) -> None:
        super().__init__(model, layer)
        if rank < 1:
            raise InputError(f"path:rank must be at least 1, not {rank}")
        self.gate = gate
        self.down = nn.Linear(model.width, rank, bias=False)
        self.up = nn.Linear(rank, model.width, bias=False)
        self.taps = nn.Parameter(torch.empty(model.heads, 1, model.head_dim, 3))
        self.strength = nn.Linear(model.width, model.heads)
        self.forget = None if gate == "none" else nn.Linear(model.width, model.heads)
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            else:
                nn.init.normal_(parameter, std=model.init_std)

    def token_features(self, x: Tensor, positions: Positions) -> Tensor:
        """Return W_up W_down x, beta and, with a gate, ln f: (B, H, T, D + 1 or D + 2)."""
        low_rank = self.up(self.down(x)).unflatten(-1, (self.model.heads, -1)).transpose(1, 2)
        features = [low_rank, 2 * self.strength(x).sigmoid().mT[..., None]]
        if self.forget is not None:
            features.append(F.logsigmoid(self.forget(x)).mT[..., None])
        return torch.cat(features, dim=-1)

    def scan_features(self, features: Tensor) -> Tensor:
        """Replace W_up W_down x by w: (B, H, S, D + 1 or D + 2) -> the same shape."""
        low_rank, rest = features.tensor_split([self.model.head_dim], dim=-1)
        past = F.pad(low_rank, (0, 0, 2, 0))  # (B, H, S + 2, D)
        mixed = torch.zeros_like(low_rank)  # (B, H, S, D)
        for tap, weight in enumerate(self.taps.unbind(-1)):
            mixed = mixed + weight * past[:, :, tap : tap + low_rank.shape[2]]
        return torch.cat([F.normalize(F.silu(mixed), dim=-1), rest], dim=-1)

    def separable_bias(self, positions: Positions) -> Tensor | None:
        if self.gate == "none" or positions.features is None:
            return None
        summed = positions.features[..., -1].double().cumsum(dim=-1)  # (B, H, S), see FoX
        return summed / math.sqrt(self.model.head_dim) if self.gate == "fla" else summed

    def prepare_product(self, k: Tensor, positions: Positions) -> Tensor | None:
        """Return the effect of each chunk on later queries, (B, H, S, 2 D + chunk), or None."""
        keys = k.shape[2]
        if keys < 2 * CHUNK or positions.index is not None or positions.visible.hides(keys):
            return None
        w, beta = _reflections(positions, k.shape[3])
        # Computed again for the gradient, because it needs more memory than the rest of the layer.
        prepared: Tensor = checkpoint(_prepare_all, k, w, beta, use_reentrant=False)
        return prepared

    def product(self, q: Tensor, k: Tensor, positions: Positions) -> Tensor:
        w, beta = _reflections(positions, k.shape[3])
        q = q / math.sqrt(k.shape[3])
        prepared = positions.prepared
        worth_it = prepared is not None or q.shape[2] >= 2 * CHUNK
        if worth_it and positions.is_reversed_suffix:
            return _of_last_queries(q, k, w, beta, prepared)
        if worth_it and positions.index is None:
            return _of_last_queries(q.flip(2), k, w, beta, prepared).flip(2)
        return _of_any_queries(q, k, w, beta, positions)


def _reflections(positions: Positions, dim: int) -> tuple[Tensor, Tensor]:
    """Return w, (B, H, S, D), and beta, (B, H, S, 1)."""
    assert positions.features is not None  # `token_features` made them
    w, beta, _ = positions.features.tensor_split([dim, dim + 1], dim=-1)
    return w, beta


def _of_any_queries(q: Tensor, k: Tensor, w: Tensor, beta: Tensor, positions: Positions) -> Tensor:
    """Return the products for queries at any places: every query is reflected by every chunk."""
    dim = q.shape[-1]
    first_query = 0
    if positions.index is not None and positions.index.is_cpu:
        # Not on a GPU, where reading an index would synchronise. With 0, every chunk is masked.
        first_query = int(positions.index.min())
    chunks = zip(*(t.split(CHUNK, dim=2) for t in (k, w, beta)), strict=True)
    causal = positions.causal.split(CHUNK, dim=-1)
    reflected = q  # queries after the reflections of all later chunks
    products: list[Tensor] = []
    for number, (key, w, beta) in reversed(list(enumerate(chunks))):
        # Two wide products are faster than four narrow ones.
        q_w, q_k = (reflected @ torch.cat([w, key], dim=2).mT).chunk(2, dim=-1)
        if (number + 1) * CHUNK > first_query:
            # Queries inside the chunk are reflected by its tokens up to their own only.
            q_w = q_w * causal[number]
        coefficients = torch.linalg.solve_triangular(
            _system(w, beta), q_w, upper=False, left=False, unitriangular=True
        )
        removed = (coefficients * beta.mT) @ _before(key, w)  # (B, H, T, D + chunk)
        products.append(q_k - removed[..., dim:])
        reflected = reflected - removed[..., :dim]
    return torch.cat(products[::-1], dim=-1)  # (B, H, T, S)


def _prepare_all(k: Tensor, w: Tensor, beta: Tensor) -> Tensor:
    """Apply `_prepare` to keys and w, (B, H, S, D), and beta, (B, H, S, 1), in one sequence."""
    fill = (0, 0, 0, -k.shape[2] % CHUNK)
    chunks = (F.pad(t, fill).unflatten(2, (-1, CHUNK)) for t in (k, w, beta))
    return _prepare(*chunks).flatten(2, 3)[:, :, : k.shape[2]]


def _prepare(k: Tensor, w: Tensor, beta: Tensor) -> Tensor:
    """Return M times the preceding tokens, and the keys moved to the end of their chunk.

    Args:
        k, w: (B, H, N, chunk, D).
        beta: (B, H, N, chunk, 1).

    Returns:
        (B, H, N, chunk, D + chunk + D): M W, M times W's products with earlier keys, moved keys.
    """
    # Transposed, as LAPACK stores matrices: this avoids a copy and halves the time.
    system, before = _system(w, beta).mT, (beta * _before(k, w)).mT
    solved = torch.linalg.solve_triangular(
        system, before, upper=True, left=False, unitriangular=True
    ).mT
    known = solved[..., k.shape[-1] :]  # (B, H, N, chunk, chunk)
    return torch.cat([solved, k - known.mT @ w], dim=-1)


def _of_last_queries(
    q: Tensor, k: Tensor, w: Tensor, beta: Tensor, prepared: Tensor | None
) -> Tensor:
    """Return the products of the last queries, in descending order, at less cost.

    A query is reflected by the part of its chunk up to its own token, then by every earlier chunk
    as a whole. A whole chunk takes one matrix, with the keys of the chunk moved to its end.

    Args:
        prepared: return value of `prepare_product`, if the first query begins a chunk.
    """
    tokens = q.shape[2]
    keys, dim = k.shape[2:]
    size = CHUNK
    fill = ((tokens - keys) % size, -tokens % size)  # a chunk begins with the first query
    k, w, beta = (F.pad(t, (0, 0, *fill)).unflatten(2, (-1, size)) for t in (k, w, beta))
    q = F.pad(q, (0, 0, fill[1], 0)).unflatten(2, (-1, size)).flip(2)  # (B, H, N', size, D)
    chunks = [k.shape[2] - q.shape[2], q.shape[2]]  # without and with queries, N in total

    if prepared is None:
        prepared = _prepare(k, w, beta)
    else:
        assert fill[0] == 0  # blocks of queries begin where chunks do
        prepared = F.pad(prepared, (0, 0, *fill)).unflatten(2, (-1, size))
    # (B, H, N, size, D), (..., size) and (..., D)
    m_w, m_wk, moved_keys = prepared.split([dim, size, dim], dim=-1)
    identity = torch.eye(dim, dtype=q.dtype, device=q.device)
    steps = torch.cat([identity - w.mT @ m_w, moved_keys.mT], dim=-1)  # (B, H, N, D, D + size)

    k, w, m_w, m_wk = (t.split(chunks, dim=2)[1] for t in (k, w, m_w, m_wk))
    causal = torch.ones(size, size, dtype=torch.bool, device=q.device).tril().flip(0)
    q_w = (q @ w.mT) * causal  # (B, H, N', size, size): with tokens up to its own
    at_start = (q - q_w @ m_w).unbind(2)
    within_chunk = (q @ k.mT - q_w @ m_wk).unbind(2)

    zeros = q.new_zeros(*q.shape[:2], tokens + fill[1], size)
    reflected = q.new_zeros(*q.shape[:2], 0, dim)  # queries after the chunk, moved to its end
    products = []
    for number, step in reversed(list(enumerate(steps.unbind(2), -chunks[0]))):
        reflected, products_here = (reflected @ step).split([dim, size], dim=-1)
        if number >= 0:  # the chunk has queries, and chunks before it
            before = zeros[:, :, : number * size]
            products_here = torch.cat([products_here, within_chunk[number], before], dim=2)
            reflected = torch.cat([reflected, at_start[number]], dim=2)
        products.append(products_here)
    filled = torch.cat(products[::-1], dim=-1)  # (B, H, T and fill, S and fill)
    return filled[:, :, fill[1] :, fill[0] : fill[0] + keys] if any(fill) else filled


def _system(w: Tensor, beta: Tensor) -> Tensor:
    """Return the inverse of M without diag(beta) and without its diagonal of ones."""
    return (beta * (w @ w.mT)).tril(-1)


def _before(k: Tensor, w: Tensor) -> Tensor:
    """Return w and its products with the keys before it, concatenated: (..., chunk, D + chunk)."""
    return torch.cat([w, (w @ k.mT).tril(-1)], dim=-1)
