"""The small model in which every encoding is checked, and what can be observed of it."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pe_bench.config import ModelConfig
from pe_bench.decoder.attention import Backend
from pe_bench.decoder.model import Decoder, MakeEncoding

LENGTH = 40
TRAIN_LENGTH = 32
# Layers enough for what happens in every fourth one only. Larger weights than a real model's:
# attention must be far from uniform for positions to matter.
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
    """An encoding under test: how to make one, and where to run it.

    Attributes:
        make_encoding: makes one for a layer.
        device: "cpu" or "cuda".
        kv_heads: key heads of the model; 0: as many as query heads.
    """

    make_encoding: MakeEncoding
    device: str = "cpu"
    kv_heads: int = 0

    @property
    def config(self) -> ModelConfig:
        """Shape of the model."""
        return replace(CONFIG, kv_heads=self.kv_heads)

    def model(self, dtype: torch.dtype = torch.float64, layers: int = CONFIG.layers) -> Decoder:
        """Return a small decoder without zero weights, always the same, in evaluation mode."""
        torch.manual_seed(0)
        model = Decoder(replace(self.config, layers=layers), self.make_encoding)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))
        return model.to(self.device, dtype).eval()

    def tokens(self, length: int = LENGTH, rows: int = 2) -> Tensor:
        """Return random tokens (rows, length), always the same."""
        generator = torch.Generator().manual_seed(1)
        shape = (rows, self.length(length))
        return torch.randint(CONFIG.vocab_size, shape, generator=generator).to(self.device)

    def length(self, wanted: int) -> int:
        """Return the wanted length, or as much of it as the encoding has positions for."""
        limit = self.make_encoding(self.config, 0).max_position
        return wanted if limit is None else min(wanted, limit)


def layer_outputs(model: Decoder, tokens: Tensor) -> list[Tensor]:
    """Return what each layer hands to the next, (B, T, C) each."""
    outputs: list[Tensor] = []
    handles = [
        block.register_forward_hook(lambda block, args, returned: outputs.append(returned[0]))
        for block in model.layers
    ]
    model(tokens)
    for handle in handles:
        handle.remove()
    return outputs


def outputs_and_gradients(
    model: Decoder, tokens: Tensor, backend: Backend
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return logits (B, T, vocab_size), and the gradient of each parameter that has one."""
    model.zero_grad()
    out = model(tokens, backend=backend)
    out.square().mean().backward()
    named = model.named_parameters()
    found = {name: p.grad.clone() for name, p in named if p.grad is not None}
    return out.detach(), found
