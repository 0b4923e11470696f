"""Call the hooks of an encoding in float32 or wider, and check the shapes of their results."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from pe_bench.decoder.hook_checks import ANY, check_shape, count_changes, describe_type
from pe_bench.decoder.logits import (
    Bias,
    LogitTerms,
    Normalise,
    Product,
    RewriteLogits,
    repeat_heads,
)
from pe_bench.encoding import Encoding, StatefulEncoding
from pe_bench.errors import FaultyPlugin, InputError
from pe_bench.positions import Positions, State

Result = TypeVar("Result")


def position_ids(encoding: Encoding, tokens: Tensor) -> Tensor:
    """Return the position ids of all tokens so far: (B, S) -> (B or 1, S) or (B or 1, S, K)."""
    ids = in_float32(encoding.positions, tokens)
    rows, length = tokens.shape
    check_shape(encoding, "positions", ids, _shape_of_ids(ids, rows, length), one_row=True)
    return ids


def draw_positions(encoding: Encoding, ids: Tensor, lengths: Tensor) -> Tensor:
    """Return ids (B or 1, S) or (B or 1, S, K); random ids if the encoding draws them.

    Args:
        encoding: the encoding.
        ids: return value of `position_ids`.
        lengths: length of each finished sequence, (B,) on the CPU. Lengths below the training
            length are replaced by it.
    """
    drawn = encoding.draw_positions(ids, lengths.clamp(min=encoding.model.train_length))
    if drawn is not ids:
        shape = _shape_of_ids(drawn, len(lengths), ids.shape[1])
        check_shape(encoding, "draw_positions", drawn, shape, one_row=True)
    return drawn


def embed(encoding: Encoding, x: Tensor, positions: Positions) -> Tensor:
    """Return the changed token embeddings, (B, T, C), in their dtype."""
    embedded = in_float32(encoding.embed, x, positions)
    check_shape(encoding, "embed", embedded, x.shape)
    return embedded.to(x.dtype)


def is_stateful(encoding: Encoding) -> bool:
    """Return whether an encoding passes a state from layer to layer."""
    return any(map(encoding.overrides, ("prepare", "extra_values", "update_state")))


def prepare(encoding: Encoding, x: Tensor, positions: Positions) -> State:
    """Return the first layer's state; None: the encoding has no state."""
    if isinstance(encoding, StatefulEncoding):
        return in_float32(encoding.prepare, x, positions)
    return None


def token_features(encoding: Encoding, x: Tensor, positions: Positions) -> Tensor | None:
    """Return features of the new tokens, (B, H, T, F), or None."""
    features = in_float32(encoding.token_features, x, positions)
    if features is not None:
        shape = (len(x), encoding.model.heads, x.shape[1], ANY)
        check_shape(encoding, "token_features", features, shape)
    return features


def scan_features(encoding: Encoding, features: Tensor) -> Tensor:
    """Return `positions.features` of the other hooks: (B, H, S, F) -> (B, H, S, any)."""
    scanned = in_float32(encoding.scan_features, features)
    check_shape(encoding, "scan_features", scanned, (*features.shape[:3], ANY))
    return scanned


def transform_qk(
    encoding: Encoding, q: Tensor, k: Tensor, positions: Positions
) -> tuple[Tensor, Tensor]:
    """Return changed queries (B, H, T, D) and keys (B, G, T, D), in their dtype."""
    if not encoding.overrides("transform_qk"):
        return q, k
    pair = in_float32(encoding.transform_qk, q, k, positions)
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise InputError(
            f"{type(encoding).__name__}.transform_qk returned {describe_type(pair)}, "
            "expected a pair (q, k)"
        )
    new_q, new_k = pair
    width = encoding.qk_width or q.shape[-1]
    check_shape(encoding, "transform_qk", new_q, (*q.shape[:3], width), part="q ")
    check_shape(encoding, "transform_qk", new_k, (*k.shape[:3], width), part="k ")
    for name, new in (("q", new_q), ("k", new_k)):
        if not new.is_floating_point():  # no gradient would reach the projection
            raise InputError(
                f"{type(encoding).__name__}.transform_qk returned {name} {new.dtype}, expected "
                "floating point numbers"
            )
    return new_q.to(q.dtype), new_k.to(k.dtype)


