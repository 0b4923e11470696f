"""Operations of a pass, divided into those of the pass, of its tokens and of their keys."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np


@dataclass(frozen=True)
class Operations:
    """Operations of a pass over rows of tokens.

    Attributes:
        per_pass: operations that do not depend on the number of tokens, such as those of a table.
        per_token: operations for each token.
        per_key: operations for each key that a token attends to.
    """

    per_pass: float
    per_token: float
    per_key: float

    def of_row(self, tokens: int, keys: float) -> float:
        """Return the operations of a row of tokens that attend to `keys` keys on average."""
        return self.per_pass + tokens * (self.per_token + self.per_key * keys)

    def plus(self, per_token: float) -> "Operations":
        """Return the operations with more of them for each token."""
        return replace(self, per_token=self.per_token + per_token)


@dataclass(frozen=True)
class CountedRows:
    """Rows whose operations are counted.

    Attributes:
        lengths: numbers of tokens.
        block: number of queries in a block; each attends to all keys up to the block's last one.
    """

    lengths: tuple[int, int, int]
    block: int

    @staticmethod
    def up_to(longest: int, in_blocks: bool) -> "CountedRows":
        """Return rows of about half, three quarters and all of a length."""
        quarter = max(1, longest // 4)
        return CountedRows(
            (2 * quarter, 3 * quarter, 4 * quarter), quarter if in_blocks else longest
        )

    def fit(self, counts: Sequence[int]) -> Operations:
        """Return the operations that explain the counts of rows of these lengths."""
        rows = []
        for length in self.lengths:
            keys = (length + min(length, self.block)) / 2  # mean over the blocks
            rows.append([1, length, length * keys])
        return Operations(*np.linalg.solve(rows, counts).tolist())
