"""Costs of a model with an encoding in training and generation, counted on fake tensors.

Fake tensors have a shape but no data. One layer of each kind is counted, in rows of three short
lengths: a layer has products for each pass, for each token, and for each key of a token.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)

from pe_bench.checks.counting import CountElementwise, CountProducts
from pe_bench.checks.ledger import blocks_of, count_forward, count_step
from pe_bench.checks.operations import CountedRows, Operations
from pe_bench.config import ModelConfig
from pe_bench.decoder.block import Block
from pe_bench.decoder.cache import Cache
from pe_bench.decoder.model import Decoder, MakeEncoding
from pe_bench.errors import InputError
from pe_bench.pretrained.weights import make_empty
from pe_bench.visibility import EVERYTHING, Visibility

LONGEST = 256
"""Number of tokens of the longest row that is counted."""

FEW_WORDS = 64
"""Size of the vocabulary for the comparison of layers and for rows with real numbers."""


@dataclass(frozen=True)
class PartCost:
    """Costs of one layer, or of the embeddings and the head together.

    Attributes:
        forward: operations of the forward pass of one row in evaluation.
        training: operations of forward and backward pass for each row of a batch.
        shared: operations of forward and backward pass that a batch needs once.
        saved: bytes per token that are saved for the backward pass.
        cached: bytes per token of each cached tensor, and the tokens that are kept.
        visible: keys that a query may attend to.
    """

    forward: Operations
    training: Operations
    shared: Operations
    saved: float
    cached: tuple[tuple[int, Visibility], ...] = ()
    visible: Visibility = EVERYTHING


@dataclass(frozen=True)
class ModelCost:
    """Costs of a model with an encoding.

    Only operations of matrix products count. Attention counts only the keys that a query may
    attend to, as in an ideal kernel.

    Attributes:
        parameters: number of parameters, including the encoding.
        weights: bytes of the parameters in generation.
        layers: the layers.
        rest: costs of embeddings and head.
        cacheable: whether generation can use a cache.
        max_position: number of position ids of the encoding; None: no limit.
    """

    parameters: int
    weights: int
    layers: tuple[PartCost, ...]
    rest: PartCost
    cacheable: bool
    max_position: int | None

    def training(self, length: int, rows: int) -> float:
        """Return the operations per token of training on batches of rows of `length` tokens."""
        operations = 0.0
        for part in (*self.layers, self.rest):
            keys = mean_keys(part.visible, length)
            operations += part.training.of_row(length, keys)
            operations += part.shared.of_row(length, keys) / rows
        return operations / length

    @property
    def saved(self) -> float:
        """Bytes per token that the backward pass needs, without weights in another precision."""
        return self.rest.saved + sum(layer.saved for layer in self.layers)

    def prefill(self, tokens: int) -> float:
        """Return the operations of prefilling a prompt, with the logits of its last token."""
        operations = self.rest.forward.of_row(1, 0)
        for layer in self.layers:
            operations += layer.forward.of_row(tokens, mean_keys(layer.visible, tokens))
        return operations

    def decode(self, tokens: int) -> float:
        """Return the operations of generating the last of `tokens` tokens."""
        if not self.cacheable:
            return self.prefill(tokens)
        last = torch.tensor(tokens - 1)
        operations = self.rest.forward.of_row(1, 0)
        for layer in self.layers:
            operations += layer.forward.of_row(1, int(layer.visible.count(last)))
        return operations

    def cache(self, tokens: int) -> int:
        """Return the bytes of the KV cache of a row of `tokens` tokens; 0 without a cache."""
        found = 0
        for layer in self.layers if self.cacheable else ():
            for size, visible in layer.cached:
                limit = tokens if visible.kept is None else visible.first + visible.kept
                found += size * min(tokens, limit)
        return found


def mean_keys(visible: Visibility, length: int) -> float:
    """Return the mean number of keys that the queries of a row attend to."""
    return float(visible.count(torch.arange(length)).double().mean())


def measure(
    make_encoding: MakeEncoding,
    shape: ModelConfig,
    *,
    narrow: bool = False,
    recompute: bool = False,
) -> ModelCost:
    """Return the costs of a model.

    Args:
        make_encoding: constructor of the encoding.
        shape: shape of the model.
        narrow: whether to use bfloat16 autocast, and bfloat16 weights and cache in generation.
        recompute: whether the backward pass recomputes each block.

    Raises:
        InputError: the encoding does not fit the shape.
    """
    make_encoding(shape, 0)  # raises for an unsupported shape before counting
    kinds = find_kinds(make_encoding, shape)
    chosen = [layers[-1] for layers in kinds]
    try:
        with FakeTensorMode():
            model = Decoder(shape, make_encoding)
            parts = _count(model, chosen, narrow, recompute)
    except (DataDependentOutputException, DynamicOutputShapeException):  # reads tensor values
        few = replace(shape, vocab_size=_few_words(shape))
        model = make_empty(few, make_encoding)
        parts = _with_more_words(_count(model, chosen, narrow, recompute), shape, few)
    parameters = sum(
        parameter.numel() for parameter in make_empty(shape, make_encoding).parameters()
    )
    *of_kinds, rest = parts
    layers: dict[int, PartCost] = {}
    for kind, part in zip(kinds, of_kinds, strict=True):
        layers |= dict.fromkeys(kind, part)
    encoding = model.encoding
    return ModelCost(
        parameters,
        parameters * (2 if narrow else 4),
        tuple(layers[layer] for layer in range(shape.layers)),
        rest,
        encoding.prefix_consistent,
        encoding.max_position,
    )


def find_kinds(make_encoding: MakeEncoding, shape: ModelConfig) -> list[list[int]]:
    """Group the layers by their numbers of operations in a narrow model."""
    heads = 2
    narrow = replace(
        shape,
        heads=heads,
        kv_heads=heads if shape.kv_heads == shape.heads else 1,
        width=heads * shape.head_dim,
        mlp_width=1,
        vocab_size=_few_words(shape),
    )
    try:
        with torch.random.fork_rng(devices=[]):
            model = Decoder(narrow, make_encoding).eval()
    except InputError:  # the encoding needs the real width
        return [[layer] for layer in range(shape.layers)]
    products, others = CountProducts(), CountElementwise()
    counts: list[tuple[int, int]] = [(0, 0)]

    def count(*_: Any) -> None:
        counts.append((int(products.get_total_flops()), others.count))

    for block in model.layers:
        block.register_forward_hook(count)
    length = min(16, narrow.train_length)
    with torch.no_grad(), products, others:
        model.hidden(torch.zeros(1, length, dtype=torch.long))
    kinds: dict[Any, list[int]] = {}
    for layer in range(shape.layers):
        (before, less), (after, more) = counts[layer : layer + 2]
        own = model.encoding_of(layer)
        key = (model.encoding.kind_of(layer), own.visible, after - before, more - less)
        kinds.setdefault(key, []).append(layer)
    return sorted(kinds.values())


def _few_words(shape: ModelConfig) -> int:
    needed = 1 + max((FEW_WORDS, *shape.digit_ids, *shape.separator_ids))
    return min(shape.vocab_size, needed)


def _with_more_words(
    parts: Sequence[PartCost], shape: ModelConfig, few: ModelConfig
) -> list[PartCost]:
    """Convert costs with the vocabulary of `few` to costs with the vocabulary of `shape`."""
    *layers, rest = parts
    words = shape.vocab_size - few.vocab_size
    more = replace(
        rest,
        forward=rest.forward.plus(2 * words * shape.width),
        training=rest.training.plus(6 * words * shape.width),
        saved=rest.saved + 4 * words,  # logits of the loss, in float32
    )
    return [*layers, more]


def _count(model: Decoder, chosen: Sequence[int], narrow: bool, recompute: bool) -> list[PartCost]:
    """Return the costs of some layers, followed by the costs of embeddings and head."""
    model.layers = nn.ModuleList(model.layers[layer] for layer in chosen)
    if model.embed_tokens.weight.is_meta:
        _fill(model)
    encodings = [model.encoding_of(layer) for layer in chosen]
    visible = [encoding.visible for encoding in encodings]
    cached = _count_cache(model.eval(), visible, narrow)
    for encoding in encodings:
        encoding.visible = EVERYTHING
    model.recompute = recompute
    # Prepared products leave out masked keys even if all queries of a row are one block.
    in_blocks = any(encoding.overrides("prepare_product") for encoding in encodings)
    limit = min(LONGEST, model.encoding.max_position or LONGEST)
    trained = CountedRows.up_to(min(limit, model.config.train_length), in_blocks)
    generated = CountedRows.up_to(limit, in_blocks)
    with blocks_of(trained.block):
        one = [count_step(model.train(), 1, length, narrow) for length in trained.lengths]
        two = [count_step(model, 2, length, narrow) for length in trained.lengths]
    with blocks_of(generated.block):
        forward = [count_forward(model.eval(), length, narrow) for length in generated.lengths]
    parts = []
    for part in range(len(chosen) + 1):
        row, batch = [], []
        for of_one, of_two in zip(one, two, strict=True):
            row.append(of_two[part].step - of_one[part].step)
            batch.append(of_one[part].step - row[-1])
        parts.append(
            PartCost(
                forward=generated.fit([count[part] for count in forward]),
                training=trained.fit(row),
                shared=trained.fit(batch),
                saved=(two[-1][part].saved - one[-1][part].saved) / trained.lengths[-1],
                cached=tuple(cached[part]) if part < len(chosen) else (),
                visible=visible[part] if part < len(chosen) else EVERYTHING,
            )
        )
    return parts


def _fill(model: Decoder) -> None:
    """Replace the decoder's weights on the meta device by zeros."""
    for module in (model.embed_tokens, model.norm, model.lm_head, *model.layers):
        module.to_empty(device="cpu")
        for parameter in module.parameters():
            nn.init.zeros_(parameter)


@torch.no_grad()
def _count_cache(
    model: Decoder, visible: Sequence[Visibility], narrow: bool
) -> list[list[tuple[int, Visibility]]]:
    """Return for each layer the bytes per token and the kept tokens of each cached tensor."""
    if not model.encoding.prefix_consistent:
        return [[] for _ in visible]
    longest = max((v.first + (v.kept or 0) for v in visible), default=0)
    cache = Cache(1, longest + 3)
    with torch.autocast("cpu", torch.bfloat16, enabled=narrow):
        model.hidden(torch.zeros(1, 2, dtype=torch.long), cache)
    found = cache.bytes_by_layer()
    return [found.get(cast(Block, block).self_attn.layer, []) for block in model.layers]
