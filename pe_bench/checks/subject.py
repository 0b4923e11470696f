"""The small model in which every encoding is checked, and its observable outputs."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pe_bench.config import ModelConfig
from pe_bench.decoder.attention import Backend
from pe_bench.decoder.model import Decoder, MakeEncoding

LENGTH = 40
TRAIN_LENGTH = 32
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
    """

    make_encoding: MakeEncoding
    device: str = "cpu"
    kv_heads: int = 0

    @property
    def config(self) -> ModelConfig:
        """Shape of the model."""
        return replace(CONFIG, kv_heads=self.kv_heads)

    def model(self, dtype: torch.dtype = torch.float64, layers: int = CONFIG.layers) -> Decoder:
        """Return a small decoder with fixed nonzero weights, in evaluation mode."""
        torch.manual_seed(0)
        model = Decoder(replace(self.config, layers=layers), self.make_encoding)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))
        return model.to(self.device, dtype).eval()

    def tokens(self, length: int = LENGTH, rows: int = 2) -> Tensor:
        """Return fixed random tokens (rows, length)."""
        generator = torch.Generator().manual_seed(1)
        shape = (rows, self.length(length))
        return torch.randint(CONFIG.vocab_size, shape, generator=generator).to(self.device)

    def length(self, wanted: int) -> int:
        """Return the wanted length, limited by the number of positions of the encoding."""
        limit = self.make_encoding(self.config, 0).max_position
        return wanted if limit is None else min(wanted, limit)


def layer_outputs(model: Decoder, tokens: Tensor) -> list[Tensor]:
    """Return the output of each layer, (B, T, C) each."""
    outputs: list[Tensor] = []
    handles = [
        block.register_forward_hook(lambda block, args, returned: outputs.append(returned[0]))
        for block in model.layers
    ]
    model(tokens)
    for handle in handles:
        handle.remove()
    return outputs


def training_outputs(model: Decoder, tokens: Tensor) -> list[Tensor]:
    """Return the output of each layer in training mode, with fixed random numbers."""
    torch.manual_seed(0)
    outputs = layer_outputs(model.train(), tokens)
    model.eval()
    return outputs


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
