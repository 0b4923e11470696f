"""One forward pass through attention layers of your own model."""

from collections.abc import Sequence

from torch import Tensor

from pe_bench.decoder import hooks
from pe_bench.decoder.attention import Backend
from pe_bench.decoder.block import Attention, AttentionOutput, Context
from pe_bench.decoder.cache import Cache
from pe_bench.decoder.documents import Documents
from pe_bench.decoder.layer_kinds import begin_positions, embed_and_prepare
from pe_bench.decoder.pass_checks import check_pass
from pe_bench.encoding import Encoding
from pe_bench.errors import InputError
from pe_bench.positions import State


class ForwardPass:
    """Positions, cache, documents and states that all layers of one forward pass share.

    Made by `AttentionLayers.begin`, which describes the arguments.
    """

    def __init__(
        self,
        encoding: Encoding,
        tokens: Tensor,
        *,
        cache: Cache | None = None,
        position_ids: Tensor | None = None,
        final_lengths: Tensor | None = None,
        backend: Backend = "auto",
    ) -> None:
        _check(encoding, tokens, cache, position_ids, final_lengths)
        self.encoding = encoding
        self.cache = cache
        self.shape = tokens.shape
        self.documents: Documents | None = None
        self._ready = not encoding.overrides("embed")
        self._states: dict[int, State] = {}  # by layer
        self._last: tuple[int, Encoding, Tensor | None] | None = None
        if position_ids is not None:
            self.documents = Documents(position_ids.to(tokens.device).expand(tokens.shape))
            position_ids = self.documents.ids
            final_lengths = self.documents.lengths.cpu()
            tokens = self.documents.split(tokens)
        self._positions = begin_positions(encoding, tokens, cache, position_ids, final_lengths)
        self._backend = backend

    def embed(self, x: Tensor) -> Tensor:
        """Apply the encoding to token embeddings, and prepare its states: (B, T, C) -> (B, T, C).

        Call it once, before the first layer.
        """
        rows, states = embed_and_prepare(self.encoding, self._split(x), self._positions)
        for kind, state in enumerate(states):
            self._states[self._first(kind)] = state
        self._ready = True
        return self._join(rows)

    def attend(self, attention: Attention, encoding: Encoding, x: Tensor) -> Tensor:
        """Return the output of a layer's attention, (B, T, C) -> (B, T, C).

        Args:
            attention: attention of the layer.
            encoding: encoding of the layer.
            x: normalised input of the attention.

        Raises:
            InputError: a call that the encoding needs is missing, or x has the wrong shape.
        """
        layer = attention.layer
        name = type(encoding).__name__
        kind = self.encoding.kind_of(layer)
        first = self._first(kind)
        lacks_state = hooks.is_stateful(encoding) and first not in self._states
        if not self._ready or lacks_state:
            raise InputError(f"{name} needs the embeddings: call embed(x) before the first layer")
        if encoding.overrides("update_state") and layer not in self._states:
            raise InputError(
                f"{name} passes a state from layer to layer: call update_state(mlp_in, mlp_out) "
                "after the MLP of each layer"
            )
        state = self._states.get(layer, self._states.get(first))
        context = Context(self._positions[kind], self.cache, self._backend)
        attended: AttentionOutput = attention(self._split(x), encoding, state, context)
        self._last = layer, encoding, attended.extra
        return self._join(attended.tokens)

    def update_state(self, mlp_in: Tensor, mlp_out: Tensor) -> None:
        """Compute the state of the next layer, after the MLP of the layer that was called last.

        Only encodings that pass a state from layer to layer, such as TAPE, need it; a model for any
        encoding calls it in each layer.

        Args:
            mlp_in: normalised input of the MLP, (B, T, C).
            mlp_out: output of the MLP before it is added to the residual, (B, T, C).

        Raises:
            InputError: no layer has been called, or a tensor has the wrong shape.
        """
        if self._last is None:
            raise InputError("update_state follows the MLP of a layer: call the layer first")
        layer, encoding, extra = self._last
        if not encoding.overrides("update_state"):
            return
        kind = self.encoding.kind_of(layer)
        later = range(layer + 1, self.encoding.model.layers)
        following = [other for other in later if self.encoding.kind_of(other) == kind]
        if following:
            # One state for each layer: activation checkpointing calls them again, in reverse order.
            self._states[following[0]] = hooks.update_state(
                encoding, self._states[layer], extra, self._split(mlp_in), self._split(mlp_out)
            )

    def end(self) -> None:
        """Finish the pass after the last layer: the cache then has its tokens.

        Without a cache it does nothing.
        """
        if self.cache is not None:
            self.cache.end(self.shape[1])

    def _first(self, kind: int) -> int:
        """Return the first layer of a kind."""
        layers = range(self.encoding.model.layers)
        return next(layer for layer in layers if self.encoding.kind_of(layer) == kind)

    def _split(self, x: Tensor) -> Tensor:
        """Make each document a row: (B, T, C) -> (documents, t, C).

        Raises:
            InputError: the tensor has other rows or tokens than the pass.
        """
        if x.shape[:2] != self.shape:
            raise InputError(
                f"the pass has {tuple(self.shape)} tokens, but this tensor is {tuple(x.shape)}: "
                "give a vector for each token"
            )
        return x if self.documents is None else self.documents.split(x)

    def _join(self, x: Tensor) -> Tensor:
        return x if self.documents is None else self.documents.join(x)


def _name_uncached(layer_kinds: Sequence[Encoding]) -> str | None:
    """Return the name of the first encoding that cannot be cached, or None."""
    for kind in layer_kinds:
        if not kind.prefix_consistent:
            return type(kind).__name__
    return None


def _check(
    encoding: Encoding,
    tokens: Tensor,
    cache: Cache | None,
    position_ids: Tensor | None,
    final_lengths: Tensor | None,
) -> None:
    """Refuse arguments of a pass that do not fit.

    Raises:
        InputError: they do not fit.
    """
    check_pass(encoding, tokens, cache)
    if cache is not None:
        uncached = _name_uncached(encoding.layer_kinds)
        if uncached is not None:
            raise InputError(
                f"{uncached} has no cache, because the output at a token depends on the number of "
                "tokens after it: pass all tokens again for each new one"
            )
        if position_ids is not None:
            raise InputError(
                "position_ids do not work with a cache: give each document a row, padded on the "
                "right, and call cache.truncate(lengths) after the prompts"
            )
        needed = cache.filled + tokens.shape[1]
        if needed > cache.capacity:
            raise InputError(
                f"the cache holds {cache.capacity} tokens, not {needed}: make a larger one, or "
                f"call cache.grow({needed})"
            )
        if cache.begun:
            raise InputError(
                "the previous pass has not ended, and this one would overwrite its tokens: call "
                "end() after the last layer"
            )
    if final_lengths is not None and (cache is not None or position_ids is not None):
        owner = "Cache" if cache is not None else "position_ids"
        raise InputError(f"{owner} already gives final_lengths: leave them out")
    if position_ids is None:
        return
    rows, length = tokens.shape
    if position_ids.shape not in ((rows, length), (1, length)):
        raise InputError(
            f"position_ids are {tuple(position_ids.shape)}, but must be "
            f"{(rows, length)} or {(1, length)}, like the tokens"
        )
    if position_ids.is_floating_point() or bool((position_ids < 0).any()):
        raise InputError(
            "position_ids must be integers from 0 on that begin again in each document"
        )
