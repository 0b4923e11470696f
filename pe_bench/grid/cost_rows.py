"""The estimated costs of one encoding on one task, and their form in a file."""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pe_bench.checks.model_cost import ModelCost
from pe_bench.config import ModelConfig
from pe_bench.grid.cost import RunCost
from pe_bench.system.files import write_atomic


@dataclass(frozen=True)
class GenerationCost:
    """The cost of generating one row.

    Attributes:
        tokens: tokens of the row, with its prompt.
        cache: bytes of the KV cache; 0: no cache can be used.
        per_token: bytes that one more token adds to the cache.
        prefill: floating-point operations of a prompt of `tokens` tokens.
        decoding: floating-point operations of the last token.
        reads: bytes of the weights and the cache, which the last token reads.
    """

    tokens: int
    cache: int
    per_token: int
    prefill: float
    decoding: float
    reads: int

    @staticmethod
    def of(model: ModelCost, tokens: int) -> "GenerationCost":
        """Return the cost of a row of `tokens` tokens."""
        cache = model.cache(tokens)
        return GenerationCost(
            tokens,
            cache,
            model.cache(tokens + 1) - cache,
            model.prefill(tokens),
            model.decode(tokens),
            model.weights + cache,
        )


@dataclass(frozen=True)
class CostRow:
    """The cost of one encoding on one task with one preset.

    Attributes:
        preset, task, encoding: labels.
        precision: "fp32" or "bf16".
        speed: assumed speed of training in 10^12 operations per second.
        model: shape of the model.
        training: cost of the training.
        generation: cost of generation at each length.
    """

    preset: str
    task: str
    encoding: str
    precision: str
    speed: float
    model: ModelConfig
    training: RunCost
    generation: tuple[GenerationCost, ...]

    @property
    def seconds(self) -> float:
        """Seconds of training at the assumed speed."""
        return self.training.operations / self.speed / 1e12

    def records(self) -> list[dict[str, Any]]:
        """Return a flat record for each length, or one without the keys of generation."""
        model = self.model
        record = {
            "task": self.task,
            "preset": self.preset,
            "encoding": self.encoding,
            "precision": self.precision,
            "layers": model.layers,
            "heads": model.heads,
            "kv_heads": model.kv_heads,
            "width": model.width,
            "mlp_width": model.mlp_width,
            "vocab_size": model.vocab_size,
            "parameters": self.training.parameters,
            "training_tokens": self.training.tokens,
            "training_flop": self.training.operations,
            "training_memory_bytes": round(self.training.memory),
            "training_flop_per_second": self.speed * 1e12,
            "training_seconds": self.seconds,
        }
        found = []
        for one in self.generation:
            of_length = {
                "generation_tokens": one.tokens,
                "cache_bytes": one.cache,
                "cache_bytes_per_token": one.per_token,
                "prefill_flop": one.prefill,
                "decoding_flop_per_token": one.decoding,
                "decoding_bytes_per_token": one.reads,
            }
            found.append({**record, **of_length})
        return found or [record]


def write_costs(target: Path, rows: Sequence[CostRow]) -> int:
    """Write all numbers to a .json or .csv file; return the number of records.

    Raises:
        SavingError: the file could not be saved.
    """
    records = [record for row in rows for record in row.records()]
    if target.suffix == ".json":
        write_atomic(target, json.dumps(records, indent=1, ensure_ascii=False) + "\n")
        return len(records)
    names = max(records, key=len)
    content = io.StringIO()
    writer = csv.DictWriter(content, list(names), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    write_atomic(target, content.getvalue())
    return len(records)
