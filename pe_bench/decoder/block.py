"""One block of the decoder: attention with the encoding's hooks around it, then an MLP."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pe_bench.config import ModelConfig
from pe_bench.decoder import hooks
from pe_bench.decoder.attention import Backend, attend
from pe_bench.decoder.cache import Cache
from pe_bench.decoder.logits import attention_logits, repeat_heads
from pe_bench.decoder.norms import make_input_norm, make_norm, make_output_norm
from pe_bench.decoder.shifted_sparse import shifted_sparse_attention
from pe_bench.encoding import Encoding
from pe_bench.positions import Positions, State

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
}


@dataclass(frozen=True)
class Context:
    """Inputs that all layers of one forward pass share."""

    positions: Positions
    cache: Cache | None
    backend: Backend
    logits: list[Tensor] | None = None  # if a list, every layer appends its logits
    group_length: int | None = None  # tokens per group of shifted sparse attention
    weights: list[Tensor] | None = None  # if a list, every layer appends its attention weights

    def remember(self, layer: int, name: str, new: Tensor) -> Tensor:
        """Cache values of new tokens, (B, heads, T, F); return all so far, (B, heads, S, F)."""
        return new if self.cache is None else self.cache.append((layer, name), new)

    def remember_visible(
        self, layer: int, k: Tensor, v: Tensor, positions: Positions
    ) -> tuple[Tensor, Tensor, Positions]:
        """Cache new keys and values; return those visible to queries, (B, G, S, D), and positions.

        Args:
            layer: index of the layer.
            k, v: keys and values of the new tokens, (B, G, T, D).
            positions: positions of all tokens so far.
        """
        visible = positions.visible
        # Features may be sums over all tokens, which also need the invisible keys.
        if self.cache is None or positions.features is not None or not self.cache.shrinks(visible):
            return self.remember(layer, "k", k), self.remember(layer, "v", v), positions
        k = self.cache.append_visible((layer, "k"), k, visible)
        v = self.cache.append_visible((layer, "v"), v, visible)
        slots = self.cache.slots(visible)
        return k, v, positions if slots is None else positions.with_keys(*slots)


class AttentionOutput(NamedTuple):
    """Output of self-attention.

    Attributes:
        tokens: output for the residual connection, (B, T, C).
        extra: attended extra values of the encoding, (B, H, T, E); None: it has no extra values.
    """

    tokens: Tensor
    extra: Tensor | None


class Attention(nn.Module):
    """Self-attention with the hooks of an encoding."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.config = config
        self.layer = layer
        q_width = config.heads * config.head_dim
        kv_width = config.kv_heads * config.head_dim
        bias = config.qkv_bias or config.block.bias
        self.q_proj = nn.Linear(config.width, q_width, bias=bias)
        self.k_proj = nn.Linear(config.width, kv_width, bias=bias)
        self.v_proj = nn.Linear(config.width, kv_width, bias=bias)
        self.o_proj = nn.Linear(q_width, config.width, bias=config.block.bias)
        self.q_norm: nn.Module = nn.Identity()
        self.k_norm: nn.Module = nn.Identity()
        if config.qk_norm != "none":
            per_head = config.qk_norm == "rms"
            self.q_norm = make_norm(config, config.head_dim if per_head else q_width)
            self.k_norm = make_norm(config, config.head_dim if per_head else kv_width)
        self.query_scale = 1.0
        """Factor of the queries, in addition to 1 / sqrt(D)."""
        if config.block.score_scale:
            self.query_scale = config.block.score_scale * math.sqrt(config.head_dim)

    def forward(
        self, x: Tensor, encoding: Encoding, state: State, context: Context
    ) -> AttentionOutput:
        """Mix tokens, (B, T, C) -> (B, T, C), and the extra values of the encoding."""
        q = self._normalise(self.q_norm, self.q_proj(x))  # (B, H, T, D)
        k = self._normalise(self.k_norm, self.k_proj(x))  # (B, G, T, D)
        if self.query_scale != 1:
            q = q * self.query_scale
        v = self.split_heads(self.v_proj(x))  # (B, G, T, D)
        positions = self._positions(x, encoding, state, context)
        q, k = hooks.transform_qk(encoding, q, k, positions)  # (B, H, T, D), (B, G, T, D)
        factors = hooks.temperature(encoding, positions, len(x))  # (B or 1, H or 1, T)
        if factors is not None:
            q = (q * factors[..., None]).to(q.dtype)  # (B, H, T, D)
        extra_values = hooks.extra_values(encoding, positions, len(x))  # (B, H or G, T, E)
        if extra_values is not None:
            v = repeat_heads(v, extra_values.shape[1])  # (B, H or G, T, D)
            v = torch.cat([v, extra_values.to(v.dtype)], dim=-1)  # (B, H or G, T, D + E)
        # (B, G, S, D) and (B, G or H, S, D or D + E)
        k, v, positions = context.remember_visible(self.layer, k, v, positions)
        positions = hooks.prepare_product(encoding, k, positions)
        terms = hooks.logit_terms(encoding, positions, len(x))
        if self.config.block.score_cap:
            terms = terms.capped(self.config.block.score_cap)
        if context.logits is not None:
            context.logits.append(attention_logits(q, k, terms))  # (B, H, T, S)
        if context.weights is not None:
            logits = attention_logits(q, k, terms)  # (B, H, T, S)
            context.weights.append(terms.attention_weights(logits))
        if context.group_length:
            out = shifted_sparse_attention(q, k, v, terms, context.group_length, context.backend)
        else:
            out = attend(q, k, v, terms, backend=context.backend)
        extra = None
        if extra_values is not None:  # out is (B, H, T, D + E)
            extra_width = extra_values.shape[-1]
            out, extra = out.split([v.shape[-1] - extra_width, extra_width], dim=-1)
        return AttentionOutput(self.o_proj(out.transpose(1, 2).flatten(2)), extra)  # (B, T, C)

    def split_heads(self, x: Tensor) -> Tensor:
        """Split channels into heads: (B, T, heads D) -> (B, heads, T, D)."""
        heads: Tensor = x.unflatten(-1, (-1, self.config.head_dim))
        return heads.transpose(1, 2)

    def _normalise(self, norm: nn.Module, x: Tensor) -> Tensor:
        """Normalise queries or keys: (B, T, heads D) -> (B, heads, T, D)."""
        if self.config.qk_norm == "width":
            return self.split_heads(norm(x))
        normed: Tensor = norm(self.split_heads(x))
        return normed

    def _positions(
        self, x: Tensor, encoding: Encoding, state: State, context: Context
    ) -> Positions:
        """Return the positions of the tokens with this layer's state and features."""
        positions = replace(
            context.positions, layer_index=self.layer, state=state, visible=encoding.visible
        )
        features = hooks.token_features(encoding, x, positions)  # (B, H, T, F)
        if features is None:
            return positions
        features = context.remember(self.layer, "features", features)  # (B, H, S, F)
        return replace(positions, features=hooks.scan_features(encoding, features))


