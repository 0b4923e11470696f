"""pe-bench: positional encodings for transformers, compared side by side.

    import pe_bench

    model = pe_bench.Decoder(pe_bench.ModelConfig(width=64), pe_bench.load_encoding("tape"))
    rows = pe_bench.run(["tape", "rope"], "flipflop")

The names below are imported when they are first used; docs/python.md shows each of them. Modules
with your encodings or tasks import their names from `pe_bench.api`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pe_bench.config import ModelConfig, TrainConfig
    from pe_bench.decoder.attention_layers import AttentionLayers
    from pe_bench.decoder.cache import Cache
    from pe_bench.decoder.generation import Sampling
    from pe_bench.decoder.layer import AttentionLayer
    from pe_bench.decoder.model import Decoder
    from pe_bench.errors import InputError
    from pe_bench.pretrained.checkpoint import Checkpoint, open_checkpoint
    from pe_bench.pretrained.saving import save_checkpoint
    from pe_bench.pretrained.weights import load_llama
    from pe_bench.python_api import draw_figures, load_encoding, put_encoding, run
    from pe_bench.reporting.frames import read_curves, read_results

__version__ = "0.1.0"

_HOMES = {
    "AttentionLayer": "decoder.layer",
    "AttentionLayers": "decoder.attention_layers",
    "Cache": "decoder.cache",
    "Checkpoint": "pretrained.checkpoint",
    "Decoder": "decoder.model",
    "InputError": "errors",
    "ModelConfig": "config",
    "Sampling": "decoder.generation",
    "TrainConfig": "config",
    "draw_figures": "python_api",
    "load_encoding": "python_api",
    "load_llama": "pretrained.weights",
    "open_checkpoint": "pretrained.checkpoint",
    "put_encoding": "python_api",
    "read_curves": "reporting.frames",
    "read_results": "reporting.frames",
    "run": "python_api",
    "save_checkpoint": "pretrained.saving",
}

__all__ = [
    "AttentionLayer",
    "AttentionLayers",
    "Cache",
    "Checkpoint",
    "Decoder",
    "InputError",
    "ModelConfig",
    "Sampling",
    "TrainConfig",
    "draw_figures",
    "load_encoding",
    "load_llama",
    "open_checkpoint",
    "put_encoding",
    "read_curves",
    "read_results",
    "run",
    "save_checkpoint",
]


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: `import pe_bench` needs neither torch nor pandas."""
    if name not in _HOMES:
        raise AttributeError(f"module 'pe_bench' has no attribute '{name}'")
    value = getattr(import_module(f"pe_bench.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
