"""The cache of the decoder, as a cache of transformers."""

import torch
import transformers
from torch import Tensor

from pe_bench.decoder.cache import Cache
from pe_bench.decoder.model import Decoder
from pe_bench.errors import InputError
from pe_bench.pretrained.rows import shift

SPARE = 256
"""Additional capacity of a new cache, in tokens."""


class DecoderCache(transformers.Cache):  # type: ignore[misc]
    """The cache of the decoder, as a cache of transformers.

    If outputs of the encoding depend on later tokens, the cache stores only the tokens.

    Args:
        longest: number of tokens of a finished sequence including padding; 0: unknown.
    """

    def __init__(self, longest: int = 0) -> None:
        super().__init__(layers=[])
        self.longest = longest
        self.reset()

    def reset(self) -> None:
        """Remove all tokens."""
        self.seen = 0
        self.padding = torch.zeros(0, dtype=torch.long)
        self.tokens = torch.zeros(0, 0, dtype=torch.long)
        self.cache: Cache | None = None

    def start(self, model: Decoder, tokens: Tensor, padding: Tensor) -> Tensor:
        """Return hidden states, (B, T, C), of the first tokens (B, T), padded on the right."""
        rows, length = tokens.shape
        self.tokens, self.padding, self.seen = tokens, padding, length
        if not model.encoding.prefix_consistent:
            return self._all(model)
        final = (max(self.longest, length) - padding).cpu()
        if model.encoding.needs_final_length and not self.longest:
            raise InputError("the encoding needs the final length of the text: use generate")
        capacity = max(self.longest, length + SPARE)
        self.cache = Cache(rows, capacity, tokens.device, final_lengths=final)
        hidden = model.hidden(tokens, self.cache)  # (B, T, C)
        self.cache.truncate(length - padding)
        return hidden

    def check_positions(self, position_ids: Tensor | None) -> None:
        """Check that position ids continue the positions of the tokens in the cache.

        Raises:
            InputError: the position ids do not continue them.
        """
        if position_ids is None:
            return
        length = position_ids.shape[1]
        next_ids = self.seen + torch.arange(length, device=position_ids.device)  # (T,)
        if not bool((position_ids == next_ids - self.padding[:, None]).all()):
            raise InputError("position_ids must continue those of the tokens in the cache")

    def check_mask(self, attention_mask: Tensor | None, new: int) -> None:
        """Check that a mask hides only the padding at the start, for `new` further tokens.

        Raises:
            InputError: it has another shape, or hides another token.
        """
        if attention_mask is None:
            return
        columns = torch.arange(self.seen + new, device=attention_mask.device)
        expected = columns >= self.padding[:, None]  # (B, tokens so far)
        if attention_mask.shape != expected.shape or (attention_mask.bool() != expected).any():
            raise InputError(
                "with a cache, attention_mask needs a column for each token so far, with zeros "
                "only at padding on the left"
            )

    def forward(self, model: Decoder, tokens: Tensor) -> Tensor:
        """Return hidden states, (B, T, C), of further tokens (B, T)."""
        self.seen += tokens.shape[1]
        if self.cache is None:
            together = torch.cat([shift(self.tokens, -self.padding), tokens], dim=1)
            self.tokens = shift(together, self.padding)  # (B, S)
            return shift(self._all(model), -self.padding)[:, -tokens.shape[1] :]
        if self.seen > self.cache.capacity:
            self.cache.grow(2 * self.seen)
        return model.hidden(tokens, self.cache)

    def _all(self, model: Decoder) -> Tensor:
        """Return hidden states of all tokens, row by row, because they depend on the length."""
        width = self.tokens.shape[1]
        rows = []
        for row, pads in zip(self.tokens, self.padding.tolist(), strict=True):
            hidden = model.hidden(row[None, : width - pads])  # (1, t, C)
            rows.append(torch.nn.functional.pad(hidden[0], (0, 0, 0, pads)))
        return torch.stack(rows)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the number of tokens, padding included."""
        return self.seen

    def crop(self, tokens_to_remove: int) -> None:
        """Remove the last tokens of each row; as in transformers, their number is negative.

        Raises:
            InputError: the number is positive, there are fewer tokens, or a layer has dropped keys
                that are needed again.
        """
        removed = -tokens_to_remove
        if removed == 0:
            return
        if removed == self.seen:
            self.reset()
            return
        shortest = self.seen - max(self.padding.tolist(), default=0)
        if not 0 < removed < shortest:
            raise InputError(
                f"crop needs the number of tokens to remove, from {1 - shortest} to -1, not "
                f"{tokens_to_remove}"
            )
        if self.cache is not None:
            self.cache.truncate(self.cache.lengths - removed)
        else:
            self.tokens = self.tokens[:, :-removed]
        self.seen -= removed

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep the rows with these indices, in this order."""
        self.reorder_cache(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each row."""
        rows = torch.arange(len(self.padding), device=self.padding.device)
        self.reorder_cache(rows.repeat_interleave(repeats))

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Keep the rows with the indices `beam_idx`, in this order."""
        self.padding = self.padding[beam_idx]
        self.tokens = self.tokens[beam_idx]
        if self.cache is not None:
            self.cache.select(beam_idx)
