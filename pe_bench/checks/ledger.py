"""Operations and kept bytes of a training step, for each part of the model."""

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
    """Operations and kept bytes of one part of the model in one step."""

    forward: int = 0
    products: int = 0
    kept: int = 0


class _Ledger:
    """Assigns operations and kept bytes to the part of the model that is currently computed."""

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
        count.products += total - self.seen
        if not self.backward:
            count.forward += total - self.seen
        self.seen = total
        self.part = part

    def keep(self, tensor: Tensor, known: set[int]) -> Tensor:
        """Record that the backward pass needs a tensor."""
        storage = tensor.untyped_storage()
        if storage._cdata not in known:
            known.add(storage._cdata)
            self.counts[self.part].kept += storage.nbytes()
        return tensor


def count_step(model: Decoder, rows: int, length: int, narrow: bool) -> list[Count]:
    """Count a training step for each part of the model: its layers, then embeddings and head."""
    counter = CountProducts()
    rest = len(model.layers)
    ledger = _Ledger(rest + 1, counter)
    known = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    handles = []
    for layer, block in enumerate(model.layers):
        handles.append(block.register_forward_pre_hook(_before(ledger, layer)))
        handles.append(block.register_forward_hook(_after(ledger, layer, rest)))
    tokens = torch.zeros(rows, length, dtype=torch.long)
    saved = torch.autograd.graph.saved_tensors_hooks(lambda t: ledger.keep(t, known), _same)
    with _one_block(), counter:
        with saved, torch.autocast("cpu", torch.bfloat16, enabled=narrow):
            loss = model.token_losses(tokens, tokens, backend="blocked").sum()
        ledger.switch(rest)
        ledger.backward = True
        loss.backward()
        ledger.switch(rest)
    for handle in handles:
        handle.remove()
    model.zero_grad()
    return ledger.counts


def _same(tensor: Tensor) -> Tensor:
    return tensor


def _before(ledger: _Ledger, layer: int) -> Callable[..., None]:
    """Return a hook that is called before a layer."""

    def hook(block: nn.Module, args: Any) -> None:
        if ledger.backward:  # recomputation
            return
        ledger.switch(layer)
        if layer == 0:
            rest = len(ledger.counts) - 1
            args[0].register_hook(lambda gradient: ledger.switch(rest))

    return hook


def _after(ledger: _Ledger, layer: int, rest: int) -> Callable[..., None]:
    """Return a hook that is called after a layer."""

    def hook(block: nn.Module, args: Any, output: Any) -> None:
        if not ledger.backward:
            ledger.switch(rest)
            output[0].register_hook(lambda gradient: ledger.switch(layer))

    return hook


@contextmanager
def _one_block() -> Iterator[None]:
    """Treat all queries of a row as one block inside the context, so that no key is skipped."""
    kept = blocked.MIN_QUERIES, blocked.MAX_QUERIES
    blocked.MIN_QUERIES = 2**30
    blocked.MAX_QUERIES = dict.fromkeys(blocked.MAX_QUERIES, 2**30)
    try:
        yield
    finally:
        blocked.MIN_QUERIES, blocked.MAX_QUERIES = kept
