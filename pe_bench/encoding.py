"""The interface of a positional encoding. Writing a new one? This is the file to read.

Positions can enter a decoder layer in nine places. Each is a hook below, each does nothing by
default, and an encoding overrides the few that it needs. The engine keeps the mask, the cache,
the softmax and the choice of a fast kernel to itself, so that every encoding is compared inside
the same attention.

Shapes: B sequences, T new tokens, S tokens so far (S = T unless decoding), H heads, G key heads
(G = H unless grouped-query), D channels per head, C = H D channels of the model.

Numbers: every hook runs outside autocast on float32 tensors (float64 in a float64 model) and may
return the same; the engine casts to the model's type last. Parameters stay float32 even under
`model.bfloat16()`. Published runs have lost most of their positions to bfloat16; here they cannot.
"""

import contextlib
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from pe_bench.config import ModelConfig

State = Any
"""What `begin` returns and layers hand on: None, a tensor, or a tuple of tensors."""

Result = TypeVar("Result")


class Encoding(nn.Module):
    """One positional encoding.

    The constructor's keyword-only parameters are the options of its spec: with
    `def __init__(self, model, layer=0, *, base: float = 10_000.0)` people write `mine:base=5e5`.
    Raise `InputError` for a value out of range.

    Args:
        model: shape of the model, for `heads`, `head_dim`, `width`, `train_length`.
        layer: index of the layer that this instance serves, from 0.
    """

    shared: bool = True
    """One instance serves all layers; False where each layer has parameters of its own."""

    prefix_consistent: ClassVar[bool] = True
    """The output at a token does not depend on how many tokens follow. Needed by the KV cache."""

    shift_invariant: ClassVar[bool] = False
    """The output does not change when every position id grows by the same number."""

    max_position: int | None = None
    """Number of position ids that exist (a table's rows), None if there is no limit."""

    def __init__(self, model: ModelConfig, layer: int = 0) -> None:
        super().__init__()
        self.model = model
        self.layer = layer

    def positions(self, tokens: Tensor) -> Tensor:
        """Position ids of all tokens so far: (B, S) token ids -> (B or 1, S)."""
        return torch.arange(tokens.shape[1], device=tokens.device)[None]

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        """Changes the token embeddings: (B, T, C), (B or 1, T) -> (B, T, C)."""
        return x

    def begin(self, x: Tensor, positions: Tensor) -> State:
        """The state that the first layer receives: (B, T, C), (B or 1, T) -> anything."""
        return None

    def rotate(self, q: Tensor, k: Tensor, state: State) -> tuple[Tensor, Tensor]:
        """Changes queries (B, H, T, D) and keys (B, G, T, D) before their product."""
        return q, k

    def key_features(self, x: Tensor, state: State) -> Tensor | None:
        """Per-token features (B, H, T, F) that `decay` and `logits` will see for all keys.

        x is the input of the attention, (B, T, C). The engine caches them beside k and v.
        """
        return None

    def decay(self, features: Tensor | None, positions: Tensor) -> Tensor | None:
        """A bias that separates, c: (B or 1, H, S) such that logit_ij += c_i - c_j.

        Args:
            features: what `key_features` returned for all keys, (B, H, S, F), or None.
            positions: (B or 1, S).
        """
        return None

    def bias(self, query_positions: Tensor, key_positions: Tensor) -> Tensor | None:
        """Any other bias of two positions: (B or 1, T), (B or 1, S) -> (B or 1, H, T, S)."""
        return None

    def extra_values(self, state: State) -> Tensor | None:
        """Values (B, H, T, E) that ride along attention beside v, for `update`."""
        return None

    def logits(
        self, scores: Tensor, q: Tensor, k: Tensor, features: Tensor | None, causal: Tensor
    ) -> Tensor:
        """Escape hatch: rewrites the logits. Overriding it forces the slow path with T x S memory.

        Args:
            scores: (B, H, T, S), scaled, with decay and bias added, before the causal mask.
            q: (B, H, T, D) and k: (B, H, S, D) as `rotate` left them.
            features: what `key_features` returned for all keys, or None.
            causal: (B or 1, 1, T, S), True where a query may look.
        """
        return scores

    def update(self, state: State, extra: Tensor | None, mlp_out: Tensor) -> State:
        """The next layer's state, called at the end of each layer.

        Args:
            state: what this layer began with.
            extra: `extra_values` after attention, (B, H, T, E), or None.
            mlp_out: output of the MLP before it is added to the residual, (B, T, C).
        """
        return state

    def overrides(self, hook: str) -> bool:
        """Whether this encoding has a hook of its own."""
        return getattr(type(self), hook) is not getattr(Encoding, hook)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Encoding":
        """Moves between devices and widens, but never narrows below float32 (see the top)."""

        def keep_float32(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            narrowed = moved.is_floating_point() and moved.dtype.itemsize < 4
            return tensor.to(moved.device, torch.float32) if narrowed else moved

        super()._apply(keep_float32, recurse)  # type: ignore[no-untyped-call]
        return self


def precisely(hook: Callable[..., Result], *args: Any) -> Result:
    """Calls a hook outside autocast, its floating-point arguments in float32 or wider."""
    widened = (_widen(arg) for arg in args)
    devices = [d for d in ("cpu", "cuda") if torch.is_autocast_enabled(d)]
    with contextlib.ExitStack() as stack:
        for device in devices:
            stack.enter_context(torch.autocast(device, enabled=False))
        return hook(*widened)


def _widen(value: Any) -> Any:
    if isinstance(value, Tensor) and value.is_floating_point() and value.dtype.itemsize < 4:
        return value.float()
    return value