def temperature(encoding: Encoding, positions: Positions, rows: int) -> Tensor | None:
    """Return factors of the query-key product, (B or 1, H or 1, T), or None."""
    factors = in_float32(encoding.temperature, positions)
    if factors is not None:
        one_head = isinstance(factors, Tensor) and factors.shape[1:2] == (1,)
        heads = 1 if one_head else encoding.model.heads
        shape = (rows, heads, positions.query.shape[1])
        check_shape(encoding, "temperature", factors, shape, one_row=True)
    return factors


def sink(encoding: Encoding) -> Tensor | None:
    """Return a logit per head, (H,), that takes part in the softmax without a value, or None."""
    logits = in_float32(encoding.sink)
    if logits is not None:
        check_shape(encoding, "sink", logits, (encoding.model.heads,))
    return logits


def prepare_product(encoding: Encoding, k: Tensor, positions: Positions) -> Positions:
    """Return positions with `prepared` set for the keys k, (B, G, S, D)."""
    if not encoding.overrides("prepare_product"):
        return positions
    heads = encoding.model.heads
    prepared = in_float32(encoding.prepare_product, repeat_heads(k, heads), positions)
    if prepared is not None:
        shape = (len(k), heads, k.shape[2], ANY)
        check_shape(encoding, "prepare_product", prepared, shape)
    return replace(positions, prepared=prepared)


def extra_values(encoding: Encoding, positions: Positions, rows: int) -> Tensor | None:
    """Return values (B, H or G, T, E) that attention averages along with v, or None."""
    if not isinstance(encoding, StatefulEncoding):
        return None
    extra = in_float32(encoding.extra_values, positions.state)
    if extra is None:
        return None
    grouped = isinstance(extra, Tensor) and extra.shape[1:2] == (encoding.model.kv_heads,)
    heads = encoding.model.kv_heads if grouped else encoding.model.heads
    shape = (rows, heads, positions.query.shape[1], ANY)
    check_shape(encoding, "extra_values", extra, shape, one_row=True)
    return extra.expand(rows, -1, -1, -1)


def logit_terms(encoding: Encoding, positions: Positions, rows: int) -> LogitTerms:
    """Return the terms that the encoding adds to the logits of a layer, for `rows` rows."""
    separable = in_float32(encoding.separable_bias, positions)
    if separable is not None:
        shape = (rows, encoding.model.heads, positions.key.shape[1])
        check_shape(encoding, "separable_bias", separable, shape, one_row=True)
    by_distance = None
    bias = None
    if encoding.overrides("bias") or not positions.is_arange:
        bias = _bias_hook(encoding, positions, rows)
    elif encoding.shared:  # one table for all layers
        by_distance = positions.once(_by_distance, encoding, positions)
    else:
        by_distance = _by_distance(encoding, positions)
    product = _product_hook(encoding) if encoding.overrides("product") else None
    rewrite = _rewrite_hook(encoding) if encoding.overrides("rewrite_logits") else None
    return LogitTerms(
        positions,
        separable,
        by_distance,
        bias,
        product,
        rewrite,
        divide=encoding.divide_scores,
        sink=sink(encoding),
        normalise=_normalise_hook(encoding) if encoding.overrides("normalise") else None,
        learned=tuple(p for p in encoding.parameters() if p.requires_grad),
    )


def _by_distance(encoding: Encoding, positions: Positions) -> Tensor | None:
    """Return the bias at each distance, (H, S), or None."""
    distances = torch.arange(positions.key.shape[1], device=positions.key.device)  # (S,)
    table = in_float32(encoding.distance_bias, distances)
    if table is not None:
        check_shape(encoding, "distance_bias", table, (encoding.model.heads, len(distances)))
    return table


