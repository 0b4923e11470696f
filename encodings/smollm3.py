"""RoPE, and no positions in every 4th layer (SmolLM3, Hugging Face 2025)."""

from pe_bench.api import EncodingSpec, ModelConfig
from pe_bench.encodings.hybrid import Hybrid
from pe_bench.encodings.rope import BASE


class SmolLM3(Hybrid):
    """Layers l with (l + 1) % 4 == 0 have no positions, the others RoPE of base 5,000,000.

    All keys are visible in all layers. The base is that of the released model for 64 k tokens;
    earlier training stages with shorter texts had smaller bases. Sources: config.json of the model,
    and Yang et al. 2025 (arXiv 2501.18795) for the order of the layers.

    | published | here |
    |---|---|
    | attention within a document | within a sequence |

    Args:
        every: distance between two layers without positions.
        base: base of the rotation.
    """

    family = "hybrid"
    colour = "#44AA99"
    marker = "X"

    tunable = BASE
    variants = ("every=2,base=500",)

    def __init__(
        self,
        model: ModelConfig,
        layer: int = 0,
        *,
        every: int = 4,
        base: float = 5_000_000.0,
    ) -> None:
        local = EncodingSpec(f"rope:base={base}")
        super().__init__(model, layer, local=local, global_=EncodingSpec("nope"), every=every)
