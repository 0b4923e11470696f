"""Operations and memory of training, counted on fake tensors, which have shapes only."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from pe_bench.checks.counting import count_products
from pe_bench.config import ModelConfig
from pe_bench.decoder.model import Decoder, MakeEncoding

LONGEST = 256
"""Tokens of a row that is counted; what longer ones take follows from it and one twice as long, to
a few hundredths. As many as a block of attention has queries, so that both have the same blocks."""

REAL_WORDS = 64  # of a vocabulary, there


@dataclass(frozen=True)
class TrainingCost:
    """Training cost per token of a model with an encoding.

    Attributes:
        parameters: of the model, its encoding included.
        products: floating-point operations of matrix products, forward and backward. Attention in
            blocks of queries leaves out the half that no query may see; fused kernels do about the
            same.
        kept: bytes that the backward pass needs, weights in another precision left out.
    """

    parameters: int
    products: float
    kept: float


def measure_training(
    make_encoding: MakeEncoding,
    shape: ModelConfig,
    length: int,
    *,
    narrow: bool = False,
    recompute: bool = False,
) -> TrainingCost:
    """Return the cost of training, extrapolated from models of one and two layers.

    So all layers of a hybrid are taken for its second one, and windows of more than 256 keys for
    rows without one.

    Args:
        make_encoding: of the encoding.
        shape: of the model.
        length: tokens of a row.
        narrow: bfloat16 where autocast has it.
        recompute: activations of blocks are made again in the backward pass.

    Raises:
        InputError: the encoding does not fit the shape.
    """
    try:
        with FakeTensorMode():
            one, two = _count_two(make_encoding, shape, length, narrow, recompute)
    except DataDependentOutputException:  # it looks at numbers
        one, two = _count_numbers(make_encoding, shape, length, narrow, recompute)
    more = shape.layers - 1
    return TrainingCost(
        one.parameters + more * (two.parameters - one.parameters),
        one.products + more * (two.products - one.products),
        one.kept + more * (two.kept - one.kept),
    )


def _count_two(
    make_encoding: MakeEncoding, shape: ModelConfig, length: int, narrow: bool, recompute: bool
) -> tuple[TrainingCost, TrainingCost]:
    """Return the costs of models of one and two layers.

    A token's products grow linearly with the length of its row.
    """
    first = min(length, LONGEST)
    found = []
    for layers in (1, 2):
        given = replace(shape, layers=layers)
        cost = _count(make_encoding, given, first, narrow, recompute)
        if length > first:
            far = _count(make_encoding, given, 2 * first, narrow, recompute)
            slope = (far.products - cost.products) / first
            cost = replace(cost, products=cost.products + slope * (length - first))
        found.append(cost)
    return found[0], found[1]


def _count_numbers(
    make_encoding: MakeEncoding, shape: ModelConfig, length: int, narrow: bool, recompute: bool
) -> tuple[TrainingCost, TrainingCost]:
    """Count on rows with numbers and few words; the vocabulary's share is known."""
    small = replace(shape, vocab_size=min(shape.vocab_size, REAL_WORDS))
    words = shape.vocab_size - small.vocab_size
    found = []
    for cost in _count_two(make_encoding, small, length, narrow, recompute):
        found.append(
            TrainingCost(
                cost.parameters + 2 * words * shape.width,
                cost.products + 6 * words * shape.width,
                cost.kept + 4 * words,  # of the loss, in float32
            )
        )
    return found[0], found[1]


def _count(
    make_encoding: MakeEncoding, shape: ModelConfig, length: int, narrow: bool, recompute: bool
) -> TrainingCost:
    """Return what a step takes; what does not grow with the rows is no token's."""
    model = Decoder(shape, make_encoding).train()
    model.recompute = recompute
    of_one, one = _count_step(model, 1, length, narrow)
    of_two, two = _count_step(model, 2, length, narrow)
    count = sum(parameter.numel() for parameter in model.parameters())
    return TrainingCost(count, (of_two - of_one) / length, (two - one) / length)


def _count_step(model: Decoder, rows: int, length: int, narrow: bool) -> tuple[int, int]:
    """Return the operations of a training step and the bytes that its backward pass needs."""
    kept: dict[int, int] = {_storage(parameter): 0 for parameter in model.parameters()}

    def keep(tensor: Tensor) -> Tensor:
        kept.setdefault(_storage(tensor), tensor.untyped_storage().nbytes())
        return tensor

    tokens = torch.zeros(rows, length, dtype=torch.long)

    def step() -> None:
        saved = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
        with saved, torch.autocast("cpu", torch.bfloat16, enabled=narrow):
            loss = model.token_losses(tokens, tokens, backend="blocked").sum()
        loss.backward()

    products = count_products(step)
    return products, sum(kept.values())


def _storage(tensor: Tensor) -> int:
    key: int = tensor.untyped_storage()._cdata
    return key
