"""NoPE in every 4th layer, RoPE in a window elsewhere (Yang et al. 2025, arXiv 2501.18795)."""

from pe_bench.api import EncodingSpec, ModelConfig
from pe_bench.encodings.hybrid import Hybrid
from pe_bench.encodings.rope import BASE


class RNoPESWA(Hybrid):
    """Layers l with (l + 1) % 4 == 0: all keys, no positions; the others: a window, RoPE.

    `hybrid` has the NoPE layers without windows, `hybrid:global=rope,window=N` only the windows.

    | paper, Command A | here |
    |---|---|
    | a window of 4096 for training texts of 8192, later 131,072 tokens | a quarter of the length |
    | a parallel block, LayerNorm | the decoder of all encodings |

    Args:
        every: distance between two layers without positions.
        window: number of last keys that are visible in the other layers; None is a quarter of the
            training length.
        base: base of the rotation in the other layers.
    """

    family = "hybrid"
    label = "RNoPE-SWA"
    colour = "#44AA99"
    marker = "s"

    tunable = BASE
    variants = ("every=2,window=8", "base=500")

    def __init__(
        self,
        model: ModelConfig,
        layer: int = 0,
        *,
        every: int = 4,
        window: int | None = None,
        base: float = 10_000.0,
    ) -> None:
        quarter = max(1, model.train_length // 4)
        super().__init__(
            model,
            layer,
            local=EncodingSpec(f"rope:base={base}"),
            every=every,
            window=quarter if window is None else window,
        )
