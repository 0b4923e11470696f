"""Local and global layers with encodings of their own (Yang et al. 2025, arXiv 2501.18795)."""

from pe_bench.api import EncodingSpec, InputError, Layers, ModelConfig, Visibility


class Hybrid(Layers):
    """One encoding for most layers, which may see a window or chunks, and one for every n-th.

    It takes the published hybrids apart: `hybrid` alone is NoPE in every 4th layer,
    `hybrid:global=rope,window=32` is the window alone, `hybrid:window=32` both.

    | published | here |
    |---|---|
    | 24 layers and more, every 4th global | in fewer than `every` layers the last one is global |

    An encoding whose layers share parameters shares them among the local ones and among the
    global ones.

    Args:
        local: spec of the encoding of most layers, colons between its options.
        global_: spec of that of layers every - 1, 2 every - 1, ...
        every: distance of two global layers.
        window: last keys that local layers see; None: all.
        chunk: size of the chunks whose keys local layers see; None: no chunks.
        first: first keys that local layers see besides.
    """

    variants = ("window=8", "local=t5,global=alibi,every=2,chunk=7", "window=5,first=3")

    def __init__(
        self,
        model: ModelConfig,
        layer: int = 0,
        *,
        local: EncodingSpec = EncodingSpec("rope"),  # noqa: B008  # as immutable as any str
        global_: EncodingSpec = EncodingSpec("nope"),  # noqa: B008
        every: int = 4,
        window: int | None = None,
        chunk: int | None = None,
        first: int = 0,
    ) -> None:
        if every < 1:
            raise InputError(f"hybrid:every must be at least 1, not {every}")
        if first and window is None and chunk is None:
            raise InputError("hybrid:first has no effect without a window or chunks")
        step = min(every, model.layers)
        kinds = [int((layer + 1) % step == 0) for layer in range(model.layers)]
        visible = None
        if window is not None or chunk is not None:
            visible = Visibility(window, chunk, first)
        super().__init__(model, [local, global_], kinds, [visible, None])
