"""RoPE with windows, and a larger base in every 6th layer (Gemma 3 2025, arXiv 2503.19786)."""

from pe_bench.api import EncodingSpec, ModelConfig
from pe_bench.encodings.hybrid import Hybrid


class Gemma(Hybrid):
    """Five layers with a window and RoPE of base 10,000, then one with all keys and base 1,000,000.

    | published | here |
    |---|---|
    | a window of 1024 tokens for texts of 32 k | a quarter of the training length |
    | Gemma 3: the global base scaled by 8 for 128 k | not scaled |
    | Gemma 4: a quarter of the planes in global layers rotate | `proportional=0.25` |
    | QK normalisation | `--model.qk_norm rms` |

    Args:
        every: distance between two global layers.
        window: number of last keys that are visible in local layers; None is a quarter of the
            training length.
        proportional: fraction of the planes that rotate in global layers, the fastest ones.
    """

    family = "hybrid"
    colour = "#44AA99"
    marker = "D"

    variants = ("every=2,window=8", "proportional=0.25")

    def __init__(
        self,
        model: ModelConfig,
        layer: int = 0,
        *,
        every: int = 6,
        window: int | None = None,
        proportional: float = 1.0,
    ) -> None:
        quarter = max(1, model.train_length // 4)
        option = "" if proportional == 1 else f":proportional={proportional}"
        super().__init__(
            model,
            layer,
            global_=EncodingSpec(f"rope:base=1e6{option}"),
            every=every,
            window=quarter if window is None else window,
        )
