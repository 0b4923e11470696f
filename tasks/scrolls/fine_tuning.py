"""Training batches of given examples, in an order that depends on the seed."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from pe_bench.api import Batch, InputError, Turn, collate
from pe_bench.tasks.scrolls.prompts import Format
from pe_bench.tasks.scrolls.splits import Splits
from pe_bench.tasks.scrolls.subsets import SUBSETS

HELD_OUT = 0.05  # fraction of the training examples for the learning rate search

Example = tuple[list[int], list[int]]
"""Ids of the prompt and of the output."""


class FineTuning:
    """Batches of the training examples of a subset.

    Args:
        data: splits of each subset.
        layout: format that turns an example into tokens.
        limits: maximum number of output tokens of each subset.
        length: maximum number of tokens of a sequence.
        batch_size: number of sequences of a batch.
        hold_out: whether to reserve the last documents for `held_out_batch`.
    """

    def __init__(
        self,
        data: Mapping[str, Splits],
        layout: Format,
        limits: Mapping[str, int],
        *,
        length: int,
        batch_size: int,
        hold_out: bool,
    ) -> None:
        self.data = data
        self.layout = layout
        self.limits = limits
        self.length = length
        self.batch_size = batch_size
        self.hold_out = hold_out
        self._encoded = lru_cache(maxsize=1024)(self.encode)
        self._border = lru_cache(maxsize=None)(self._find_border)

    def batch(self, subset: str, seed: int, step: int) -> Batch:
        """Return the examples of a step; every epoch contains all of them."""
        total = self._border(subset)
        examples = []
        for position in self._positions(step):
            epoch, within = divmod(position, total)
            index = int(shuffle(total, seed, epoch)[within])
            examples.append(self._encoded(subset, index, epoch + index))  # alternate references
        return self._collate(examples)

    def held_out_batch(self, subset: str, step: int) -> Batch:
        """Return examples of the last training documents, which `batch` leaves out."""
        border = self._border(subset)
        total = len(self.data[subset]["train"]) - border
        examples = []
        for position in self._positions(step):
            epoch, within = divmod(position, total)
            index = border + within
            examples.append(self._encoded(subset, index, epoch + index))
        return self._collate(examples)

    def encode(self, subset: str, index: int, reference: int) -> Example:
        """Return prompt and output of a training example.

        Args:
            subset: name of the subset.
            index: index of the example.
            reference: index of the output, modulo the number of outputs.
        """
        record = self.data[subset]["train"][index]
        limit = self.limits[subset]
        summary = SUBSETS[subset].summary
        prompt = self.layout.prompt(record.input, self.length - limit, summary, training=True)
        output = record.outputs[reference % len(record.outputs)]
        return prompt, self.layout.output(output, limit)

    def _positions(self, step: int) -> range:
        """Return the positions of a step's examples in the sequence of all epochs."""
        return range(step * self.batch_size, (step + 1) * self.batch_size)

    def _find_border(self, subset: str) -> int:
        """Return the index of the first held-out example, or the number of examples without any.

        The examples of one document are consecutive in the files and are held out together.
        """
        records = self.data[subset]["train"]
        if not self.hold_out:
            return len(records)
        border = min(int((1 - HELD_OUT) * len(records)), len(records) - 1)
        document = records[border].document
        while border and records[border - 1].document == document:
            border -= 1
        if not border:
            raise InputError(
                f"all training examples of {subset} belong to one document, so none can be "
                "reserved: leave out --tune or give more documents"
            )
        return border

    def _collate(self, examples: list[Example]) -> Batch:
        """Return examples of unequal length as a batch, padded on the right."""
        sequences = collate([[Turn(prompt, output)] for prompt, output in examples])
        batch = sequences.batch()
        places = torch.arange(batch.tokens.shape[1])  # (T,)
        padding = places >= torch.from_numpy(sequences.lengths)[:, None]  # (B, T)
        tokens = batch.tokens.masked_fill(padding, self.layout.tokenizer.pad)  # (B, T)
        return Batch(tokens, batch.targets)


@lru_cache(maxsize=8)
def shuffle(total: int, seed: int, epoch: int) -> "np.ndarray[Any, np.dtype[np.int64]]":
    """Return the order of an epoch, (total,)."""
    return np.random.default_rng([seed, epoch]).permutation(total)
