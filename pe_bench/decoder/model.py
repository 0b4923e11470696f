"""A LLaMA decoder into which any encoding fits.

Names and shapes of the parameters are those of the Hugging Face Llama without its "model."
prefix, so a pretrained checkpoint loads as it is; the encoding's own are under "encodings.".
"""

from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pe_bench.config import ModelConfig
from pe_bench.decoder.attention import Backend, attend, attention_logits
from pe_bench.decoder.cache import Cache
from pe_bench.encoding import Encoding, Pairs, State, precisely
from pe_bench.errors import InputError

IGNORE = -100
"""Target id that carries no loss."""


class MakeEncoding(Protocol):
    """An encoding's class with its options applied."""

    def __call__(self, model: ModelConfig, layer: int) -> Encoding: ...


@dataclass(frozen=True)
class Context:
    """What one forward pass hands to every layer."""

    positions: Tensor  # (B or 1, S), of all tokens so far
    query_positions: Tensor  # (B or 1, T), of the new ones
    index: Tensor | None  # (B or 1, T), column of each new token; None: all of them, in order
    cache: Cache | None
    backend: Backend
    trace: list[Tensor] | None = None  # if a list, every layer's logits are put into it
    bias: Tensor | None = None  # the encoding's, of this layer

    def remember(self, what: tuple[int, str], new: Tensor) -> Tensor:
        """A layer's per-token tensor of all tokens so far, (B, heads, T, F) -> (B, heads, S, F)."""
        return new if self.cache is None else self.cache.append(what, new)

    def at_queries(self, features: Tensor | None) -> Tensor | None:
        """Features of the new tokens: (B, H, S, F) -> (B, H, T, F)."""
        if features is None or self.index is None:
            return features
        index = self.index[:, None, :, None].expand(-1, features.shape[1], -1, features.shape[3])
        return features.gather(2, index)


