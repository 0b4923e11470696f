"""Configs of all families are read correctly, and equally after they are written.

No weights are made, see `test_families.py` for the numbers.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from helpers import some_slow
from llamas import KINDS, SHAPE
from test_families import FAMILIES, NEEDS_CODE, SPECIAL
from test_llama_config import config_of

from pe_bench.decoder.model import Decoder
from pe_bench.pretrained.checkpoint import Checkpoint
from pe_bench.pretrained.llama_config import make_config, parse_config
from pe_bench.pretrained.plain import plain_config
from pe_bench.pretrained.weights import make_empty
from pe_bench.registry import plugins

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

EVERYDAY = (
    "mistral",
    "qwen 2",
    "smollm 3, listed",
    "phi 3, longrope",
    "gpt 2, wider",
    "olmo 3, yarn",
    "exaone 4",
    "granite",
    "gemma 2",
    "gemma 3",
)


def make(content: dict[str, Any]) -> tuple[str, Decoder]:
    """Return the encoding of a config, and its decoder."""
    config = parse_config(content)
    encoding = Checkpoint(Path(), config).encoding
    return encoding, make_empty(config.model, plugins.load("encoding", encoding).make)


def describe_layers(model: Decoder) -> list[Any]:
    """Return what each layer sees, and its rotation, with the ten digits that specs have."""
    found = []
    for layer in range(model.config.layers):
        encoding = model.encoding_of(layer)
        text = json.dumps(encoding.llama_fields())
        fields = json.loads(text, parse_float=lambda number: round(float(number), 9))
        found.append((encoding.visible, fields))
    return found


def read_again(content: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the encoding of a config, and the config that is written of its decoder."""
    encoding, model = make(content)
    plain = plain_config(model)
    written = json.loads(json.dumps(plain or make_config(model.config, encoding)))
    again, same = make(written)
    assert same.config == model.config
    assert again.partition(":")[0] == encoding.partition(":")[0]
    assert describe_layers(same) == describe_layers(model)
    return encoding, written


@pytest.mark.parametrize("name", some_slow(FAMILIES, EVERYDAY))
def test_a_family_is_read_and_written(name: str) -> None:
    family, changes, spec = FAMILIES[name]
    config = getattr(transformers, f"{family}Config")(**{**SHAPE, **SPECIAL, **changes})
    encoding, written = read_again(json.loads(config.to_json_string()))
    assert encoding == spec
    assert written["model_type"] == ("pe_bench" if name in NEEDS_CODE else config.model_type)


@pytest.mark.parametrize("kind", KINDS)
def test_a_scaling_is_read_and_written(kind: str) -> None:
    content = config_of(kind)
    _, written = read_again(content)
    assert written["model_type"] == content["model_type"]
    before, after = content["rope_parameters"], written["rope_parameters"]
    for name in before.keys() - {"mscale", "mscale_all_dim"}:  # they decide attention_factor
        assert after[name] == before[name]
    length = written["max_position_embeddings"]
    scaled = before.get("original_max_position_embeddings", 0) * before.get("factor", 0)
    assert length == (scaled or content["max_position_embeddings"])
