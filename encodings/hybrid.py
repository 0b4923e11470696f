"""Local and global layers with different encodings (Yang et al. 2025, arXiv 2501.18795)."""

from functools import partial
from typing import ClassVar

from pe_bench.api import EncodingSpec, InputError, Layers, ModelConfig, Visibility, make_base

EVERY = 4
LOCAL = EncodingSpec("rope")
GLOBAL = EncodingSpec("nope")


class Hybrid(Layers):
    """One encoding for most layers, with a window or chunks, and another for every n-th layer.

    It expresses published hybrids and their parts, which papers rarely report:

    | published hybrid | spec |
    |---|---|
    | NoPE in every 4th layer: SmolLM3 | `hybrid` |
    | a window in the other three | `hybrid:global=rope,window=32` |
    | both: RNoPE-SWA, Command A | `rnope-swa`, or `hybrid:window=32` |
    | chunks, NoPE with a temperature: Llama 4 | `irope` |
    | a window and two bases: Gemma | `gemma` |
    | a window in every layer: Mistral 7B 0.1 | `hybrid:pattern=l,window=4096` |

    Those with the numbers of a model have its name: `gemma2`, `gemma3`, `llama4`, `smollm3`,
    `cohere2`, `olmo3`, `gpt-oss`.

    In a model with fewer than `every` layers the last one is global. Published windows have 512 to
    8192 tokens; a small model needs windows that are shorter than its texts.

    If an encoding shares parameters between layers, local layers share them with each other, and so
    do global layers.

    Args:
        local: spec of the encoding of most layers, with colons between its options.
        global_: spec of the encoding of layers every - 1, 2 every - 1, ... (option `global`).
        every: distance between two global layers.
        window: number of last keys that are visible in local layers; None: all.
        chunk: size of the chunks that local layers attend within; None: no chunks.
        first: number of first keys that are also visible in local layers.
        pattern: l for local and g for global layers, from the first layer on and repeated. It
            replaces `every`, and the two cannot be combined.
    """

    family = "hybrid"
    colour = "#44AA99"
    marker = "o"

    variants: ClassVar[tuple[str, ...]] = (
        "window=8",
        "local=t5,global=alibi,every=2,chunk=7",
        "window=5,first=3",
        "window=6,pattern=gl",
    )

    def __init__(
        self,
        model: ModelConfig,
        layer: int = 0,
        *,
        local: EncodingSpec = LOCAL,
        global_: EncodingSpec = GLOBAL,
        every: int = EVERY,
        window: int | None = None,
        chunk: int | None = None,
        first: int = 0,
        pattern: str = "",
    ) -> None:
        if first and window is None and chunk is None:
            raise InputError("hybrid:first has no effect without a window or chunks")
        visible = None
        if window is not None or chunk is not None:
            visible = Visibility(window, chunk, first)
        makers = [partial(make_base, local), partial(make_base, global_)]
        kinds = find_global_layers(model, every)
        if pattern:
            if every != EVERY:
                raise InputError("hybrid:every has no effect with pattern: leave one of them out")
            kinds = follow_pattern(model, pattern)
        if (every == 1 or (pattern and "l" not in pattern)) and (visible or local != LOCAL):
            raise InputError(
                "hybrid:local, window and chunk have no effect, because no layer is local: change "
                "pattern or every"
            )
        if pattern and "g" not in pattern and global_ != GLOBAL:
            raise InputError(
                "hybrid:global has no effect, because no layer is global: change pattern"
            )
        super().__init__(model, makers, kinds, [visible, None])


def find_global_layers(model: ModelConfig, every: int) -> list[int]:
    """Return 1 for every n-th layer, for the last one of fewer layers, and 0 for the others.

    Raises:
        InputError: `every` is below 1.
    """
    if every < 1:
        raise InputError(f"every must be at least 1, not {every}")
    step = min(every, model.layers)
    return [int((layer + 1) % step == 0) for layer in range(model.layers)]


def follow_pattern(model: ModelConfig, pattern: str) -> list[int]:
    """Return 0 for local layers, 1 for global ones, given l and g in turn.

    Raises:
        InputError: another letter.
    """
    if not set(pattern) <= {"l", "g"}:
        raise InputError(
            f"pattern must consist of l and g for local and global layers, not '{pattern}'"
        )
    return [int(pattern[layer % len(pattern)] == "g") for layer in range(model.layers)]
