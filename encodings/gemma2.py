"""RoPE in windows of 4096 tokens in every other layer (Gemma 2 2024, arXiv 2408.00118)."""

from pe_bench.api import EncodingSpec, ModelConfig
from pe_bench.encodings.hybrid import Hybrid
from pe_bench.encodings.rope import BASE


class Gemma2(Hybrid):
    """A layer with a window, then one with all keys, both with RoPE of base 10,000.

    | published | here |
    |---|---|
    | logits are capped at 50 by a tanh | not capped |
    | the fixed scale 1 / sqrt(query_pre_attn_scalar) | 1 / sqrt(D) |

    The window has an effect only in longer texts: give a small one to a small model.

    Args:
        every: distance of two global layers.
        window: last keys that local layers see.
        base: of the rotation.
    """

    family = "hybrid"
    colour = "#44AA99"
    marker = "v"

    tunable = BASE
    variants = ("every=3,window=8,base=500",)

    def __init__(
        self,
        model: ModelConfig,
        layer: int = 0,
        *,
        every: int = 2,
        window: int = 4096,
        base: float = 10_000.0,
    ) -> None:
        rope = EncodingSpec(f"rope:base={base}")
        super().__init__(model, layer, local=rope, global_=rope, every=every, window=window)
