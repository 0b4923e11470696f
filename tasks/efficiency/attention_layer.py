"""The attention of one layer, with whatever an encoding does in it."""

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from pe_bench.api import Encoding, ModelConfig, Positions
from pe_bench.decoder import hooks
from pe_bench.decoder.attention import Backend
from pe_bench.decoder.model import Attention, Context, MakeEncoding

LAYERS = 3
MIDDLE = 1  # has a layer before it, whose state it reads, and one after it, which reads its own


class Given(nn.Module):
    """Stands for a projection: returns a tensor whatever it is given.

    Args:
        tensor: (1, N, heads D).
    """

    def __init__(self, tensor: Tensor) -> None:
        super().__init__()
        self.tensor = nn.Parameter(tensor)

    def forward(self, _: Tensor) -> Tensor:
        return self.tensor


class AttentionLayer:
    """The middle one of three layers, for one sequence.

    It makes position ids and tables as a model of one layer would, in every call.

    Args:
        config: its heads and width; `train_length` is the number of tokens, N.
        make_encoding: of the encoding.
        backend: of the attention.
        device: "cpu" or "cuda".
        autocast: of every call.
        dtype: of queries, keys and values.
        projections: whether the products with the layer's four weight matrices count too.

    Raises:
        InputError: the encoding does not fit the shape.
    """

    def __init__(
        self,
        config: ModelConfig,
        make_encoding: MakeEncoding,
        backend: Backend,
        *,
        device: str,
        autocast: AbstractContextManager[Any],
        dtype: torch.dtype,
        projections: bool,
    ) -> None:
        torch.manual_seed(0)
        config = config.changed(layers=LAYERS)
        encoding = make_encoding(config, 0)
        if not encoding.shared:
            encoding = make_encoding(config, MIDDLE)
        self.encoding: Encoding = encoding.to(device)
        self.backend = backend
        self.autocast = autocast
        self.tokens = torch.randint(config.vocab_size, (1, config.train_length), device=device)
        attention: Any = Attention(config, MIDDLE)
        if not projections:
            for name in ("q_proj", "k_proj", "v_proj"):
                width = getattr(attention, name).out_features
                values = torch.randn(1, config.train_length, width, dtype=dtype)
                setattr(attention, name, Given(values))
            attention.o_proj = nn.Identity()
        self.attention = attention.to(device)
        size = (1, config.train_length, config.width)
        self.x = torch.randn(size, device=device, requires_grad=True)  # (1, N, C)
        self.gradients: list[Tensor] = []

    def forward(self) -> None:
        """Run a forward pass in evaluation, without gradients."""
        self.encoding.eval()
        with torch.no_grad():
            self._attend()

    def forward_backward(self) -> None:
        """Run a forward and a backward pass in training."""
        self.encoding.train()
        outputs = self._attend()
        if not self.gradients:
            self.gradients = [torch.randn_like(output) for output in outputs]
        torch.autograd.backward(outputs, self.gradients)
        self.x.grad = None
        for module in (self.attention, self.encoding):
            module.zero_grad()

    def _attend(self) -> list[Tensor]:
        """Return the layer's output (1, N, C), and extra values that were attended to."""
        encoding = self.encoding
        with self.autocast:
            ids = hooks.position_ids(encoding, self.tokens)  # (1, N) or (1, N, K)
            ids = hooks.draw_positions(encoding, ids, torch.tensor([self.tokens.shape[1]]))
            positions = Positions(ids, ids)
            state = _as_received(hooks.prepare(encoding, self.x, positions))
            context = Context(positions, None, self.backend, None)
            mixed, extra = self.attention(self.x, encoding, state, context)
        return [mixed] if extra is None else [mixed, extra]


def _as_received(state: Any) -> Any:
    """Return a state as a later layer has it: whole tensors that gradients are asked for."""
    if isinstance(state, tuple):
        return tuple(map(_as_received, state))
    if isinstance(state, Tensor) and state.is_floating_point():
        return state.detach().contiguous().requires_grad_(torch.is_grad_enabled())
    return state
