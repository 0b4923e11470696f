"""RoPE in windows of 4096 tokens in every other layer (Gemma 2 2024, arXiv 2408.00118)."""

from pe_bench.api import EncodingSpec, ModelConfig
from pe_bench.encodings.hybrid import Hybrid
from pe_bench.encodings.rope import BASE


class Gemma2(Hybrid):
    """Layers with a window and layers with all keys alternate, all with RoPE of base 10,000.

    | published | here |
    |---|---|
    | logits are capped at 50 by a tanh | not capped |
    | logits are scaled by 1 / sqrt(query_pre_attn_scalar) | by 1 / sqrt(D) |

    The window only matters for longer texts; small models need a smaller one.

    Args:
        every: distance between two global layers.
        window: number of last keys that are visible in local layers.
        base: base of the rotation.
    """

    family = "hybrid"
    label = "Gemma 2"
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
