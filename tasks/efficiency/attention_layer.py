"""The attention of one layer, including all computations of an encoding in it."""

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from pe_bench.api import MakeEncoding, ModelConfig
from pe_bench.api.engine import AttentionLayer, Backend

LAYERS = 3
MIDDLE = 1  # reads the state of the layer before and passes a state to the layer after


class Given(nn.Module):
    """Replacement of a projection that returns a fixed tensor for any input.

    Args:
        tensor: the output, (1, N, heads D).
    """

    def __init__(self, tensor: Tensor) -> None:
        super().__init__()
        self.tensor = nn.Parameter(tensor)

    def forward(self, _: Tensor) -> Tensor:
        return self.tensor if torch.is_grad_enabled() else self.tensor.detach()


class MiddleLayer:
    """The middle one of three layers, for one sequence.

    Like a model with one layer, it computes position ids and tables in every call.

    Args:
        config: shape of the layer; `train_length` is the number of tokens, N.
        make_encoding: constructor of the encoding.
        backend: implementation of attention.
        device: "cpu" or "cuda".
        autocast: context manager for every call.
        dtype: dtype of queries, keys and values.
        projections: whether to include the products with the layer's four weight matrices.

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
        first = make_encoding(config, 0)
        encoding = first if first.shared else make_encoding(config, MIDDLE)
        self.layer = AttentionLayer(config, make_encoding, MIDDLE, encoding=encoding)
        self.backend = backend
        self.autocast = autocast
        length = config.train_length
        if not projections:
            attention: Any = self.layer.attention
            for name in ("q_proj", "k_proj", "v_proj"):
                width = getattr(attention, name).out_features
                setattr(attention, name, Given(torch.randn(1, length, width, dtype=dtype)))
            attention.o_proj = nn.Identity()
        self.layer.to(device)
        self.tokens = torch.randint(config.vocab_size, (1, length), device=device)
        size = (1, length, config.width)
        self.x = torch.randn(size, device=device, requires_grad=True)  # (1, N, C)
        self.gradients: list[Tensor] = []

    def forward(self) -> None:
        """Run a forward pass in evaluation, without gradients."""
        self.layer.eval()
        with torch.no_grad():
            self._attend()

    def forward_backward(self) -> None:
        """Run a forward and a backward pass in training."""
        self.layer.train()
        outputs = self._attend()
        if not self.gradients:
            self.gradients = [torch.randn_like(output) for output in outputs]
        torch.autograd.backward(outputs, self.gradients)
        self.x.grad = None
        self.layer.zero_grad()

    def _attend(self) -> list[Tensor]:
        """Return the layer's output (1, N, C) and the attended extra values."""
        with self.autocast:
            state = _as_received(self.layer.prepare(self.x, tokens=self.tokens))
            mixed, extra = self.layer.attend(
                self.x, state=state, tokens=self.tokens, backend=self.backend
            )
        return [mixed] if extra is None else [mixed, extra]


def _as_received(state: Any) -> Any:
    """Return a state as received by a later layer: contiguous leaf tensors with gradients."""
    if isinstance(state, tuple):
        return tuple(map(_as_received, state))
    if isinstance(state, Tensor) and state.is_floating_point():
        return state.detach().contiguous().requires_grad_(torch.is_grad_enabled())
    return state
