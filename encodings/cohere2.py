"""RoPE in windows of 4096 tokens, NoPE in every 4th layer (Command R7B, Cohere 2024)."""

from pe_bench.api import EncodingSpec, ModelConfig
from pe_bench.encodings.hybrid import Hybrid
from pe_bench.encodings.rope import BASE


class Cohere2(Hybrid):
    """Three layers with a window and RoPE of base 50,000, then one with all keys and no positions.

    The numbers are from config.json of Command R7B and Command A (`cohere2` in transformers); the
    design is by Yang et al. 2025 (arXiv 2501.18795). `rnope-swa` has numbers for small models.

    | published | here |
    |---|---|
    | rotates neighbouring channels | the halves of a head, which is equivalent |
    | a parallel block, LayerNorm | the decoder of all encodings |

    The window only matters for longer texts; small models need a smaller one.

    Args:
        every: distance between two layers without positions.
        window: number of last keys that are visible in the other layers.
        base: base of the rotation in the other layers.
    """

    family = "hybrid"
    label = "Cohere 2"
    colour = "#44AA99"
    marker = "<"

    tunable = BASE
    variants = ("every=2,window=8,base=500",)

    def __init__(
        self,
        model: ModelConfig,
        layer: int = 0,
        *,
        every: int = 4,
        window: int = 4096,
        base: float = 50_000.0,
    ) -> None:
        super().__init__(
            model,
            layer,
            local=EncodingSpec(f"rope:base={base}"),
            global_=EncodingSpec("nope"),
            every=every,
            window=window,
        )
