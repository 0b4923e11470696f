"""The interface of a positional encoding. Writing a new one? This is the file to read.

Positions can enter a decoder layer in many places. Each is a hook below; each does nothing by
default, and an encoding overrides the few that it needs. Read as far as yours goes:

    page 1  position ids, embeddings, queries and keys, biases; four facts
    page 2  the same as functions of the tokens; biases that cost no memory; rewriting logits
    page 3  which keys are seen; temperature; what stands in for the softmax; a loss
    page 4  random positions; what checks and lists want to know
    page 5  a state that layers hand on: `StatefulEncoding`, at the end

Most hooks are given `positions: Positions`: the ids `positions.query` of the new tokens and
`positions.key` of all tokens so far, their `distance`, and more (pe_bench/positions.py).

The engine keeps the mask, the cache, the softmax and the choice of a fast kernel to itself, so
that every encoding is compared inside the same attention.

Shapes: B sequences, T new tokens, S tokens so far (S = T unless decoding), H heads, G key heads
(G = H unless grouped-query), D channels per head, C = H D channels of the model. The engine checks
the shape of what a hook returns.

Numbers: every hook runs outside autocast on float32 tensors (float64 in a float64 model) and may
return the same; the engine casts to the model's type last. Parameters stay float32 even under
`model.bfloat16()`. Published runs have lost most of their positions to bfloat16; here they cannot.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from pe_bench.config import ModelConfig
from pe_bench.errors import InputError
from pe_bench.positions import Positions, State, random_ids, separable_matrix
from pe_bench.visibility import EVERYTHING, Visibility

EVAL_SAMPLES = 4  # frozen draws of random ids that evaluation is averaged over


class Tunable(NamedTuple):
    """An option that the search of `--tune` may choose, as it chooses the learning rate.

    It is a constant that was made for other lengths than those of the model, such as the base of a
    rotation. Weights have the same shapes under all of its values.

    Attributes:
        option: its name.
        values: shape of the model -> up to two values to try beside the default.
    """

    option: str
    values: Callable[[ModelConfig], Sequence[float]]


class Encoding(nn.Module):
    """One positional encoding.

    The constructor's keyword-only parameters are the options of its spec: with
    `def __init__(self, model, layer=0, *, base: float = 10_000.0)` people write `mine:base=5e5`.
    One that ends in `**options` and hands them to its parent has the parent's options too.
    Raise `InputError` for a value out of range.

    Args:
        model: shape of the model, for `heads`, `head_dim`, `width`, `train_length`.
        layer: index of the layer that this instance serves, from 0.
        train_positions: position ids in training. "offset": one random number is added to all;
            "random": a random ascending choice; both below `max_train_position`, drawn in each
            forward for all rows alike.
        max_train_position: number of position ids to draw from.
        eval_positions: position ids in evaluation. "trained": frozen random ones where training
            has random ones, contiguous ones elsewhere; "contiguous": always those.
    """

    # Page 1: positions.

    shared: bool = True
    """One instance serves all layers; False where each layer has parameters of its own."""

    prefix_consistent: bool = True
    """The output at a token does not depend on how many tokens follow. Needed by the KV cache.
    Under `needs_final_length` it may depend on the length of the finished sequence."""

    shift_invariant: bool = False
    """The output does not change when every position id grows by the same number."""

    max_position: int | None = None
    """Number of position ids that exist (a table's rows), None if there is no limit."""

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

        Several ids per token, (B or 1, S, K), are handed to the other hooks as they are;
        `max_position` applies to the first of them.
        """
        return torch.arange(tokens.shape[1], device=tokens.device)[None]

    def embed(self, x: Tensor, positions: Positions) -> Tensor:
        """Change the token embeddings: (B, T, C) -> (B, T, C)."""
        return x

    def transform_qk(self, q: Tensor, k: Tensor, positions: Positions) -> tuple[Tensor, Tensor]:
        """Change queries (B, H, T, D) and keys (B, G, T, D) of the new tokens before their product.

        The new keys stand at `positions.query`, as the new queries do: older keys are cached.
        """
        return q, k

    def distance_bias(self, distances: Tensor) -> Tensor | None:
        """Return what is added to the logits at some distances i - j: (N,) -> (H, N)."""
        return None

    def bias(self, positions: Positions) -> Tensor | None:
        """Return what is added to the logits, (B or 1, H or 1, T, S).

        For a bias of anything but the distance; the engine asks for some of the queries alone
        where T x S is large. One for all layers is made once where `shared`; elsewhere it may read
        `positions.features` and, of the queries, `positions.query_features`.
        """
        distance = positions.distance  # (B or 1, T, S)
        by_distance = self.distance_bias(distance.flatten())  # (H, B T S)
        if by_distance is None:
            return None
        # Keys go last in memory, which fused attention asks of a bias.
        bias: Tensor = by_distance.unflatten(1, distance.shape).transpose(0, 1).contiguous()
        return bias

    # Page 2: content.

    qk_width: int | None = None
    """Channels of the queries and keys that `transform_qk` returns, None for those it is given."""

    divide_scores: bool = True
    """The product of queries and keys is divided by sqrt(D)."""

    def token_features(self, x: Tensor, positions: Positions) -> Tensor | None:
        """Return features of the new tokens, (B, H, T, F), which the engine caches beside k and v.

        x is the input of the attention, (B, T, C).
        """
        return None

    def scan_features(self, features: Tensor) -> Tensor:
        """Return `positions.features`: (B, H, S, F) of all tokens -> (B, H, S, any).

        A causal function along the sequence: a running sum, a short convolution.
        """
        return features

    def separable_bias(self, positions: Positions) -> Tensor | None:
        """Return c, (B or 1, H, S), of a bias that separates: logit_ij += c_i - c_j.

        It costs no T x S memory.
        """
        return None

    def product(self, q: Tensor, k: Tensor, positions: Positions) -> Tensor:
        """Return what takes the place of q k^T / sqrt(D), (B, H, T, S).

        Overriding it rules out fused kernels. Biases are added to it. Where T x S is large, it is
        called for some of the queries and the keys that they may look at, and again for the
        gradient. It may read parameters, `positions` and nothing else.

        Args:
            q: (B, H, T, D), after `transform_qk`.
            k: (B, H, S, D), after `transform_qk`.
        """
        products = q @ k.mT
        return products / math.sqrt(q.shape[-1]) if self.divide_scores else products

    def prepare_product(self, k: Tensor, positions: Positions) -> Tensor | None:
        """Return `positions.prepared`, (B, H, S, F): what all calls of `product` share, or None.

        Called once for a layer. A call for some queries gets the rows of the keys that they may
        look at: all up to the last of them. Where blocks of queries begin, is a multiple of
        `pe_bench.positions.ALIGNED`.

        Args:
            k: (B, H, S, D), after `transform_qk`.
        """
        return None

    def rewrite_logits(self, scores: Tensor, q: Tensor, k: Tensor, positions: Positions) -> Tensor:
        """Return other logits (B, H, T, S). Called as `product`, which it follows.

        Args:
            scores: (B, H, T, S), divided, with both biases added, before the causal mask.
            q: (B, H, T, D), after `transform_qk`.
            k: (B, H, S, D), after `transform_qk`.
        """
        return scores

    # Page 3: the softmax and what it is taken over.

    visible: Visibility = EVERYTHING
    """Keys that a query may look at: `Visibility(window=256)`. No mask is needed for it, and the
    cache forgets what is out of sight."""

    def temperature(self, positions: Positions) -> Tensor | None:
        """Return factors of the product of queries and keys, (B or 1, H or 1, T), or None.

        Biases are not multiplied. `positions.count` is the number of keys that each query sees.
        """
        return None

    def sink(self) -> Tensor | None:
        """Return a logit per head, (H,), that takes part in the softmax and has no value, or None.

        What a head gives to it is lost: the shares of the values then sum to less than one.
        """
        return None

    def normalise(self, logits: Tensor) -> Tensor:
        """Return the shares of the values, in place of softmax: (B, H, T, S) -> (B, H, T, S).

        Overriding it rules out fused kernels. It may read no parameters.

        Args:
            logits: -inf where a query may not look; the share there must be 0.
        """
        return logits.softmax(-1)

    def extra_loss(self) -> Tensor | None:
        """Return what is added to the loss of a training step, a scalar, or None.

        Called after each forward in training. It is no part of the loss that is reported.
        """
        return None

    # Page 4: random positions, checks, lists.

    parameters_per_layer: ClassVar[str] = "0"
    """Number of parameters under the default options, in C (width), D (head_dim), H (heads), L
    (train_length); "once" at its end where all layers share them. For `pe-bench list`."""

    name: ClassVar[str] = ""
    """Name in tables and pictures; "": that of the file. Shipped encodings are called as their
    files."""

    family: ClassVar[str] = ""
    """Where positions enter, such as "rotary" or "bias"; for the report."""

    colour: ClassVar[str] = ""
    """Colour in figures, as "#rrggbb"; "": one that follows from the name."""

    marker: ClassVar[str] = ""
    """Marker of matplotlib in figures; "": one that follows from the name."""

    version: ClassVar[int] = 1
    """Raise it in a shipped encoding when its numbers change. Those that extend it or import from
    it, or wrap it, have other results then too."""

    variants: ClassVar[tuple[str, ...]] = ()
    """Further settings that every check and test tries, as a spec writes them: "base=500000"."""

    tunable: ClassVar[Tunable | None] = None
    """The constant that the search of `--tune` may choose, if there is one. It is not searched
    where a spec gives it, nor in a subclass whose constructor does not have it."""

    needs_final_length: bool = False
    """Position ids depend on the length of the finished sequence: see `draw_positions`."""

    eval_samples: int = 1
    """Number of frozen random choices that evaluation is averaged over."""

    eval_sample: int = 0
    """The choice that evaluation is using, from 0."""

    logits_grow: bool = False
    """Attention logits grow with the position by design, as under a temperature of log n. Their
    rounding errors may then grow alike in the check of bfloat16."""

    @classmethod
    def options_of_llama(cls, rotation: Mapping[str, Any], length: int) -> dict[str, Any]:
        """Return the options under which this encoding turns queries and keys as a Llama does.

        An empty dict where it does not rotate, or has no such options.

        Args:
            rotation: `rope_parameters` of a Hugging Face config.
            length: its `max_position_embeddings`.

        Raises:
            InputError: a rotation that the options cannot express.
        """
        return {}

    def llama_fields(self) -> dict[str, Any] | None:
        """Return the fields of a Hugging Face config under which a Llama computes the same.

        These are `rope_parameters` and `max_position_embeddings`. None where there are none:
        another encoding, or a setting that Llama does not have.
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

        A row's tokens keep their ids while it grows: they are drawn for the finished sequence, and
        tokens so far have the first of them. A draw that depends on the text reads what
        `positions` has found in it, in an id of its own. This default does what `train_positions`
        and `eval_positions` say.

        Args:
            ids: what `positions` returned, (B or 1, S) or (B or 1, S, K).
            lengths: tokens of each finished sequence, at least the training length; (B,) on the
                CPU.

        Returns:
            (B or 1, S) or (B or 1, S, any). Rows may differ, at the price of a bias for each.
        """
        limit = self.max_train_position
        if self.train_positions == "offset" and self.training:
            span = int(ids.max()) + 1
            if span > limit:
                raise InputError(
                    f"{span} positions do not fit below max_train_position {limit}: raise it"
                )
            return ids + int(torch.randint(limit - span + 1, ()))
        if self.train_positions != "random" or not (self.training or self.needs_final_length):
            return ids
        if int(ids.max()) >= int(lengths.max()):  # it counts something else than tokens
            lengths = lengths.clamp(min=int(ids.max()) + 1)
        if self.training:  # one draw for all rows: a bias is then made once
            drawn = random_ids(1, int(lengths.max()), limit, None, ids.device)
        else:
            generator = torch.Generator().manual_seed(self.eval_sample)
            drawn = random_ids(1, lengths, limit, generator, ids.device)
        rows = max(len(ids), len(drawn))
        drawn = drawn.expand(rows, -1)  # (B or 1, longest)
        return drawn.gather(1, ids.expand(rows, -1))

    @property
    def leads(self) -> Sequence["Encoding"]:
        """Encodings that choose positions, change embeddings and prepare states.

        It is the one that serves all layers, but for a combination of several (`Layers`).
        """
        return [self]

    def lead_of(self, layer: int) -> int:
        """Return which of `leads` a layer belongs to."""
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
        """Move between devices and widen, but never narrow below float32 (see the top)."""

        def keep_float32(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            narrowed = moved.is_floating_point() and moved.dtype.itemsize < 4
            return tensor.to(moved.device, torch.float32) if narrowed else moved

        super()._apply(keep_float32, recurse)  # type: ignore[no-untyped-call]
        return self


class StatefulEncoding(Encoding):
    """Page 5: an encoding whose layers hand on a state, which hooks see as `positions.state`."""

    rotation_equivariant: bool = False
    """The output does not change when `rotate_state` rotates the states of all tokens alike."""

    permutation_equivariant: bool = True
    """`update_state` treats all tokens alike: permuting them permutes its result."""

    def prepare(self, x: Tensor, positions: Positions) -> State:
        """Return the first layer's state. x: embeddings (B, T, C) of the new tokens."""
        return None

    def extra_values(self, state: State) -> Tensor | None:
        """Return values (B or 1, H or G, T, E) to be averaged by attention beside v."""
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

        For checking `rotation_equivariant`; needed only where that is declared.
        """
        raise NotImplementedError
