"""Training windows at random positions of the training documents, some of which are held out."""

import numpy as np

from pe_bench.api import HELD_OUT_SEED, Batch, InputError, TrainConfig
from pe_bench.tasks.perplexity.tokenized_corpus import Tokens, TokenText
from pe_bench.tasks.perplexity.windows import make_batch

HELD_OUT = 0.05  # fraction of the training tokens for the learning rate search


class TrainingText:
    """The training documents, each followed by EOS if their bounds are known.

    Args:
        tokens: the parts of the source.
        bos: id before each window.
        train: the training phase.
        length: number of tokens of a window.
        hold_out: whether to exclude the last documents from training.
    """

    def __init__(
        self, tokens: Tokens, bos: int, train: TrainConfig, length: int, hold_out: bool
    ) -> None:
        self.tokens = tokens
        self.bos = bos
        self.train = train
        self.length = length
        self.hold_out = hold_out

    def batch(self, seed: int, step: int) -> Batch:
        """Return the windows of a training step."""
        text = self.at_step(step)
        return self._draw(text, 0, self.border(text), [seed, step])

    def held_out_batch(self, step: int) -> Batch:
        """Return windows of the last training documents, which `batch` leaves out."""
        text = self.at_step(0)
        return self._draw(text, self.border(text), len(text.ids), [HELD_OUT_SEED, step])

    def at_step(self, step: int) -> TokenText:
        """Return the text of a step.

        This is the whole text, or one piece of a large corpus after the other. The first step then
        waits only for the first piece, and a resumed run sees the same batches. If a training
        continues beyond the planned steps, it starts again with the first piece.
        """
        pieces = self.tokens.train
        turn = step * len(pieces) // max(1, self.train.steps)
        text = pieces[turn % len(pieces)]()
        if len(text.ids) <= self.length:
            raise InputError(
                f"{self.tokens.name} has {len(text.ids)} tokens to train on, too few for one "
                f"window of {self.length}: give more text"
            )
        return text

    def border(self, text: TokenText) -> int:
        """Return the start of the held-out documents of a text, or its end without any."""
        size = len(text.ids)
        if not self.hold_out:
            return size
        border = int((1 - HELD_OUT) * size)
        later = text.starts[text.starts >= border]
        if len(later) and size - later[0] > self.length:
            border = int(later[0])  # between two documents
        if min(border, size - border) <= self.length:
            raise InputError(
                f"{self.tokens.name} has {size} tokens to train on, too few to reserve a twentieth "
                f"with a window of {self.length}: leave out --tune or give more text"
            )
        return border

    def _draw(self, text: TokenText, first: int, stop: int, seed: list[int]) -> Batch:
        """Return random windows of a range of the text."""
        rng = np.random.default_rng(seed)
        starts = rng.integers(first, stop - self.length + 1, self.train.batch_size).tolist()
        windows = [text.read(start, start + self.length) for start in starts]
        return make_batch(np.stack(windows), self.bos)
