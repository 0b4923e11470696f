"""Rows of tokens that consist of several documents."""

import torch
from torch import Tensor


class Documents:
    """The documents of packed rows, which can be split into rows that do not attend to each other.

    A document begins at the start of a row and where the position id does not increase by one.

    Args:
        ids: position ids, (B, T).

    Attributes:
        lengths: number of tokens of each document, (N,).
        ids: position ids of the documents, (N, t); None: all documents begin at 0.
    """

    def __init__(self, ids: Tensor) -> None:
        self.shape = ids.shape
        breaks = ids.diff(dim=1, prepend=ids[:, :1] - 1).ne(1)  # (B, T)
        breaks[:, 0] = True
        document = breaks.flatten().cumsum(0) - 1  # (B T,)
        self.lengths = document.bincount()  # (N,)
        starts = self.lengths.cumsum(0) - self.lengths  # (N,)
        places = torch.arange(int(self.lengths.max()), device=ids.device)  # (t,)
        # Shorter documents are padded on the right with their last token.
        self._split = starts[:, None] + places.minimum(self.lengths[:, None] - 1)  # (N, t)
        place = torch.arange(len(document), device=ids.device) - starts[document]  # (B T,)
        self._join = (document, place)
        first = ids.flatten()[starts]  # (N,)
        self.ids = first[:, None] + places if bool(first.any()) else None

    def split(self, x: Tensor) -> Tensor:
        """Make each document a row, padded on the right: (B, T, ...) -> (N, t, ...)."""
        return x.flatten(0, 1)[self._split]

    def join(self, x: Tensor) -> Tensor:
        """Pack the documents into rows again: (N, t, ...) -> (B, T, ...)."""
        packed: Tensor = x[self._join].unflatten(0, self.shape)
        return packed
