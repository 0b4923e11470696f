"""The data of one training step, in a separate module so that training does not import tasks."""

from typing import NamedTuple

from torch import Tensor


class Batch(NamedTuple):
    """Training data of one step.

    Attributes:
        tokens: (B, T) token ids, padded on the right: then a causal model needs no padding mask,
            and the positions of other tokens do not change.
        targets: (B, T) next tokens; `IGNORE` for positions without a loss.
    """

    tokens: Tensor
    targets: Tensor