class Attention(nn.Module):
    """Self-attention without biases; the encoding's hooks around it."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        narrow = config.groups * config.head_dim
        self.q_proj = nn.Linear(config.width, config.width, bias=False)
        self.k_proj = nn.Linear(config.width, narrow, bias=False)
        self.v_proj = nn.Linear(config.width, narrow, bias=False)
        self.o_proj = nn.Linear(config.width, config.width, bias=False)

    def forward(
        self, x: Tensor, layer: int, encoding: Encoding, state: State, context: Context
    ) -> tuple[Tensor, Tensor | None]:
        """(B, T, C) -> (B, T, C) and the encoding's extra values after attention, if any."""
        head_dim = self.config.head_dim
        q, k, v = (
            proj(x).unflatten(-1, (-1, head_dim)).transpose(1, 2)
            for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        features = precisely(encoding.key_features, x, state)
        if features is not None:
            features = precisely(
                encoding.accumulate, context.remember((layer, "features"), features)
            )
        if encoding.overrides("rotate"):
            new = context.at_queries(features)
            q, k = (t.to(v.dtype) for t in precisely(encoding.rotate, q, k, state, new))
        extra = precisely(encoding.extra_values, state)
        if extra is not None:
            v = v.repeat_interleave(extra.shape[1] // v.shape[1], dim=1)
            v = torch.cat([v, extra.to(v.dtype).expand(v.shape[0], -1, -1, -1)], dim=-1)
        k, v = context.remember((layer, "k"), k), context.remember((layer, "v"), v)

        def rewrite(scores: Tensor, q: Tensor, k: Tensor, causal: Tensor) -> Tensor:
            pairs = Pairs(context.query_positions, context.positions, causal)
            return precisely(encoding.logits, scores, q, k, features, pairs)

        about: Any = {
            "index": context.index,
            "decay": precisely(encoding.decay, features, context.positions),
            "bias": context.bias,
            "rewrite": rewrite if encoding.overrides("logits") else None,
        }
        if context.trace is not None:
            context.trace.append(attention_logits(q, k, **about))
        out = attend(q, k, v, **about, backend=context.backend)
        mixed = self.o_proj(out[..., :head_dim].transpose(1, 2).flatten(2))
        return mixed, None if extra is None else out[..., head_dim:]


class MLP(nn.Module):
    """SwiGLU (Shazeer 2020, arXiv 2002.05202)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.width, config.mlp_width, bias=False)
        self.up_proj = nn.Linear(config.width, config.mlp_width, bias=False)
        self.down_proj = nn.Linear(config.mlp_width, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, C) -> (B, T, C)."""
        down: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return down


class Block(nn.Module):
    """Attention, then MLP, each normalised before and added to the residual stream."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.width, eps=config.norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = nn.RMSNorm(config.width, eps=config.norm_eps)
        self.mlp = MLP(config)

    def forward(
        self, x: Tensor, layer: int, encoding: Encoding, state: State, context: Context
    ) -> tuple[Tensor, State]:
        """(B, T, C) and the encoding's state -> the same for the next layer."""
        mixed, extra = self.self_attn(self.input_layernorm(x), layer, encoding, state, context)
        x = x + mixed
        mlp_in = self.post_attention_layernorm(x)
        mlp_out = self.mlp(mlp_in)
        return x + mlp_out, precisely(encoding.update, state, extra, mlp_in, mlp_out)


class Decoder(nn.Module):
    """The language model of every benchmark.

    Args:
        config: its shape.
        make_encoding: called as make_encoding(config, layer) for every layer, or once if what
            it returns is shared. The other weights do not depend on the encoding: under one
            seed all encodings start from the same model.
    """

    def __init__(self, config: ModelConfig, make_encoding: MakeEncoding) -> None:
        super().__init__()
        self.config = config
        self.make_encoding = make_encoding
        self.embed_tokens = nn.Embedding(config.vocab_size, config.width)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.width, eps=config.norm_eps)
        self.lm_head = nn.Linear(config.width, config.vocab_size, bias=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:  # the gains of the norms stay one
                nn.init.normal_(parameter, std=config.init_std)
        first = make_encoding(config, 0)
        rest = [] if first.shared else [make_encoding(config, i) for i in range(1, config.layers)]
        self.encodings = nn.ModuleList([first, *rest])

    @property
    def encoding(self) -> Encoding:
        """The first layer's encoding, which speaks for all of them."""
        return cast(Encoding, self.encodings[0])

    def use_draw(self, draw: int) -> None:
        """Evaluates from now on under an encoding's frozen random choice of this number."""
        for module in self.encodings.modules():
            if isinstance(module, Encoding):
                module.draw = draw

    def forward(
        self,
        tokens: Tensor,
        cache: Cache | None = None,
        *,
        positions: Tensor | None = None,
        backend: Backend = "auto",
    ) -> Tensor:
        """Next-token logits.

        Args:
            tokens: (B, T) ids; with a cache only those that it does not hold yet.
            cache: what earlier calls have seen; this call adds to it.
            positions: (B or 1, S) position ids in place of the encoding's own.
            backend: of the attention.

        Returns:
            (B, T, vocab_size).

        Raises:
            InputError: a position id past the encoding's table.
        """
        logits: Tensor = self.lm_head(self.hidden(tokens, cache, positions, backend))
        return logits

    def hidden(
        self,
        tokens: Tensor,
        cache: Cache | None = None,
        positions: Tensor | None = None,
        backend: Backend = "auto",
        trace: list[Tensor] | None = None,
    ) -> Tensor:
        """Normalised output of the last layer, (B, T, C); arguments as in `forward`.

        Args:
            trace: a list that every layer's attention logits (B, H, T, S) are appended to.
        """
        index, everything = (None, tokens) if cache is None else cache.begin(tokens)
        own = self.encoding.positions(everything)
        if positions is None:
            positions = self.encoding.draw_ids(own) if self.training else own
        elif own.dim() == 3:  # what is given takes the place of the first of several
            first, rest = positions[..., None], own[..., 1:]
            batch = max(len(first), len(rest))
            positions = torch.cat([first.expand(batch, -1, -1), rest.expand(batch, -1, -1)], dim=-1)
        at_queries = positions
        if index is not None:
            rows = torch.arange(len(index), device=index.device)[:, None]
            at_queries = positions.expand(len(index), *positions.shape[1:])[rows, index]
        self._check(at_queries)
        embedded = self.embed_tokens(tokens)
        x = precisely(self.encoding.embed, embedded, at_queries).to(embedded.dtype)
        state = precisely(self.encoding.begin, x, at_queries)
        context = Context(positions, at_queries, index, cache, backend, trace)
        for i, block in enumerate(self.layers):
            encoding = cast(Encoding, self.encodings[min(i, len(self.encodings) - 1)])
            if i < len(self.encodings):  # one that is shared has one bias for all layers
                bias = precisely(encoding.bias, at_queries, positions)
                context = replace(context, bias=bias)
            x, state = block(x, i, encoding, state, context)
        if cache is not None:
            cache.end(tokens.shape[1])
        normed: Tensor = self.norm(x)
        return normed

    def token_losses(
        self, tokens: Tensor, targets: Tensor, *, backend: Backend = "auto", chunk: int = 4096
    ) -> Tensor:
        """Cross-entropy of each target in nats: (B, T), (B, T) -> (B, T) float32 or wider.

        Zero where the target is IGNORE. The vocabulary's logits are made for `chunk` tokens at
        a time: all at once they would be the largest tensor by far.
        """
        hidden = self.hidden(tokens, backend=backend).flatten(0, 1)
        flat = targets.flatten()
        losses = []
        for some, ids in zip(hidden.split(chunk), flat.split(chunk), strict=True):
            logits = self.lm_head(some)
            logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
            losses.append(F.cross_entropy(logits, ids, ignore_index=IGNORE, reduction="none"))
        return torch.cat(losses).view_as(targets)

    def _check(self, positions: Tensor) -> None:
        limit = self.encoding.max_position
        ids = positions if positions.dim() == 2 else positions[..., 0]
        if limit is not None and (last := int(ids.max())) >= limit:
            raise InputError(
                f"this encoding has positions 0 to {limit - 1} and was asked for {last}: "
                "use shorter sequences or a larger table"
            )
