"""config.json of transformers: supported fields in both forms, and refused ones by name."""

import hashlib
import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from llamas import KINDS, SHAPE
from safetensors.torch import save_file

from pe_bench.errors import InputError
from pe_bench.pretrained import weight_files
from pe_bench.pretrained.checkpoint import Checkpoint, open_checkpoint
from pe_bench.pretrained.families import OWN
from pe_bench.pretrained.llama_config import parse_config
from pe_bench.pretrained.weight_files import BLOCK, has_own_head, sample_files
from pe_bench.pretrained.weights import LLAMA

SCALED = ("llama 3.1", "linear", "dynamic", "yarn", "longrope")


def config_of(kind: str, **changed: Any) -> dict[str, Any]:
    """Return a config.json as transformers 5 writes it; None leaves a field out."""
    family, changes = KINDS[kind]
    content = {
        "model_type": family.lower(),
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        **SHAPE,
        **deepcopy(changes),
    }
    rotation = {"rope_theta": 10_000.0, **content.get("rope_parameters", {"rope_type": "default"})}
    content |= {"rope_parameters": rotation, **changed}
    return {name: value for name, value in content.items() if value is not None}


def test_the_shape_is_read() -> None:
    changes = {"num_key_value_heads": None, "initializer_range": 0.3, "rms_norm_eps": 1e-3}
    model = parse_config(config_of("llama 2", **changes)).model
    assert (model.layers, model.heads, model.kv_heads, model.width) == (3, 6, 6, 48)
    assert (model.mlp_width, model.vocab_size, model.train_length) == (64, 270, 24)
    assert (model.init_std, model.norm_eps) == (0.3, 1e-3)
    assert not model.tied_embeddings and not model.qkv_bias
    qwen = parse_config(config_of("qwen 2")).model
    assert qwen.tied_embeddings and qwen.qkv_bias
    own = parse_config(config_of("llama 2", model_type=OWN, pe_bench={"qkv_bias": True})).model
    assert own.qkv_bias


@pytest.mark.parametrize("kind", ["llama 3", *SCALED])
def test_the_old_form_of_rope_parameters(kind: str) -> None:
    """It has `rope_theta` and `rope_scaling`, with the kind as "type" or "rope_type"."""
    new = config_of(kind)
    old = deepcopy(new)
    scaling = old.pop("rope_parameters")
    old["rope_theta"] = scaling.pop("rope_theta")
    old["rope_scaling"] = scaling
    assert parse_config(old) == parse_config(new)
    scaling["type"] = scaling.pop("rope_type")
    assert parse_config(old) == parse_config(new)
    base = new["rope_parameters"]["rope_theta"]
    plain = "rope" if base == 10_000 else "rope:base=500000"
    old["rope_scaling"] = None
    assert Checkpoint(Path(), parse_config(old)).encoding == plain


@pytest.mark.parametrize(
    ("kind", "spec", "expected"),
    [
        ("llama 2", "tape", "tape"),
        ("llama 3", "tape", "tape:base=500000"),
        ("llama 3", "alibi", "alibi"),
        ("llama 3", "rope:scaling=pi,factor=4", "rope:base=500000,scaling=pi,factor=4"),
        ("linear", "tape:position_size=8", "tape:position_size=8,scaling=pi,factor=4"),
        ("linear", "rope:base=500000", "rope:base=500000,scaling=pi,factor=4"),
        ("linear", "rope:scaling=none", "rope"),
    ],
)
def test_another_encoding_has_the_rotation_of_the_checkpoint(
    kind: str, spec: str, expected: str
) -> None:
    assert Checkpoint(Path(), parse_config(config_of(kind))).spec(spec) == expected


def test_two_forms_of_the_rotation_that_differ_are_refused() -> None:
    config = config_of("llama 3.1")
    both = {**config, "rope_scaling": config["rope_parameters"]}
    assert parse_config(both) == parse_config(config)
    for scaling in ({"rope_type": "default"}, {"type": "linear", "factor": 2.0}):
        with pytest.raises(InputError, match="rope_parameters and rope_scaling both exist"):
            parse_config({**config, "rope_scaling": scaling})


