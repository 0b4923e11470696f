"""Values that no rotation of channel pairs can have."""

from pe_bench.api import InputError, ModelConfig


def check_base(base: float) -> None:
    """Refuse a base whose frequencies do not decrease from plane to plane.

    Raises:
        InputError: the base is at most 1.
    """
    if base <= 1:
        raise InputError(f"the base of the rotation must be greater than 1, not {base}")


def check_head_dim(model: ModelConfig) -> None:
    """Refuse a model whose heads cannot be divided into pairs of channels.

    Raises:
        InputError: `model.head_dim` is odd.
    """
    if model.head_dim % 2:
        raise InputError(
            f"a rotation needs an even head_dim; model.width / model.heads is {model.head_dim}"
        )
