"""RoPE in windows of 1024 tokens, and of longer waves (Gemma 3 2025, arXiv 2503.19786)."""

from pe_bench.api import EncodingSpec, ModelConfig
from pe_bench.encodings.hybrid import Hybrid


class Gemma3(Hybrid):
    """Five layers with a window and RoPE of base 10,000, then one with all keys.

    Global layers have RoPE of base 1,000,000, whose frequencies are divided by 8 for texts of
    128 k tokens. The numbers are those of the models with 4 B parameters and more; the one with
    1 B has `window=512,factor=1`. `gemma` is the same with numbers that suit a small model.

    | published | here |
    |---|---|
    | trained with `factor=1`, scaled by 8 afterwards | as the option says, in training too |
    | QK normalisation | `--model.qk_norm rms` |

    The window has an effect only in longer texts: give a small one to a small model.

    Args:
        every: distance of two global layers.
        window: last keys that local layers see.
        factor: what divides the frequencies of global layers.
    """

    family = "hybrid"
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