@pytest.mark.parametrize("kind", ["llama 3", "linear", "dynamic"])
def test_fields_without_an_effect_are_left_out(kind: str) -> None:
    config = config_of(kind)
    rotation = {**config["rope_parameters"], "partial_rotary_factor": 1.0}
    changed = {**config, "original_max_position_embeddings": 8, "rope_parameters": rotation}
    assert parse_config(changed) == parse_config(config)


ORIGINAL = "original_max_position_embeddings"
YARN = {"rope_type": "yarn", "factor": 4.0}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"model_type": "opt"}, "model_type is 'opt', and only llama, mistral, ministral, qwen2"),
    ({"model_type": None}, "model_type is 'None'"),
    ({"hidden_size": None}, "hidden_size is missing"),
    ({"max_position_embeddings": None}, "max_position_embeddings is missing"),
    ({"hidden_act": "gelu"}, "hidden_act is gelu, but the decoder's MLP has silu"),
    ({"attention_bias": True}, "attention_bias is True"),
    ({"mlp_bias": True}, "mlp_bias is True"),
    ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types has 2 layers of"),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
    ({"quantization_config": {"bits": 4}}, "quantization_config is"),
    ({"model_type": "qwen2", "num_key_value_heads": None}, "num_key_value_heads is None"),
    ({"num_key_value_heads": 4}, "model.kv_heads must divide model.heads"),
    ({"hidden_size": "wide"}, "hidden_size is 'wide', but must be a number"),
    ({"num_key_value_heads": "few"}, "num_key_value_heads is 'few', but must be a whole"),
    ({"hidden_size": 48.5}, "hidden_size is '48.5', but must be a number"),
    ({"rope_parameters": "default"}, "rope_parameters is 'default', but must be an object"),
    ({"rope_parameters": {"rope_type": "spiral"}}, "rope_type 'spiral' is not one of default"),
    ({"rope_parameters": {"rope_type": "linear", "turns": 3}}, "rope_parameters has 'turns'"),
    ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "differ between layers"),
    ({"rope_parameters": {"rope_type": "llama3", "factor": 2}}, "has no 'low_freq_factor'"),
    ({"rope_parameters": {"rope_type": "linear", "factor": 0.5}}, "factor must be at least 1"),
    ({"rope_parameters": {"rope_type": "linear", "factor": "x"}}, "factor is 'x', but must be a n"),
    ({"rope_parameters": {**YARN, ORIGINAL: 0}}, "has a value of the wrong type or size"),
    ({"num_hidden_layers": 10**12}, "num_hidden_layers is 1000000000000, but must be from 1 to 10"),
]


@pytest.mark.parametrize(("changes", "sentence"), REFUSED)
def test_configs_that_are_refused(changes: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config_of("llama 2", **changes)))
    with pytest.raises(InputError, match="(?s)" + sentence) as error:
        Checkpoint.load(open_checkpoint(tmp_path))
    assert str(path) in str(error.value)


def test_samples_are_of_all_parts_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two checkpoints of one shape differ only in some numbers after a long header."""
    blocks = 5
    monkeypatch.setattr(weight_files, "BLOCKS", blocks)
    path = tmp_path / "model.safetensors"
    header = (2 * BLOCK).to_bytes(8, "little") + bytes(2 * BLOCK)
    size = len(header) + 40 * BLOCK
    sampled = [block * (size - BLOCK) // (blocks - 1) for block in range(1, blocks)]
    found = []
    for place in (None, *sampled, size - 1):
        content = bytearray(header.ljust(size, b"\0"))
        if place is not None:
            content[place] = 1
        path.write_bytes(content)
        found.append(hashlib.sha256(sample_files(tmp_path)).hexdigest())
    assert len(set(found)) == len(found)


def test_a_head_is_the_folders_own_if_it_differs(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    assert not has_own_head(tmp_path, LLAMA)
    words = torch.arange(6.0).view(3, 2)
    for head, own in ((words, False), (words + 1, True)):
        save_file({"model.embed_tokens.weight": words, "lm_head.weight": head.clone()}, path)
        assert has_own_head(tmp_path, LLAMA) == own
    save_file({"model.embed_tokens.weight": words}, path)
    assert not has_own_head(tmp_path, LLAMA)
