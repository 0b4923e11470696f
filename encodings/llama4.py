"""Chunks of 8192 tokens with scaled RoPE, and NoPE with a temperature (Llama 4, Meta 2025)."""

from pe_bench.api import ModelConfig
from pe_bench.encodings.irope import IRoPE


class Llama4(IRoPE):
    """`irope` with the numbers of Llama 4 Scout.

    Three layers with chunks are followed by one layer with all keys, no positions and a
    temperature. The layers with chunks have RoPE of base 500,000, scaled by 16 as in Llama 3.1, and
    normalise queries and keys after the rotation. Maverick has `factor=1` and no normalisation.
    Sources: config.json of the models and the code of transformers (models/llama4).

    Chunks and temperature only matter for longer texts; small models need smaller ones.

    Args:
        every: distance between two layers without positions.
        chunk: size of a chunk.
        start: number of keys where the temperature starts to grow.
        scale: scale of the temperature; 0 turns it off.
        base: base of the rotation in local layers.
        factor: s of the scaling in local layers; 1: no scaling.
    """

    family = "hybrid"
    label = "Llama 4"
    colour = "#44AA99"
    marker = "h"

    variants = ("every=2,chunk=8,start=8,base=500", "factor=1,scale=0.2")

    def __init__(
        self,
        model: ModelConfig,
        layer: int = 0,
        *,
        every: int = 4,
        chunk: int = 8192,
        start: int = 8192,
        scale: float = 0.1,
        base: float = 500_000.0,
        factor: float = 16.0,
    ) -> None:
        super().__init__(
            model,
            layer,
            every=every,
            chunk=chunk,
            start=start,
            scale=scale,
            base=base,
            factor=factor,
        )
