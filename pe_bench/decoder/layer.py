"""An attention layer with an encoding, for use in your own model."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from pe_bench.config import ModelConfig
from pe_bench.decoder import hooks
from pe_bench.decoder.attention import BACKENDS, Backend, reason_against
from pe_bench.decoder.block import Attention, AttentionOutput, Context
from pe_bench.decoder.forward_pass import ForwardPass
from pe_bench.decoder.layer_checks import check_layers
from pe_bench.decoder.model import MakeEncoding, make_in_float32
from pe_bench.decoder.token_positions import find_positions
from pe_bench.encoding import Encoding
from pe_bench.errors import InputError
from pe_bench.positions import Positions, State


class AttentionLayer(nn.Module):
    """Causal self-attention with its projections and an encoding: (B, T, C) -> (B, T, C).

        layer = AttentionLayer(ModelConfig(width=256, heads=4), load_encoding("alibi"))
        y = layer(x)

    A plain call raises an error for encodings that do more. An encoding that changes the token
    embeddings, such as `sinusoidal`, needs a call of `embed` before the first layer, and `attend`.
    An encoding that passes a state from layer to layer, such as `tape`, needs `attend` and
    `update_state`. `AttentionLayers` makes all layers of a model and does this for any encoding,
    with a KV cache and packed documents.

    Args:
        config: shape of the model: width, heads, train_length and so on.
        make_encoding: return value of `load_encoding`, or the class of an encoding.
        layer: index of this layer among `config.layers`, from 0.
        encoding: an existing instance to use, such as the first layer's if all layers share an
            encoding; None: a new instance.

    Raises:
        FaultyPlugin: the encoding has both a sink and a replacement of the softmax.
        InputError: `make_encoding` is a name.
    """

    def __init__(
        self,
        config: ModelConfig,
        make_encoding: MakeEncoding,
        layer: int = 0,
        *,
        encoding: Encoding | None = None,
    ) -> None:
        super().__init__()
        self.width = config.width
        self.attention = Attention(config, layer)
        if encoding is None:
            encoding = make_in_float32(make_encoding, config, layer)
        self.encoding = encoding.at_layer(layer)
        check_layers([self.encoding], [0])

    def forward(
        self, x: Tensor, forward_pass: ForwardPass | None = None, *, tokens: Tensor | None = None
    ) -> Tensor:
        """Return attended tokens, (B, T, C) -> (B, T, C).

        Args:
            x: normalised input of the attention.
            forward_pass: return value of `AttentionLayers.begin`; None: a plain call, without a
                cache.
            tokens: (B, T) ids for a plain call; needed if the positions depend on the tokens.

        Raises:
            InputError: the encoding changes embeddings or passes on a state, which a plain call
                would drop; a call of `forward_pass` is missing; or x has a wrong shape.
        """
        self._check_shape(x)
        if forward_pass is not None:
            return forward_pass.attend(self.attention, self.encoding, x)
        name = type(self.encoding).__name__
        if hooks.is_stateful(self.encoding):
            raise InputError(
                f"{name} passes a state from layer to layer: call attend(x, state=...) and then "
                "update_state, instead of the layer itself"
            )
        if self.encoding.overrides("embed"):
            raise InputError(
                f"{name} changes the token embeddings: call x = embed(x) before the first layer, "
                "and attend(x) instead of the layer itself"
            )
        attended, _ = self.attend(x, tokens=tokens)
        return attended

    def embed(self, x: Tensor, *, tokens: Tensor | None = None) -> Tensor:
        """Apply the encoding to token embeddings: (B, T, C) -> (B, T, C)."""
        return hooks.embed(self.encoding, x, self._positions(x, tokens))

    def attend(
        self,
        x: Tensor,
        *,
        state: State = None,
        tokens: Tensor | None = None,
        backend: Backend = "auto",
    ) -> tuple[Tensor, Tensor | None]:
        """Return attended tokens (B, T, C) and the encoding's attended values (B, H, T, E), if any.

        Args:
            x: (B, T, C).
            state: return value of `prepare` or `update_state`; None: the state of a first layer.
            tokens: (B, T) ids, as in `forward`.
            backend: implementation of attention.

        Raises:
            InputError: x or the tokens have a wrong shape.
        """
        positions = self._positions(x, tokens)
        state = hooks.prepare(self.encoding, x, positions) if state is None else state
        context = Context(positions, cache=None, backend=backend)
        attended: AttentionOutput = self.attention(x, self.encoding, state, context)
        return attended

    def backends(
        self, x: Tensor, *, tokens: Tensor | None = None, device: str = "cuda"
    ) -> list[Backend]:
        """Return the backends that support x, (B, T, C), on a device, without a cache."""
        positions = self._positions(x, tokens)
        positions = replace(positions, state=hooks.prepare(self.encoding, x, positions))
        features = hooks.token_features(self.encoding, x, positions)
        if features is not None:
            features = hooks.scan_features(self.encoding, features)
            positions = replace(positions, features=features)
        terms = hooks.logit_terms(self.encoding, positions, len(x))
        q = self.attention.split_heads(self.attention.q_proj(x))  # (B, H, T, D)
        return [b for b in BACKENDS if reason_against(b, q, q, terms, device=device) is None]

    def prepare(self, x: Tensor, *, tokens: Tensor | None = None) -> State:
        """Return the state that the first layer receives, given the token embeddings (B, T, C)."""
        return hooks.prepare(self.encoding, x, self._positions(x, tokens))

    def update_state(
        self, state: State, extra: Tensor | None, mlp_in: Tensor, mlp_out: Tensor
    ) -> State:
        """Return the next layer's state.

        Args:
            state: state of this layer.
            extra: second return value of `attend`.
            mlp_in: normalised input of the layer's MLP, (B, T, C).
            mlp_out: output of the MLP before it is added to the residual, (B, T, C).
        """
        return hooks.update_state(self.encoding, state, extra, mlp_in, mlp_out)

    def _check_shape(self, x: Tensor) -> None:
        if x.dim() != 3 or x.shape[-1] != self.width:
            raise InputError(
                f"x is {tuple(x.shape)}, but must be (B, T, {self.width}), a vector for each token"
            )

    def _positions(self, x: Tensor, tokens: Tensor | None) -> Positions:
        self._check_shape(x)
        if tokens is None:
            if self.encoding.overrides("positions"):
                raise InputError(
                    f"{type(self.encoding).__name__} computes positions from the tokens: "
                    "call the layer with tokens=ids (B, T)"
                )
            tokens = torch.zeros(x.shape[:2], dtype=torch.long, device=x.device)
        elif tokens.shape != x.shape[:2]:
            raise InputError(
                f"tokens are {tuple(tokens.shape)}, but must be {tuple(x.shape[:2])}, one id for "
                "each vector of x"
            )
        return find_positions(self.encoding, tokens)
