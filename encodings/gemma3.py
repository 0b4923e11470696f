"""RoPE with windows, and a larger base in global layers (Gemma 3 2025, arXiv 2503.19786)."""

from pe_bench.api import EncodingSpec, ModelConfig
from pe_bench.encodings.hybrid import Hybrid


class Gemma3(Hybrid):
    """Five layers with a window and RoPE of base 10,000, then one global layer, and so on.

    Global layers attend to all keys, with RoPE of base 1,000,000 whose frequencies are divided by 8
    for texts of 128 k tokens. The numbers are those of the models with at least 4 B parameters; the
    model with 1 B has `window=512,factor=1`. `gemma` has numbers for small models.

    | published | here |
    |---|---|
    | trained with `factor=1`, scaled by 8 afterwards | `factor` also applies in training |
    | QK normalisation | `--model.qk_norm rms` |

    The window only matters for longer texts; small models need a smaller one.

    Args:
        every: distance between two global layers.
        window: number of last keys that are visible in local layers.
        factor: divisor of the frequencies in global layers.
    """

    family = "hybrid"
    label = "Gemma 3"
    colour = "#44AA99"
    marker = "P"

    variants = ("every=2,window=8", "factor=1")

    def __init__(
        self,
        model: ModelConfig,
        layer: int = 0,
        *,
        every: int = 6,
        window: int = 1024,
        factor: float = 8.0,
    ) -> None:
        super().__init__(
            model,
            layer,
            local=EncodingSpec("rope:base=1e4"),
            global_=EncodingSpec(f"rope:base=1e6:scaling=pi:factor={factor}"),
            every=every,
            window=window,
        )