def _bias_hook(encoding: Encoding, positions: Positions, rows: int) -> Bias | None:
    """Return a function for the bias of any queries, or None."""
    if not (encoding.overrides("bias") or encoding.overrides("distance_bias")):
        return None

    def bias(of_queries: Positions) -> Tensor | None:
        if not encoding.shared:
            return _bias(encoding, of_queries, rows)
        if of_queries is positions:  # one bias for all layers
            return positions.once(_bias, encoding, positions, rows)
        return _bias(encoding, of_queries.of_all_layers(), rows)

    return bias


def _bias(encoding: Encoding, positions: Positions, rows: int) -> Tensor | None:
    bias = in_float32(encoding.bias, positions)
    if bias is not None:
        heads = encoding.model.heads
        queries = positions.query.shape[1]
        keys = positions.key.shape[1]
        one_head = isinstance(bias, Tensor) and bias.dim() == 4 and bias.shape[1] == 1
        shape = (rows, 1 if one_head else heads, queries, keys)
        check_shape(encoding, "bias", bias, shape, one_row=True)
    return bias


def _product_hook(encoding: Encoding) -> Product:
    def product(q: Tensor, k: Tensor, positions: Positions) -> Tensor:
        products = in_float32(encoding.product, q, k, positions)
        check_shape(encoding, "product", products, (*q.shape[:3], k.shape[2]))
        return products

    return product


def _rewrite_hook(encoding: Encoding) -> RewriteLogits:
    def rewrite(scores: Tensor, q: Tensor, k: Tensor, positions: Positions) -> Tensor:
        rewritten = in_float32(encoding.rewrite_logits, scores, q, k, positions)
        check_shape(encoding, "rewrite_logits", rewritten, scores.shape)
        return rewritten

    return rewrite


def _normalise_hook(encoding: Encoding) -> Normalise:
    def normalise(logits: Tensor) -> Tensor:
        weights = in_float32(encoding.normalise, logits)
        check_shape(encoding, "normalise", weights, logits.shape)
        return weights

    return normalise


def update_state(
    encoding: Encoding, state: State, extra: Tensor | None, mlp_in: Tensor, mlp_out: Tensor
) -> State:
    """Return the next layer's state."""
    if isinstance(encoding, StatefulEncoding):
        return in_float32(encoding.update_state, state, extra, mlp_in, mlp_out)
    return state


def sum_extra_losses(encodings: Iterable[Encoding]) -> Tensor | None:
    """Return the sum of the auxiliary losses, a scalar, or None if no encoding has one.

    Args:
        encodings: the encoding of each layer; a shared one counts once.

    Raises:
        InputError: a loss is not a scalar.
    """
    losses: list[Tensor] = []
    for encoding in dict.fromkeys(encodings):
        loss = encoding.extra_loss()
        if loss is None:
            continue
        if not isinstance(loss, Tensor) or loss.dim():
            raise InputError(
                f"{type(encoding).__name__}.extra_loss returned {describe_type(loss)}, "
                "expected a scalar tensor"
            )
        losses.append(loss)
    return torch.stack(losses).sum() if losses else None


def in_float32(hook: Callable[..., Result], *args: Any) -> Result:
    """Call a hook outside autocast, with floating-point arguments in float32 or wider.

    Raises:
        FaultyPlugin: the hook changes an argument in place.
    """
    widened = [_widen(arg) for arg in args]
    for device in ("cpu", "cuda"):
        if torch.is_autocast_enabled(device):
            with torch.autocast(device, enabled=False):
                return in_float32(hook, *args)  # autocast of the other device may be enabled too
    changes = count_changes(widened)
    result = hook(*widened)
    if count_changes(widened) != changes:
        method: Any = hook
        raise FaultyPlugin(
            f"{type(method.__self__).__name__}.{method.__name__} changes an argument in place, "
            "which others use too: compute with new tensors, as in x = x * 2 instead of x *= 2"
        )
    return result


def _widen(value: Any) -> Any:
    if isinstance(value, Tensor) and value.is_floating_point() and value.dtype.itemsize < 4:
        return value.float()
    return value


def _shape_of_ids(ids: Any, rows: int, length: int) -> tuple[int, ...]:
    """Return the shape that ids must have: one id for each token, or several."""
    several = isinstance(ids, Tensor) and ids.dim() == 3
    return (rows, length, ANY) if several else (rows, length)
