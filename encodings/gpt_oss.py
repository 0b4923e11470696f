"""YaRN, sinks, and windows of 128 tokens in every other layer (OpenAI 2025, arXiv 2508.10925)."""

from functools import partial

from pe_bench.api import EncodingSpec, Layers, ModelConfig, Visibility
from pe_bench.encodings.hybrid import find_global_layers
from pe_bench.encodings.rope import BASE
from pe_bench.encodings.sinks import Sinks


class GptOss(Layers):
    """Layers with a window and layers with all keys alternate, with YaRN and a sink per head.

    RoPE has base 150,000 and is scaled by 32 from 4096 tokens. The ramp of YaRN does not start and
    end at whole indices. The sinks are learned. Source: config.json of gpt-oss-20b and
    gpt-oss-120b.

    | published | here |
    |---|---|
    | sinks are initialised at random, standard deviation 0.02 | with 0 |
    | pre-trained with `factor=1`, scaled afterwards | `factor` also applies in training |

    Args:
        every: distance between two global layers.
        window: number of last keys that are visible in local layers.
        base: base of the rotation.
        factor: s of YaRN, in all layers.
        original_length: sequence length before the scaling, in tokens.
    """

    family = "hybrid"
    label = "gpt-oss"
    colour = "#44AA99"
    marker = "p"

    tunable = BASE
    parameters_per_layer = "N*H once"
    variants = ("every=3,window=8,base=500,factor=4,original_length=16",)

    def __init__(
        self,
        model: ModelConfig,
        layer: int = 0,
        *,
        every: int = 2,
        window: int = 128,
        base: float = 150_000.0,
        factor: float = 32.0,
        original_length: int = 4096,
    ) -> None:
        yarn = EncodingSpec(
            f"rope:base={base}:scaling=yarn:factor={factor}:original_length={original_length}"
            ":truncate=false"
        )
        makers = [partial(Sinks, base=yarn)] * 2
        super().__init__(
            model, makers, find_global_layers(model, every), [Visibility(window), None]
        )
