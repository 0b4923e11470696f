"""Operations and saved bytes of a forward pass or a training step, for each part of the model."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pe_bench.checks.counting import CountProducts
from pe_bench.decoder import blocked
from pe_bench.decoder.model import Decoder


@dataclass
class Count:
    """Operations of one part of the model in one step, and bytes saved for the backward pass."""

    forward: int = 0
    step: int = 0
    saved: int = 0


class _Ledger:
    """Assigns operations and saved bytes to the part of the model that is currently computed."""

    def __init__(self, parts: int, counter: CountProducts) -> None:
        self.counts = [Count() for _ in range(parts)]
        self.counter = counter
        self.seen = 0
        self.part = parts - 1
        self.backward = False

    def switch(self, part: int) -> None:
        """Assign operations to another part from now on."""
        total = int(self.counter.get_total_flops())
        count = self.counts[self.part]
        count.step += total - self.seen
        if not self.backward:
            count.forward += total - self.seen
        self.seen = total
        self.part = part

    def keep(self, tensor: Tensor, known: set[int]) -> Tensor:
        """Record that the backward pass needs a tensor."""
        storage = tensor.untyped_storage()
        if storage._cdata not in known:
            known.add(storage._cdata)
            self.counts[self.part].saved += storage.nbytes()
        return tensor


def count_step(model: Decoder, rows: int, length: int, narrow: bool) -> list[Count]:
    """Count a training step for each part of the model: its layers, then embeddings and head."""
    known = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    with _counting(model) as ledger:
        with torch.autograd.graph.saved_tensors_hooks(lambda t: ledger.keep(t, known), _same):
            loss = _loss(model, rows, length, narrow)
        ledger.switch(len(model.layers))
        ledger.backward = True
        loss.backward()
    model.zero_grad()
    return ledger.counts


@torch.no_grad()
def count_forward(model: Decoder, length: int, narrow: bool) -> list[int]:
    """Count the operations of a row without gradients, for each part of the model."""
    with _counting(model) as ledger:
        _loss(model, 1, length, narrow)
    return [count.forward for count in ledger.counts]


def _loss(model: Decoder, rows: int, length: int, narrow: bool) -> Tensor:
    tokens = torch.zeros(rows, length, dtype=torch.long)
    with torch.autocast("cpu", torch.bfloat16, enabled=narrow):
        return model.token_losses(tokens, tokens, backend="blocked").sum()


@contextmanager
def _counting(model: Decoder) -> Iterator[_Ledger]:
    """Count what the model computes inside the context."""
    counter = CountProducts()
    rest = len(model.layers)
    ledger = _Ledger(rest + 1, counter)
    handles = []
    for layer, block in enumerate(model.layers):
        handles.append(block.register_forward_pre_hook(_before(ledger, layer)))
        handles.append(block.register_forward_hook(_after(ledger, layer, rest)))
    try:
        with counter:
            yield ledger
            ledger.switch(rest)
    finally:
        for handle in handles:
            handle.remove()


def _same(tensor: Tensor) -> Tensor:
    return tensor


def _before(ledger: _Ledger, layer: int) -> Callable[..., None]:
    """Return a hook that is called before a layer."""

    def hook(block: nn.Module, args: Any) -> None:
        if ledger.backward:  # recomputation
            return
        ledger.switch(layer)
        if layer == 0 and args[0].requires_grad:
            rest = len(ledger.counts) - 1
            args[0].register_hook(lambda gradient: ledger.switch(rest))

    return hook


def _after(ledger: _Ledger, layer: int, rest: int) -> Callable[..., None]:
    """Return a hook that is called after a layer."""

    def hook(block: nn.Module, args: Any, output: Any) -> None:
        if not ledger.backward:
            ledger.switch(rest)
            if output[0].requires_grad:
                output[0].register_hook(lambda gradient: ledger.switch(layer))

    return hook


@contextmanager
def blocks_of(queries: int) -> Iterator[None]:
    """Compute attention in blocks of this number of queries inside the context."""
    kept = blocked.MIN_QUERIES, blocked.MAX_QUERIES
    blocked.MIN_QUERIES = queries
    blocked.MAX_QUERIES = dict.fromkeys(blocked.MAX_QUERIES, queries)
    try:
        yield
    finally:
        blocked.MIN_QUERIES, blocked.MAX_QUERIES = kept
