"""Learned embeddings of a digit's place in its number (McLeish et al. 2024, arXiv 2405.17399)."""

import torch
from torch import Tensor, nn

from pe_bench.api import (
    EncodingSpec,
    InputError,
    ModelConfig,
    Positions,
    Wrapper,
    join_ids,
    make_base,
    split_ids,
)


class Abacus(Wrapper):
    """x = token + table[id]: the id counts 1, 2, 3... inside each run of digits and is 0 elsewhere.

    In training, one random number per batch is added to all ids except 0. This also trains the rows
    that only longer numbers use. Row 0 is learned and added to all other tokens, as in the authors'
    code. Digits beyond the table share its last row; in the authors' code they raise an IndexError.

    The ids only encode the place of a digit within its number; `base` encodes the order of all
    tokens. The default is the authors' "Abacus", a causal decoder without any other encoding. They
    also combine it with FIRE and RoPE (base=rope). It is designed for numbers with the least
    significant digit first and one token per digit: a token of several digits ends a run.

    Args:
        base: spec of the encoding that it extends, with colons between its options:
            base=rope:base=5e5:rotary=0.5.
        offset: upper bound (exclusive) of the random number in training; the paper has 100, and 1
            turns it off.
        rows: number of rows of the table.
        init_std: standard deviation of the initial values; None is that of the token embeddings, as
            in the authors' training. Their standalone file has 1, fifty times a token's 0.02.
    """

    family = "structure"
    colour = "#AA4499"
    marker = "^"

    parameters_per_layer = "1024*C once"
    variants = ("base=rope", "offset=20,rows=64,init_std=0.1")

    def __init__(
        self,
        model: ModelConfig,
        layer: int = 0,
        *,
        base: EncodingSpec = EncodingSpec("nope"),  # noqa: B008  # as immutable as any str
        offset: int = 100,
        rows: int = 1024,
        init_std: float | None = None,
    ) -> None:
        super().__init__(model, layer, make_base(base, model, layer))
        if not model.digit_ids:
            raise InputError(
                "abacus needs tokens for single digits: choose a task that has them, or set "
                "digit_ids of the model"
            )
        if offset < 1:
            raise InputError(f"abacus:offset must be at least 1, which turns it off, not {offset}")
        if rows <= offset:
            raise InputError(f"abacus:rows must be more than its offset {offset}, not {rows}")
        if init_std is not None and init_std < 0:
            raise InputError(f"abacus:init_std must not be negative, not {init_std}")
        self.shift_invariant = self.base.shift_invariant
        self.offset = offset
        self.rows = rows
        self.is_digit: Tensor
        digits = torch.isin(torch.arange(model.vocab_size), torch.tensor(model.digit_ids))
        self.register_buffer("is_digit", digits, persistent=False)
        if layer == 0:  # tokens are embedded once, although every layer has an instance
            self.table = nn.Embedding(rows, model.width)
            std = model.init_std if init_std is None else init_std
            nn.init.normal_(self.table.weight, std=std)

    def positions(self, tokens: Tensor) -> Tensor:
        """Return the ids of the base and of the digits, (B, S, 2)."""
        index = torch.arange(tokens.shape[1], device=tokens.device)
        before = torch.where(self.is_digit[tokens], -1, index).cummax(dim=1).values
        return join_ids(super().positions(tokens), index - before)

    def draw_positions(self, ids: Tensor, lengths: Tensor) -> Tensor:
        drawn = super().draw_positions(ids, lengths)
        if not self.training:
            return drawn
        of_base, digits = split_ids(drawn)
        return join_ids(of_base, digits + (digits > 0) * int(torch.randint(self.offset, ())))

    def embed(self, x: Tensor, positions: Positions) -> Tensor:
        _, digits = split_ids(positions.query)
        added = self.table(digits.clamp(max=self.rows - 1))  # (B, T, C)
        return super().embed(x + added, positions)
