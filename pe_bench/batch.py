"""The data of one training step. A separate module, so that training needs no task."""

from typing import NamedTuple

from torch import Tensor


class Batch(NamedTuple):
    """Training data of one step.

    Attributes:
        tokens: (B, T) token ids. Pad on the right: a causal model needs no mask for that, and
            positions stay what they are.
        targets: (B, T) next tokens; `IGNORE` where there is no loss.
    """

    tokens: Tensor
    targets: Tensor
