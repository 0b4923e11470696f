"""RoPE in windows of 4096 tokens, and YaRN in every 4th layer (OLMo 3, Ai2 2025)."""

from pe_bench.api import EncodingSpec, ModelConfig
from pe_bench.encodings.hybrid import Hybrid
from pe_bench.encodings.rope import BASE


class OLMo3(Hybrid):
    """Three layers with a window and RoPE, then one with all keys and RoPE scaled by YaRN.

    The base is 500,000 in all layers. Only global layers are scaled: by 8, from the 8192 tokens of
    pre-training to 65,536. Source: config.json of the models (`olmo3` in transformers).

    | published | here |
    |---|---|
    | pre-trained with `factor=1`, scaled afterwards | `factor` also applies in training |
    | QK normalisation over all heads | `--model.qk_norm width` |

    The window only matters for longer texts; small models need a smaller one.

    Args:
        every: distance between two global layers.
        window: number of last keys that are visible in local layers.
        base: base of the rotation.
        factor: s of YaRN in global layers.
        original_length: sequence length before the scaling, in tokens.
    """

    family = "hybrid"
    label = "OLMo 3"
    colour = "#44AA99"
    marker = ">"

    tunable = BASE
    variants = ("every=2,window=8,base=500,factor=4,original_length=16",)

    def __init__(
        self,
        model: ModelConfig,
        layer: int = 0,
        *,
        every: int = 4,
        window: int = 4096,
        base: float = 500_000.0,
        factor: float = 8.0,
        original_length: int = 8192,
    ) -> None:
        plain = f"rope:base={base}"
        yarn = f"{plain}:scaling=yarn:factor={factor}:original_length={original_length}"
        super().__init__(
            model,
            layer,
            local=EncodingSpec(plain),
            global_=EncodingSpec(yarn),
            every=every,
            window=window,
        )
