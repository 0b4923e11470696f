"""The interface of a positional encoding. Writing a new one? This is the file to read.

Positions can enter a decoder layer in many places. Each is a hook below; each does nothing by
default, and an encoding overrides the few that it needs. Read as far as yours goes:

    page 1  position ids, embeddings, queries and keys, biases; four facts
    page 2  the same as functions of the tokens; biases that cost no memory; rewriting logits
    page 3  visible keys; temperature; a replacement of the softmax; an auxiliary loss
    page 4  random positions; facts for checks and lists
    page 5  a state that is passed from layer to layer: `StatefulEncoding`, at the end

Most hooks receive `positions: Positions`: the position ids `positions.query` of the new tokens and
`positions.key` of all tokens so far, their `distance`, and more (pe_bench/positions.py).

The mask, the cache, the softmax and the choice of a fast kernel belong to the engine, so every
encoding is compared within the same attention.

Shapes: B sequences, T new tokens, S tokens so far (S = T unless decoding), H heads, G key heads
(G = H unless grouped-query), D channels per head, C = H D channels of the model. The engine checks
the shapes of all return values.

Precision: every hook runs outside autocast on float32 tensors (float64 in a float64 model) and may
return the same; the engine casts to the model's dtype last. Parameters stay float32 even under
`model.bfloat16()`. Some published runs rounded most of their positions away in bfloat16; this
prevents it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from pe_bench.config import ModelConfig
from pe_bench.errors import InputError
from pe_bench.positions import Positions, State, separable_matrix
from pe_bench.random_ids import random_ids
from pe_bench.visibility import EVERYTHING, Visibility

EVAL_SAMPLES = 4  # frozen draws of random ids; evaluation averages over them


class Tunable(NamedTuple):
    """An option that the search of `--tune` may choose, as it chooses the learning rate.

    It is a constant that its authors chose for other lengths than those of the model, such as the
    base of a rotation. The shapes of the parameters do not depend on it.

    Attributes:
        option: name of the option.
        values: maps the shape of the model to up to two values to try besides the default.
    """

    option: str
    values: Callable[[ModelConfig], Sequence[float]]


class Encoding(nn.Module):
    """One positional encoding.

    The constructor's keyword-only parameters are the options of its spec: with
    `def __init__(self, model, layer=0, *, base: float = 10_000.0)` users write `mine:base=5e5`.
    A constructor that takes `**options` and passes them to its parent has the parent's options
    too. Raise `InputError` for a value out of range.

    Args:
        model: shape of the model, for `heads`, `head_dim`, `width`, `train_length`.
        layer: index of the layer that this instance serves, from 0.
        train_positions: position ids in training. "offset": adds one random number to all ids;
            "random": draws random ids in ascending order. Both stay below `max_train_position`
            and are drawn in each forward, once for all rows.
        max_train_position: number of position ids to draw from.
        eval_positions: position ids in evaluation. "trained": frozen random ids if training
            uses random ones, else contiguous ids; "contiguous": always contiguous ids.
    """

    # Page 1: positions.

    shared: bool = True
    """Whether one instance serves all layers; False if each layer has its own parameters."""

    prefix_consistent: bool = True
    """The output at a token does not depend on the number of tokens after it. The KV cache needs
    this. With `needs_final_length` it may depend on the length of the finished sequence."""

    shift_invariant: bool = False
    """The output does not change when every position id grows by the same number."""

    max_position: int | None = None
    """Number of position ids, such as the rows of a table; None: no limit."""

    def __init__(
        self,
        model: ModelConfig,
        layer: int = 0,
        *,
        train_positions: Literal["contiguous", "offset", "random"] = "contiguous",
        max_train_position: int = 2048,
        eval_positions: Literal["trained", "contiguous"] = "trained",
    ) -> None:
        super().__init__()
        self.model = model
        self.layer = layer
        self.made_from = ""
        """Spec of which it is an instance; empty: its class was called directly."""
        self.train_positions = train_positions
        self.max_train_position = max_train_position
        self.eval_positions = eval_positions
        self._check_train_positions()
        if train_positions == "random" and eval_positions == "trained":
            self.needs_final_length = True
            self.eval_samples = EVAL_SAMPLES
            self.max_position = max_train_position

    def positions(self, tokens: Tensor) -> Tensor:
        """Return the position ids of all tokens so far: (B, S) token ids -> (B or 1, S).

        With several ids per token, (B or 1, S, K), the other hooks receive all of them;
        `max_position` applies to the first one.
        """
        return torch.arange(tokens.shape[1], device=tokens.device)[None]

    def embed(self, x: Tensor, positions: Positions) -> Tensor:
        """Change the token embeddings: (B, T, C) -> (B, T, C)."""
        return x

    def transform_qk(self, q: Tensor, k: Tensor, positions: Positions) -> tuple[Tensor, Tensor]:
        """Change queries (B, H, T, D) and keys (B, G, T, D) of the new tokens before their product.

        The new keys have the ids `positions.query`, as the new queries do: older keys are cached.
        """
        return q, k

    def distance_bias(self, distances: Tensor) -> Tensor | None:
        """Return the bias of the logits at distances i - j: (N,) -> (H, N), or None."""
        return None

    def bias(self, positions: Positions) -> Tensor | None:
        """Return the bias of the logits, (B or 1, H or 1, T, S), or None.

        For a bias that depends on more than the distance. If T x S is large, the engine calls it
        for blocks of queries. If `shared`, it is computed once for all layers; otherwise it may
        read `positions.features` and `positions.query_features`.
        """
        distance = positions.distance  # (B or 1, T, S)
        by_distance = self.distance_bias(distance.flatten())  # (H, B T S)
        if by_distance is None:
            return None
        # Fused attention needs a bias that is contiguous along the keys.
        bias: Tensor = by_distance.unflatten(1, distance.shape).transpose(0, 1).contiguous()
        return bias

    # Page 2: content.

    qk_width: int | None = None
    """Channels of the queries and keys that `transform_qk` returns; None: as many as its input."""

    divide_scores: bool = True
    """Whether the query-key product is divided by sqrt(D)."""

    def token_features(self, x: Tensor, positions: Positions) -> Tensor | None:
        """Return features of the new tokens, (B, H, T, F), which the engine caches with k and v.

        Args:
            x: input of the attention, (B, T, C).
            positions: positions of the tokens.
        """
        return None

    def scan_features(self, features: Tensor) -> Tensor:
        """Return `positions.features`: (B, H, S, F) of all tokens -> (B, H, S, any).

        A causal function along the sequence, such as a cumulative sum or a short convolution.
        """
        return features

    def separable_bias(self, positions: Positions) -> Tensor | None:
        """Return c, (B or 1, H, S), of a separable bias: logit_ij += c_i - c_j; or None.

        A separable bias needs no T x S memory.
        """
        return None

    def product(self, q: Tensor, k: Tensor, positions: Positions) -> Tensor:
        """Return logits instead of q k^T / sqrt(D), (B, H, T, S).

        Overriding it rules out fused kernels. Biases are added to the result. If T x S is large,
        it is called for blocks of queries with the keys that these may attend to, and again in the
        backward pass. It may read parameters and `positions`, nothing else.

        Args:
            q: (B, H, T, D), after `transform_qk`.
            k: (B, H, S, D), after `transform_qk`.
        """
        products = q @ k.mT
        return products / math.sqrt(q.shape[-1]) if self.divide_scores else products

    def prepare_product(self, k: Tensor, positions: Positions) -> Tensor | None:
        """Return `positions.prepared`, (B, H, S, F), for `product` and `rewrite_logits`, or None.

        Called once per layer. A call for a block of queries gets the rows of the keys that these
        may attend to: all keys up to the last query. Blocks of queries begin at a multiple of
        `pe_bench.positions.ALIGNED`.

        Args:
            k: (B, H, S, D), after `transform_qk`.
        """
        return None

    def rewrite_logits(self, scores: Tensor, q: Tensor, k: Tensor, positions: Positions) -> Tensor:
        """Return new logits (B, H, T, S). Called after `product`, for the same queries and keys.

        Args:
            scores: logits (B, H, T, S), scaled, with both biases added, before the causal mask.
            q: (B, H, T, D), after `transform_qk`.
            k: (B, H, S, D), after `transform_qk`.
        """
        return scores

    # Page 3: the softmax and its keys.

    visible: Visibility = EVERYTHING
    """Keys that a query may attend to, such as `Visibility(window=256)`. It needs no mask, and the
    cache drops keys that no later query can attend to."""

    def temperature(self, positions: Positions) -> Tensor | None:
        """Return factors of the query-key product, (B or 1, H or 1, T), or None.

        Biases are not scaled. `positions.count` is the number of keys that each query attends to.
        """
        return None

    def sink(self) -> Tensor | None:
        """Return a logit per head, (H,), that takes part in the softmax without a value, or None.

        The weight given to the sink is discarded, so attention weights then sum to less than 1.
        """
        return None

    def normalise(self, logits: Tensor) -> Tensor:
        """Return attention weights from logits, instead of softmax: (B, H, T, S) -> (B, H, T, S).

        Overriding it rules out fused kernels. It must not read parameters.

        Args:
            logits: -inf at masked keys; their attention weight must be 0.
        """
        return logits.softmax(-1)

    def extra_loss(self) -> Tensor | None:
        """Return an auxiliary loss, a scalar, which is added to that of a training step, or None.

        Called after each forward in training. The reported loss does not include it.
        """
        return None

    # Page 4: random positions, checks, lists.

    parameters_per_layer: ClassVar[str] = "0"
    """Number of parameters with the default options, in terms of C (width), D (head_dim), H
    (heads), L (train_length) and N (layers). It ends in "once" if it is for all layers together.
    For `pe-bench list`."""

    name: ClassVar[str] = ""
    """Name in tables and figures; empty: the name of the file, as for all shipped encodings."""

    label: ClassVar[str] = ""
    """Name in tables and figures for papers, such as "Half-decay RoPE"; empty: the name in other
        tables, or for shipped encodings the name of the class."""

    family: ClassVar[str] = ""
    """Where positions enter, such as "rotary" or "bias"; for the report."""

    colour: ClassVar[str] = ""
    """Colour in figures, as "#rrggbb"; "": one that follows from the name."""

    marker: ClassVar[str] = ""
    """Marker of matplotlib in figures; "": one that follows from the name."""

    version: ClassVar[int] = 1
    """Raise it in a shipped encoding when its numbers change. It also counts for encodings that
    extend it, import from it or wrap it."""

    variants: ClassVar[tuple[str, ...]] = ()
    """More settings for `pe-bench check` and tests, written as in a spec: "base=500000"."""

    tunable: ClassVar[Tunable | None] = None
    """The constant that the search of `--tune` may choose, if any. It is not searched if the spec
    gives it, nor in a subclass whose constructor does not have it."""

    needs_final_length: bool = False
    """Position ids depend on the length of the finished sequence: see `draw_positions`."""

    eval_samples: int = 1
    """Number of frozen random draws; evaluation averages over them."""

    eval_sample: int = 0
    """Index of the draw in use, from 0."""

    logits_grow: bool = False
    """Attention logits grow with the position by design, as with a temperature of log n. The
    bfloat16 check then tolerates rounding errors that grow with them."""

    @classmethod
    def options_of_llama(cls, rotation: Mapping[str, Any], length: int) -> dict[str, Any]:
        """Return the options that reproduce a Llama's rotation of queries and keys.

        The dict is empty by default. An encoding with `transform_qk` and an option `base: float`
        gets the base of a trained model without this method.

        Args:
            rotation: `rope_parameters` of a Hugging Face config.
            length: its `max_position_embeddings`.

        Raises:
            InputError: the options cannot express the rotation.
        """
        return {}

    def llama_fields(self) -> dict[str, Any] | None:
        """Return the Hugging Face config fields of an equivalent Llama.

        These are `rope_parameters` and `max_position_embeddings`; without positions the dict is
        empty. None if Llama has no such encoding or setting.
        """
        return None

    def _check_train_positions(self) -> None:
        if self.eval_positions == "contiguous" and self.train_positions != "random":
            raise InputError(
                "eval_positions=contiguous has no effect without train_positions=random: "
                "evaluation has the contiguous ones"
            )
        if self.train_positions == "contiguous":
            if self.max_train_position != 2048:
                raise InputError(
                    "max_train_position has no effect without train_positions=offset or "
                    "train_positions=random"
                )
        elif self.max_train_position < self.model.train_length:
            raise InputError(
                "max_train_position must be at least the training length "
                f"{self.model.train_length}, not {self.max_train_position}"
            )

    def draw_positions(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """Replace ids by random ones: fresh ones in training, frozen ones in evaluation.

        Tokens keep their ids while their row grows: the ids are drawn for the finished sequence,
        and the tokens so far have the first of them. A draw that depends on the text reads an
        additional id that `positions` computes from it. This default implements `train_positions`
        and `eval_positions`.

        Args:
            ids: return value of `positions`, (B or 1, S) or (B or 1, S, K).
            lengths: tokens of each finished sequence, at least the training length; (B,) on the
                CPU.

        Returns:
            (B or 1, S) or (B or 1, S, any). If rows differ, each needs its own bias.
        """
        limit = self.max_train_position
        if self.train_positions == "offset" and self.training:
            span = int(ids.max()) + 1
            if span > limit:
                raise InputError(
                    f"{span} positions do not fit below max_train_position {limit}: raise the limit"
                )
            return ids + int(torch.randint(limit - span + 1, ()))
        if self.train_positions != "random" or not (self.training or self.needs_final_length):
            return ids
        if int(ids.max()) >= int(lengths.max()):  # ids do not number the tokens
            lengths = lengths.clamp(min=int(ids.max()) + 1)
        if self.training:  # one draw for all rows, so that they have one bias
            drawn = random_ids(1, int(lengths.max()), limit, None, ids.device)
        else:
            generator = torch.Generator().manual_seed(self.eval_sample)
            drawn = random_ids(1, lengths, limit, generator, ids.device)
        rows = max(len(ids), len(drawn))
        drawn = drawn.expand(rows, -1)  # (B or 1, longest)
        return drawn.gather(1, ids.expand(rows, -1))

    @property
    def layer_kinds(self) -> Sequence["Encoding"]:
        """One encoding for each kind of layer, which makes positions, embeddings and states.

        There is only this one, except in a combination of several encodings (`Layers`).
        """
        return [self]

    def kind_of(self, layer: int) -> int:
        """Return the index of a layer's kind in `layer_kinds`."""
        return 0

    def at_layer(self, layer: int) -> "Encoding":
        """Return the encoding whose hooks a layer calls."""
        return self

    def bias_matrix(self, positions: Positions) -> Tensor | None:
        """Return the sum of `bias` and `separable_bias`, (B or 1, H, T, S), or None."""
        bias = self.bias(positions)
        c = self.separable_bias(positions)
        if c is None:
            return bias
        separable = separable_matrix(c, positions.index)
        return separable if bias is None else separable + bias

    def overrides(self, hook: str) -> bool:
        """Return whether this encoding changes a hook's default."""
        default = getattr(Encoding, hook, None) or getattr(StatefulEncoding, hook)
        return getattr(type(self), hook, default) is not default

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Encoding":
        """Apply a function to all tensors, but keep them at least float32 (see the top)."""

        def keep_float32(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            narrowed = moved.is_floating_point() and moved.dtype.itemsize < 4
            return tensor.to(moved.device, torch.float32) if narrowed else moved

        super()._apply(keep_float32, recurse)  # type: ignore[no-untyped-call]
        return self


class StatefulEncoding(Encoding):
    """Page 5: an encoding whose layers pass on a state, `positions.state` in the hooks.

    A state is None, a tensor, or a tuple of tensors. The tokens are the last axis but one of each
    tensor, as in (B, G, T, F).
    """

    rotation_equivariant: bool = False
    """The output does not change when `rotate_state` rotates the states of all tokens."""

    permutation_equivariant: bool = True
    """Permuting the tokens permutes the result of `update_state` in the same way."""

    def prepare(self, x: Tensor, positions: Positions) -> State:
        """Return the first layer's state. x: embeddings (B, T, C) of the new tokens."""
        return None

    def extra_values(self, state: State) -> Tensor | None:
        """Return values (B or 1, H or G, T, E) that attention averages along with v, or None."""
        return None

    def update_state(
        self, state: State, extra: Tensor | None, mlp_in: Tensor, mlp_out: Tensor
    ) -> State:
        """Return the next layer's state, at the end of each layer.

        Args:
            state: this layer's.
            extra: `extra_values` after attention, (B, H, T, E), or None.
            mlp_in: normalised input of the MLP, (B, T, C).
            mlp_out: output of the MLP before it is added to the residual, (B, T, C).
        """
        return state

    def rotate_state(self, state: State, angles: Tensor) -> State:
        """Rotate every feature plane of a state by its angle, (D/2,), the same for all tokens.

        Used to check `rotation_equivariant`; required only if that is True.
        """
        raise NotImplementedError