class MLP(nn.Module):
    """SwiGLU or another gate (Shazeer 2020, arXiv 2002.05202), or no gate, as in GPT-2."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        bias = config.block.bias
        if config.block.gated:
            self.gate_proj = nn.Linear(config.width, config.mlp_width, bias=bias)
        self.up_proj = nn.Linear(config.width, config.mlp_width, bias=bias)
        self.down_proj = nn.Linear(config.mlp_width, config.width, bias=bias)
        self.gated = config.block.gated
        self.activate = ACTIVATIONS[config.block.activation]

    def forward(self, x: Tensor) -> Tensor:
        """Apply the MLP: (B, T, C) -> (B, T, C)."""
        up = self.up_proj(x)  # (B, T, F)
        hidden = self.activate(self.gate_proj(x)) * up if self.gated else self.activate(up)
        down: Tensor = self.down_proj(hidden)
        return down


class Block(nn.Module):
    """Attention, then MLP, both with a norm and a residual connection.

    Llama has norms at the inputs. Its name for the second one is `post_attention_layernorm`.
    """

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.input_layernorm = make_input_norm(config)
        self.self_attn = Attention(config, layer)
        self.attention_output_norm = make_output_norm(config)
        self.post_attention_layernorm = make_input_norm(config)
        self.mlp = MLP(config)
        self.mlp_output_norm = make_output_norm(config)

    def forward(
        self, x: Tensor, encoding: Encoding, state: State, context: Context
    ) -> tuple[Tensor, State]:
        """Return the next layer's input, (B, T, C) -> (B, T, C), and its state."""
        attended: AttentionOutput = self.self_attn(
            self.input_layernorm(x), encoding, state, context
        )
        x = x + self.attention_output_norm(attended.tokens)  # (B, T, C)
        mlp_in = self.post_attention_layernorm(x)  # (B, T, C)
        mlp_out = self.mlp_output_norm(self.mlp(mlp_in))  # (B, T, C)
        return x + mlp_out, hooks.update_state(encoding, state, attended.extra, mlp_in, mlp_out)


def run_block(
    block: Block, x: Tensor, encoding: Encoding, state: State, context: Context
) -> tuple[Tensor, State]:
    """Call a block."""
    output: tuple[Tensor, State] = block(x, encoding, state, context)
    return output


def run_checkpointed(
    block: Block, x: Tensor, encoding: Encoding, state: State, context: Context
) -> tuple[Tensor, State]:
    """Call a block with activation checkpointing (Chen et al. 2016, arXiv 1604.06174).

    Only the inputs are kept; the backward pass recomputes the block with the same random numbers.
    Each block then computes the tables that layers would otherwise share.
    """

    def compute(x: Tensor, state: State) -> tuple[Tensor, State]:
        unshared = replace(context, positions=context.positions.alone())
        return run_block(block, x, encoding, state, unshared)

    output: tuple[Tensor, State] = checkpoint(compute, x, state, use_reentrant=False)
    return output
