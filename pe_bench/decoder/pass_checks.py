"""Check that a model can begin a forward pass: its mode, tokens and cache."""

from torch import Tensor

from pe_bench.decoder.cache import Cache
from pe_bench.encoding import Encoding
from pe_bench.errors import InputError


def check_evaluation(training: bool, what: str) -> None:
    """Check that a model is in evaluation mode, where all steps have the same random positions.

    Args:
        training: whether the model is in training mode.
        what: beginning of the message, such as "a cache needs".

    Raises:
        InputError: the model is in training mode.
    """
    if training:
        raise InputError(f"{what} evaluation mode: call model.eval() first")


def check_pass(encoding: Encoding, tokens: Tensor, cache: Cache | None) -> None:
    """Check token ids, and with a cache that no encoding draws other positions at each step.

    Args:
        encoding: the encoding, or a combination of several.
        tokens: ids of the new tokens.
        cache: tokens of earlier passes; None: there is no cache.

    Raises:
        InputError: tokens are not (B, T), or not whole numbers, or there is a cache and an encoding
            that draws positions in training is in training mode.
    """
    if tokens.dim() != 2:
        raise InputError(f"tokens are ids of shape (B, T), not {tuple(tokens.shape)}")
    if tokens.is_floating_point():
        raise InputError(f"tokens are ids of an integer dtype, not {tokens.dtype}")
    if cache is None:
        return
    for kind in encoding.layer_kinds:
        if kind.overrides("draw_positions") or kind.train_positions != "contiguous":
            check_evaluation(kind.training, "a cache needs")
