"""No encoding: order enters through the causal mask (Kazemnejad et al. 2023, arXiv 2305.19466)."""

from typing import Any

from pe_bench.api import Encoding, ModelConfig


class NoPE(Encoding):
    """The shared decoder, without positions.

    The authors' code is a T5 decoder whose scores are not divided by sqrt(D); here they are.
    """

    family = "none"
    colour = "#000000"
    marker = "o"

    shift_invariant = True

    def __init__(self, model: ModelConfig, layer: int = 0) -> None:
        super().__init__(model, layer)  # without ids there are no options for them

    def llama_fields(self) -> dict[str, Any] | None:
        return {} if type(self) is NoPE else None
