"""Check that the encodings of all layers fit together and into the decoder."""

from collections.abc import Sequence

import torch
from torch import Tensor

from pe_bench.decoder import hooks
from pe_bench.encoding import Encoding
from pe_bench.errors import CRASHES, FaultyPlugin
from pe_bench.positions import Positions

TOKENS = 64
"""Maximum number of tokens whose positions are compared."""

FACTS = ("max_position", "prefix_consistent", "needs_final_length", "eval_samples")
"""Facts that are read from the first layer of a kind."""

INSTEAD = {
    "positions": "return an id for each layer, (1, S, layers), and select it by positions.layer",
    "draw_positions": (
        "return an id for each layer, (1, S, layers), and select it by positions.layer"
    ),
    "embed": "it changes the token embeddings, which are the input of the first layer only",
}
"""What an encoding can do if a hook may not depend on the layer."""


def check_layers(encodings: Sequence[Encoding], kinds: Sequence[int]) -> None:
    """Check the encodings of all layers.

    Layers of the same kind must have the same positions, embeddings and facts, because the first
    one computes them for the others. Embeddings with parameters are not compared, because their
    values differ. A sink needs the softmax.

    Args:
        encodings: the encoding of each layer.
        kinds: index of the kind of each layer, see `Encoding.kind_of`.

    Raises:
        FaultyPlugin: a layer has other positions than the first of its kind, or a sink without
            softmax.
    """
    for encoding in dict.fromkeys(encodings):
        if encoding.overrides("normalise") and encoding.sink() is not None:
            raise FaultyPlugin(
                f"{type(encoding).__name__} has a sink, which takes part in the softmax, but its "
                "normalise replaces the softmax: leave out one of them"
            )
    _compare_layers(encodings, kinds)


def _compare_layers(encodings: Sequence[Encoding], kinds: Sequence[int]) -> None:
    first: dict[int, tuple[Encoding, dict[str, Tensor]]] = {}
    for layer, (encoding, kind) in enumerate(zip(encodings, kinds, strict=True)):
        if kind not in first:
            first[kind] = encoding, {} if encoding.shared else _results(encoding)
        reference, expected = first[kind]
        if encoding is reference:
            continue
        name = type(encoding).__name__
        for fact in FACTS:
            values = getattr(reference, fact), getattr(encoding, fact)
            if values[0] != values[1]:
                raise FaultyPlugin(
                    f"{name}.{fact} is {values[0]} in layer {reference.layer} and {values[1]} in "
                    f"layer {layer}: set it to the same value in all layers"
                )
        found = _results(encoding)
        hooks_to_compare = expected.keys() & found.keys()
        if _has_other_buffers(reference, encoding):  # maybe random ones, of which a draw may depend
            hooks_to_compare &= {"positions"}
        for hook in sorted(hooks_to_compare):
            if not torch.equal(expected[hook], found[hook]):
                raise FaultyPlugin(
                    f"{name}.{hook} differs between layers {reference.layer} and {layer}, but is "
                    f"called for the first of them only: {INSTEAD[hook]}"
                )


def _has_other_buffers(one: Encoding, other: Encoding) -> bool:
    """Return whether the buffers of two layers differ."""
    buffers = dict(other.named_buffers())
    for name, buffer in one.named_buffers():
        has_values = type(buffer) is Tensor and not buffer.is_meta
        if has_values and name in buffers and not torch.equal(buffer, buffers[name]):
            return True
    return False


def _results(encoding: Encoding) -> dict[str, Tensor]:
    """Return the results of the hooks that an encoding overrides, for the same random numbers.

    A hook that raises an error has no result: the forward pass reports it. A hook that draws from
    another generator than that of torch has none either, because its results do not repeat.
    """
    if not any(map(encoding.overrides, INSTEAD)):
        return {}
    tensors = [*encoding.parameters(), *encoding.buffers()]
    device = tensors[0].device if tensors else torch.device("cpu")
    numbers = torch.get_rng_state()
    try:
        with torch.no_grad(), torch.device(device):
            found = _call_hooks(encoding, numbers)
            again = _call_hooks(encoding, numbers)
    except CRASHES:
        return {}
    finally:
        torch.set_rng_state(numbers)
    compared = {}
    for hook, result in found.items():
        # Tensors without values cannot be compared: those on the meta device, and fake ones.
        has_values = type(result) is Tensor and not result.is_meta
        if has_values and torch.equal(result, again[hook]):
            compared[hook] = result
    return compared


def _call_hooks(encoding: Encoding, numbers: Tensor) -> dict[str, Tensor]:
    model = encoding.model
    length = min(TOKENS, encoding.max_position or TOKENS)
    tokens = torch.arange(length)[None] ** 2 % model.vocab_size  # (1, S)
    ids = hooks.position_ids(encoding, tokens)  # (1, S) or (1, S, K)
    found = {"positions": ids}
    if encoding.overrides("draw_positions"):
        torch.set_rng_state(numbers)
        found["draw_positions"] = hooks.draw_positions(encoding, ids, torch.tensor([length]))
    if encoding.overrides("embed") and not any(True for _ in encoding.parameters()):
        x = torch.linspace(-1, 1, length * model.width).view(1, length, -1)  # (1, T, C)
        found["embed"] = hooks.embed(encoding, x, Positions(ids, ids))  # (1, T, C)
    return found
