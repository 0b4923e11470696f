"""The small model in which every encoding is checked, and its observable outputs."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pe_bench.checks.differences import TOLERANCE
from pe_bench.config import ModelConfig
from pe_bench.decoder.attention import Backend
from pe_bench.decoder.model import Decoder, MakeEncoding
from pe_bench.errors import CRASHES

LENGTH = 40  # tokens of most checks
LONG = 203  # several times the training length; odd, and more than common sizes of chunks
TRAIN_LENGTH = 32
UNTRAINED_LAYERS = 4
# Enough layers for encodings that act only in every fourth layer. The weights are larger than in a
# real model, because positions matter only if attention is far from uniform.
CONFIG = ModelConfig(
    layers=9,
    heads=4,
    width=64,
    mlp_width=96,
    init_std=0.15,
    vocab_size=64,
    train_length=TRAIN_LENGTH,
    digit_ids=tuple(range(10)),
    separator_ids=(10, 11, 12, 13),
)


@dataclass(frozen=True)
class Subject:
    """An encoding under test, with its constructor and device.

    Attributes:
        make_encoding: constructs the encoding of a layer.
        device: "cpu" or "cuda".
        kv_heads: number of key heads of the model; 0: the number of query heads.
        train_length: training length of the model.
        longest: number of tokens of the long sequences.
        tolerance: largest relative difference between outputs that counts as rounding.
        layers: number of layers of the model.
    """

    make_encoding: MakeEncoding
    device: str = "cpu"
    kv_heads: int = 0
    train_length: int = TRAIN_LENGTH
    longest: int = LONG
    tolerance: float = TOLERANCE
    layers: int = CONFIG.layers

    @property
    def config(self) -> ModelConfig:
        """Shape of the model."""
        return replace(
            CONFIG, layers=self.layers, kv_heads=self.kv_heads, train_length=self.train_length
        )

    def model(self, dtype: torch.dtype = torch.float64, layers: int | None = None) -> Decoder:
        """Return a small decoder with fixed nonzero weights, in evaluation mode.

        Args:
            dtype: dtype of the weights.
            layers: number of layers; None: `layers` of the subject.
        """
        model = self._make_model(self.layers if layers is None else layers)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))
        return model.to(self.device, dtype).eval()

    def untrained_model(self, layers: int = UNTRAINED_LAYERS) -> Decoder:
        """Return a small decoder with its initial weights."""
        return self._make_model(layers).to(self.device, torch.float64)

    def _make_model(self, layers: int) -> Decoder:
        torch.manual_seed(0)
        return Decoder(replace(self.config, layers=layers), self.make_encoding)

    def tokens(self, length: int = LENGTH, rows: int = 2) -> Tensor:
        """Return fixed random tokens (rows, length)."""
        generator = torch.Generator().manual_seed(1)
        shape = (rows, self.length(length))
        return torch.randint(CONFIG.vocab_size, shape, generator=generator).to(self.device)

    def short_and_long(self, rows: int = 2) -> list[Tensor]:
        """Return tokens (rows, length) of both lengths, or once if the encoding allows one only."""
        lengths = dict.fromkeys(self.length(wanted) for wanted in (LENGTH, self.longest))
        return [self.tokens(length, rows) for length in lengths]

    def trained_on_long(self) -> "Subject":
        """Return the subject with the long sequences as training length, if it can be built so."""
        longer = replace(self, train_length=self.length(self.longest))
        try:
            longer.make_encoding(longer.config, 0)
        except CRASHES:
            return self
        return longer

    def length(self, wanted: int) -> int:
        """Return the wanted length, limited by the number of positions of the encoding."""
        limit = self.make_encoding(self.config, 0).max_position
        return wanted if limit is None else min(wanted, limit)


def layer_outputs(model: Decoder, tokens: Tensor) -> list[Tensor]:
    """Return the output of each layer, (B, T, C) each."""
    outputs: list[Tensor] = []
    handles = [
        block.register_forward_hook(
            lambda block, args, returned: outputs.append(returned[0].detach())
        )
        for block in model.layers
    ]
    model(tokens)
    for handle in handles:
        handle.remove()
    return outputs


def training_outputs(model: Decoder, tokens: Tensor) -> list[Tensor]:
    """Return the output of each layer in training mode, with fixed random numbers."""
    outputs = seeded_outputs(model.train(), tokens)
    model.eval()
    return outputs


def seeded_outputs(model: Decoder, tokens: Tensor) -> list[Tensor]:
    """Return the output of each layer in the mode of the model, with fixed random numbers."""
    torch.manual_seed(0)
    return layer_outputs(model, tokens)


def outputs_and_gradients(
    model: Decoder, tokens: Tensor, backend: Backend
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return logits (B, T, vocab_size) and the gradients of parameters that have one."""
    model.zero_grad()
    out = model(tokens, backend=backend)
    out.square().mean().backward()
    named = model.named_parameters()
    found = {name: p.grad.clone() for name, p in named if p.grad is not None}
    return out.detach(), found


def with_length(what: str, tokens: Tensor) -> str:
    """Return the words with the number of tokens, if these are a long text."""
    length = tokens.shape[1]
    return what if length <= LENGTH else f"with {length} tokens, {what}"
