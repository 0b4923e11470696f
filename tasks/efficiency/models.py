"""Whole models: a training step, prefill of a prompt, and decoding with a cache."""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pe_bench.api import Cache, Decoder, InputError, MakeEncoding, ModelConfig
from pe_bench.api.engine import Backend


@dataclass(frozen=True)
class Setting:
    """Settings shared by the models of all encodings.

    Attributes:
        config: shape of the models.
        batch: number of sequences.
        length: number of tokens per sequence.
        device: "cpu" or "cuda".
        autocast: context manager for every call.
    """

    config: ModelConfig
    batch: int
    length: int
    device: str
    autocast: AbstractContextManager[Any]

    def model(self, make_encoding: MakeEncoding) -> Decoder:
        """Return an untrained decoder.

        Raises:
            InputError: the encoding does not fit the shape.
        """
        torch.manual_seed(0)
        return Decoder(self.config, make_encoding).to(self.device)

    def tokens(self) -> Tensor:
        """Return random ids, including the target after each row, (B, N + 1)."""
        generator = torch.Generator().manual_seed(0)
        size = (self.batch, self.length + 1)
        ids = torch.randint(self.config.vocab_size, size, generator=generator)
        return ids.to(self.device)


class TrainingStep:
    """Steps of AdamW on one batch.

    Args:
        setting: shape and batch.
        make_encoding: constructor of the encoding.
        backend: implementation of attention.

    Raises:
        InputError: the encoding does not fit the shape.
    """

    def __init__(self, setting: Setting, make_encoding: MakeEncoding, backend: Backend) -> None:
        self.setting = setting
        self.backend = backend
        self.model = setting.model(make_encoding).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.ids = setting.tokens()

    def __call__(self) -> None:
        """Run one step."""
        with self.setting.autocast:
            losses = self.model.token_losses(
                self.ids[:, :-1], self.ids[:, 1:], backend=self.backend
            )
        losses.mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


class Prefill:
    """Reads a prompt into an empty cache and predicts the token after it.

    Args:
        setting: shape and batch.
        make_encoding: constructor of the encoding.
        backend: implementation of attention.
        new: number of tokens to reserve in the cache after the prompt.

    Raises:
        InputError: the encoding does not fit the shape.
    """

    def __init__(
        self, setting: Setting, make_encoding: MakeEncoding, backend: Backend, new: int
    ) -> None:
        self.setting = setting
        self.backend = backend
        self.new = new
        self.model = setting.model(make_encoding).eval()
        self.prompts = setting.tokens()[:, :-1]
        self.cache = self._empty()

    def __call__(self) -> Tensor:
        """Return the most probable next token of each row, (B, 1)."""
        self.cache = self._empty()
        return self._next(self.prompts)

    @property
    def cache_bytes(self) -> int | None:
        """Number of cached bytes per token; None if the encoding cannot use a cache."""
        cacheable = self.model.encoding.prefix_consistent
        return self.cache.bytes_per_token if cacheable else None

    def _empty(self) -> Cache:
        capacity = self.setting.length + self.new
        return Cache(self.setting.batch, capacity, self.setting.device)

    def _next(self, tokens: Tensor) -> Tensor:
        with torch.no_grad(), self.setting.autocast:
            hidden = self.model.hidden(tokens, self.cache, backend=self.backend)
            return self.model.logits(hidden[:, -1:]).argmax(-1)


class Decoding(Prefill):
    """Generates tokens one by one after a prompt that is already in the cache."""

    def __init__(
        self, setting: Setting, make_encoding: MakeEncoding, backend: Backend, new: int
    ) -> None:
        super().__init__(setting, make_encoding, backend, new)
        if not self.model.encoding.prefix_consistent:
            raise InputError("its outputs depend on later tokens, so it has no cache")
        self.prompt: Cache | None = None

    def __call__(self) -> Tensor:
        """Return the last token of each row, (B, 1)."""
        if self.prompt is None:
            super().__call__()
            self.prompt = self.cache
        self.cache = self.prompt.branch()
        token = self.prompts[:, -1:]
        for _ in range(self.new):
            token = self._next(token)
        return token
