"""Find encodings with special layers that do not exist in a shallow model."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from pe_bench.config import ModelConfig
from pe_bench.decoder import hooks
from pe_bench.decoder.block import Block, Context
from pe_bench.decoder.model import MakeEncoding
from pe_bench.encoding import Encoding
from pe_bench.positions import Positions
from pe_bench.registry.plugins import Plugin

DEEP = 16  # number of layers of the model in which layers are compared
TOKENS = 12
TOLERANCE = 1e-9  # relative, in float64


class Depths:
    """Finder of encodings that treat layers differently only in deeper models.

    For example, an encoding of every fourth layer has no effect in a model with three layers.
    Models of one width share a result, because it depends neither on the vocabulary nor on lengths.
    """

    def __init__(self) -> None:
        self._unlike: dict[tuple[str, int, int, int], list[int]] = {}

    def describe_missing_layers(self, encoding: Plugin, config: ModelConfig) -> str | None:
        """Return a sentence if layers differ in a deep model but are equal in this model.

        Args:
            encoding: the encoding.
            config: shape of the model.
        """
        if config.layers >= DEEP:
            return None
        deep = self._find_unlike_deep(encoding, config)
        if not deep or find_unlike_layers(encoding.make, config):
            return None
        return (
            f"{describe_unlike(deep)}, but this model has {config.layers} and its layers are "
            f"equal: set --model.layers to {deep[0] + 1} or more"
        )

    def _find_unlike_deep(self, encoding: Plugin, config: ModelConfig) -> list[int]:
        key = (encoding.label, config.heads, config.kv_heads, config.width)
        if key not in self._unlike:
            self._unlike[key] = find_unlike_layers(encoding.make, replace(config, layers=DEEP))
        return self._unlike[key]


@torch.no_grad()
def find_unlike_layers(make_encoding: MakeEncoding, config: ModelConfig) -> list[int]:
    """Return the indices, from 0, of the layers whose output differs from layer 0.

    All layers get the same input, state and weights, so only the encoding can make a difference.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        block = Block(replace(config, mlp_width=1), 0).double().eval()
        first = make_encoding(config, 0).double().eval()
        for parameter in [*block.parameters(), *first.parameters()]:
            # Large enough for non-uniform attention at any width.
            width = parameter.shape[-1] if parameter.dim() else 1
            parameter.copy_(torch.randn_like(parameter) / width**0.5)
        tokens = torch.randint(config.vocab_size, (1, TOKENS))
        x = torch.randn(1, TOKENS, config.width, dtype=torch.float64)
        encodings = [first]
        if not first.shared:
            encodings += [_like(first, make_encoding(config, i)) for i in range(1, config.layers)]
    ids = hooks.position_ids(first, tokens)
    positions = Positions(ids, ids)
    state = hooks.prepare(first, x, positions)
    context = Context(positions, cache=None, backend="eager")
    outputs = []
    for layer in range(config.layers):
        block.self_attn.layer = layer
        encoding = encodings[0 if first.shared else layer]
        out, _ = block(x, encoding, state, context)
        outputs.append(out)
    return [layer for layer, out in enumerate(outputs) if _differ(out, outputs[0])]


def _like(first: Encoding, encoding: Encoding) -> Encoding:
    """Copy the parameters of another encoding that have the same name and shape."""
    encoding = encoding.double().eval()
    own = encoding.state_dict()
    same = {
        name: value
        for name, value in first.state_dict().items()
        if name in own and own[name].shape == value.shape
    }
    encoding.load_state_dict(same, strict=False)
    return encoding


def _differ(one: Tensor, other: Tensor) -> bool:
    return not torch.allclose(one, other, rtol=TOLERANCE, atol=TOLERANCE)


def describe_unlike(layers: Sequence[int]) -> str:
    """Return "layers 3, 7, 11 and 15 of 16 differ from layer 0"."""
    if len(layers) == 1:
        return f"layer {layers[0]} of {DEEP} differs from layer 0"
    *most, last = map(str, layers)
    return f"layers {', '.join(most)} and {last} of {DEEP} differ from layer 0"
