"""A learned vector for all digits of equal significance (Cho et al. 2024, arXiv 2405.20671)."""

import torch
from torch import Tensor, nn

from pe_bench.api import Encoding, InputError, ModelConfig, Positions, join_ids, split_ids


class PositionCoupling(Encoding):
    """x = token + table[id]: ids count 1, 2, 3... inside each run of digits and are 0 elsewhere.

    Numbers are written with the least significant digit first, so digits of equal significance have
    the same id in operands and answer. A symbol counts as the digit before the first. In training,
    one random number per row, up to the length of the table, is added to all ids. Digits beyond the
    table share its last row. There are no other positions.

    With `operands`, for sums of many numbers (Cho et al. 2025, arXiv 2410.15787), a second table
    encodes the index of the number: x = token + table[id] + second[n]. A symbol belongs to the
    number after it. The numbers of the answer, after a separator, are counted from 0 again.

    `abacus` counts digits in the same way, but symbols stay at 0, and the random number is drawn
    for each batch.

    | authors' code | here |
    |---|---|
    | ids are part of the data | derived from the tokens |
    | first digit of the operands first | last digit first |
    | multiplication by one digit: ids decrease with significance | they increase |
    | ids from 1, 0 for padding and ends of rows | from 0, which all symbols have |

    Args:
        rows: length of each table; the paper has 132 for addition, trained up to 40 digits, and 40
            with `operands`.
        operands: whether to add the second table.
    """

    family = "structure"
    label = "Position coupling"
    colour = "#AA4499"
    marker = "s"

    parameters_per_layer = "132*C once"
    variants = ("operands=true,rows=40", "rows=8")

    def __init__(
        self, model: ModelConfig, layer: int = 0, *, rows: int = 132, operands: bool = False
    ) -> None:
        super().__init__(model, layer)
        if not model.digit_ids:
            raise InputError(
                "position-coupling needs tokens for single digits: choose a task that has them, "
                "or set digit_ids of the model"
            )
        if operands and not model.separator_ids:
            raise InputError(
                "position-coupling:operands needs a token that ends the question, but this task "
                "has none"
            )
        if rows < 2:
            raise InputError(f"position-coupling:rows must be at least 2, not {rows}")
        self.rows = rows
        self.operands = operands
        self.is_digit: Tensor
        self.is_separator: Tensor
        ids = torch.arange(model.vocab_size)
        separators = torch.tensor(model.separator_ids, dtype=torch.long)
        is_digit = torch.isin(ids, torch.tensor(model.digit_ids))
        self.register_buffer("is_digit", is_digit, persistent=False)
        self.register_buffer("is_separator", torch.isin(ids, separators), persistent=False)
        self.table = nn.Embedding(rows, model.width)
        nn.init.normal_(self.table.weight, std=model.init_std)
        if operands:
            self.second = nn.Embedding(rows, model.width)
            nn.init.normal_(self.second.weight, std=model.init_std)

    def positions(self, tokens: Tensor) -> Tensor:
        """Return the ids of the digits, (B, S); `operands`: and of numbers, (B, S, 2)."""
        index = torch.arange(tokens.shape[1], device=tokens.device)
        symbol = ~self.is_digit[tokens]  # (B, S)
        places = index - torch.where(symbol, index, -1).cummax(dim=1).values
        if not self.operands:
            return places
        separator = self.is_separator[tokens]
        numbers = symbol.cumsum(dim=1)  # (B, S)
        start = torch.where(separator, numbers, 0).cummax(dim=1).values
        return join_ids(places, numbers - start)

    def draw_positions(self, ids: Tensor, lengths: Tensor) -> Tensor:
        if not self.training:
            return ids
        room = (self.rows - ids.amax(dim=1, keepdim=True)).clamp(min=1)  # (B, 1) or (B, 1, 2)
        return ids + (torch.rand(room.shape).to(ids.device) * room).long()

    def embed(self, x: Tensor, positions: Positions) -> Tensor:
        places, numbers = split_ids(positions.query)
        x = x + self.table(places.clamp(max=self.rows - 1))
        if self.operands:
            x = x + self.second(numbers.clamp(max=self.rows - 1))
        return x
