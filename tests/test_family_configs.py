"""Configs of all families are read correctly, and equally after they are written.

No weights are made, see `test_families.py` for the numbers.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from helpers import some_slow
from llamas import KINDS, SHAPE
from test_families import BY_TYPE, FAMILIES, MIXED, NEEDS_CODE, SPECIAL
from test_inside_transformers import PLAIN, PLAIN_OTHERS
from test_inside_transformers import SHAPE as ENCODED
from test_llama_config import config_of

from pe_bench.config import BlockConfig
from pe_bench.decoder.model import Decoder
from pe_bench.errors import InputError
from pe_bench.pretrained.checkpoint import Checkpoint
from pe_bench.pretrained.families import FAMILIES as BY_KIND
from pe_bench.pretrained.families import complete_fields
from pe_bench.pretrained.layer_plan import find_rotating, find_windows, with_layers
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


def config_json(name: str) -> dict[str, Any]:
    """Return the config.json that transformers writes for a model of a family."""
    family, changes, _ = FAMILIES[name]
    config = getattr(transformers, f"{family}Config")(**{**SHAPE, **SPECIAL, **changes})
    content: dict[str, Any] = json.loads(config.to_json_string())
    return content


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
    written = json.loads(
        json.dumps(plain or make_config(model.config, plugins.load("encoding", encoding)))
    )
    again, same = make(written)
    assert same.config == model.config
    assert again.partition(":")[0] == encoding.partition(":")[0]
    assert describe_layers(same) == describe_layers(model)
    return encoding, written


@pytest.mark.parametrize("name", some_slow(FAMILIES, EVERYDAY))
def test_a_family_is_read_and_written(name: str) -> None:
    content = config_json(name)
    encoding, written = read_again(content)
    assert encoding == FAMILIES[name][2]
    assert written["model_type"] == ("pe_bench" if name in NEEDS_CODE else content["model_type"])


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


OF_KINDS = (
    "nope",
    "smollm3:every=2,base=500",
    "cohere2:every=2,window=8,base=500",
    "hybrid:window=8",
    "hybrid:pattern=l,window=9",
    "hybrid:global=rope,window=9,pattern=gl",
    "gemma2",
    "pose",
)


@pytest.mark.parametrize("spec", some_slow([*PLAIN, *PLAIN_OTHERS], OF_KINDS))
def test_an_encoding_of_a_plain_model_is_written_and_read(spec: str) -> None:
    model = make_empty(ENCODED, plugins.load("encoding", spec).make)
    content = plain_config(model)
    assert content is not None
    assert content["architectures"] == [f"{PLAIN_OTHERS.get(spec, 'Llama')}ForCausalLM"]
    _, same = make(json.loads(json.dumps(content)))
    assert same.config == model.config
    assert describe_layers(same) == describe_layers(model)


@pytest.mark.parametrize(
    "spec", ["alibi", "tape", "gemma", "hybrid:chunk=6", "hybrid:window=1", "rope:rotary=0.5"]
)
def test_other_encodings_have_no_plain_config(spec: str) -> None:
    assert plain_config(make_empty(ENCODED, plugins.load("encoding", spec).make)) is None


OLD_SCALING = {"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": 2.0}}
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("qwen 3", {"model_type": "cohere2"}, "model_type is 'cohere2', and only llama, mistral"),
    ("qwen 3", {"model_type": "qwen3_moe"}, "model_type is 'qwen3_moe'"),
    ("qwen 3", {"attention_bias": True}, "attention_bias is True"),
    ("qwen 3", {"layer_types": ["linear_attention"] * 3}, "layer_types has 3 layers of the types"),
    ("qwen 3", {"layer_types": ["full_attention"]}, "layer_types has 1 layers"),
    ("qwen 3", {"layer_types": ["sliding_attention"] * 3}, "layer_types has 3 layers"),
    ("qwen 3", {"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
    ("qwen 3", {"rope_parameters": BY_TYPE}, "rope_parameters differ between layers"),
    ("qwen 3", {"rope_parameters": {"chunked_attention": {}}}, "rope_parameters are for chunked"),
    ("smollm 3", {"mlp_bias": True}, "mlp_bias is True"),
    ("smollm 3", {"no_rope_layers": [1]}, "no_rope_layers has 1 entries"),
    ("smollm 3", {"use_sliding_window": True, "sliding_window": 9, "layer_types": MIXED}, "kinds"),
    ("phi 3", {"hidden_act": "relu"}, "hidden_act is relu, but the decoder's MLP has silu or"),
    ("phi 3, longrope", {"rope_parameters": {"rope_type": "su"}}, "rope_type 'su' is not one of"),
    ("olmo 2", {"clip_qkv": 8.0}, "clip_qkv is 8.0"),
    ("granite", {"attention_bias": True}, "attention_bias is True"),
    ("gpt 2", {"scale_attn_weights": False}, "scale_attn_weights is False"),
    ("gpt 2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx is True"),
    ("gpt 2", {"add_cross_attention": True}, "add_cross_attention is True"),
    ("gpt 2", {"activation_function": "gelu"}, "activation_function is gelu"),
    ("gpt 2", {"n_embd": None}, "hidden_size is missing"),
    ("olmo", {"clip_qkv": 8.0}, "clip_qkv is 8.0"),
    ("exaone 4", {"layer_types": None, "sliding_window_pattern": "LLLG"}, "sliding_window_pattern"),
    ("gemma 2", {"hidden_activation": "gelu"}, "hidden_activation is gelu"),
    ("gemma 3", {"use_bidirectional_attention": True}, "use_bidirectional_attention is True"),
    ("gemma 3", {"rope_parameters": {"rope_theta": 9.0}}, "rope_parameters has no types of layers"),
    ("gemma 3", OLD_SCALING, "rope_scaling has the old field type"),
    ("olmo 3", {"rope_parameters": None, "rope_theta": 9.0}, "rope_theta is 9.0, but Olmo3"),
    ("gpt 2", {"num_attention_heads": 3}, "n_head is 6 and num_attention_heads is 3"),
    ("qwen 3", {"num_hidden_layers": 0}, "num_hidden_layers is 0, but must be from 1 to 10,000"),
    ("qwen 3", {"head_dim": "8"}, "head_dim is '8', but must be from 1"),
    ("gemma 3", {"model_type": "gemma3"}, "model_type is 'gemma3'"),
    ("gemma 3", {"quantization_config": {"bits": 4}}, "quantization_config is"),
]


@pytest.mark.parametrize(("name", "changes", "sentence"), REFUSED)
def test_fields_that_are_refused(name: str, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        make({**config_json(name), **changes})


WRONG_TYPES: list[tuple[str, str, Any]] = [
    ("qwen 3", "tie_word_embeddings", "no"),
    ("qwen 3", "tie_word_embeddings", None),
    ("qwen 3", "use_sliding_window", 1),
    ("gpt 2", "scale_attn_weights", None),
    ("granite", "residual_multiplier", None),
    ("granite", "residual_multiplier", True),
    ("gemma 2", "final_logit_softcapping", "8"),
    ("smollm 3", "no_rope_layer_interval", 1.5),
    ("mistral", "sliding_window", "8"),
    ("mistral", "sliding_window", True),
    ("olmo 3", "layer_types", []),
    ("qwen 3", "rope_parameters", []),
    ("qwen 3", "rope_parameters.rope_theta", None),
    ("qwen 3", "rope_parameters.rope_theta", "8"),
    ("gemma 3", "rope_parameters.full_attention.factor", None),
    ("gemma 3", "rope_parameters.sliding_attention.rope_theta", "8"),
]


@pytest.mark.parametrize(("name", "field", "value"), WRONG_TYPES)
def test_values_of_another_type(name: str, field: str, value: Any) -> None:
    """Transformers refuses them, too; they could be read as another value."""
    content = config_json(name)
    *parents, last = field.split(".")
    inner = content
    for parent in parents:
        inner = inner[parent]
    inner[last] = value
    with pytest.raises(InputError, match=rf"^{last} is .*, but must "):
        make(content)
    with pytest.raises(Exception):  # noqa: B017 - its type depends on the field
        transformers.AutoModelForCausalLM.from_config(
            getattr(transformers, f"{FAMILIES[name][0]}Config").from_dict(content)
        )


BLOCKS: dict[str, dict[str, Any]] = {
    "qwen 3": {"head_dim": 16},
    "gpt 2": {"norm": "layer", "gated": False, "bias": True, "activation": "gelu_tanh"},
    "olmo": {"norm": "fixed"},
    "olmo 2": {"norms": "output"},
    "granite": {
        "embedding_scale": 3.0,
        "residual_scale": 0.3,
        "score_scale": 0.2,
        "logit_scale": 1 / 1.5,
    },
    "gemma 2": {
        "norms": "both",
        "norm_offset": True,
        "activation": "gelu_tanh",
        "head_dim": 16,
        "embedding_scale": 48**0.5,
        "score_scale": 20**-0.5,
        "score_cap": 4.0,
        "logit_cap": 2.0,
    },
}


@pytest.mark.parametrize("name", BLOCKS)
def test_the_block_of_a_family(name: str) -> None:
    model = parse_config(config_json(name)).model
    assert model.block == BlockConfig(**BLOCKS[name])
    assert model.qk_norm == {"qwen 3": "rms", "olmo 2": "width"}.get(name, "none")
    if name == "gpt 2":
        assert (model.mlp_width, model.norm_eps, model.kv_heads) == (4 * 48, 1e-4, 6)


def test_the_leading_channels_of_a_head_rotate() -> None:
    assert parse_config(config_json("phi 3")).names.turning == 6
    assert parse_config(config_json("qwen 3, proportional")).names.turning is None


T, F = True, False
LAYERS: list[tuple[str, dict[str, Any], list[bool], list[bool]]] = [
    ("llama", {"sliding_window": 8}, [F] * 5, [T] * 5),
    ("mistral", {"sliding_window": 8}, [T] * 5, [T] * 5),
    ("mistral", {"sliding_window": None}, [F] * 5, [T] * 5),
    ("qwen2", {"sliding_window": 8}, [F] * 5, [T] * 5),
    (
        "qwen3",
        {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 3},
        [F, F, F, T, T],
        [T] * 5,
    ),
    ("gemma2", {"sliding_window": 8}, [T, F, T, F, T], [T] * 5),
    ("olmo3", {"sliding_window": 8}, [T, T, T, F, T], [T] * 5),
    ("gemma3_text", {"sliding_window_pattern": 2}, [T, F, T, F, T], [T] * 5),
    (
        "ministral",
        {"layer_types": ["full_attention", *["sliding_attention"] * 3, "full_attention"]},
        [F, T, T, T, F],
        [T] * 5,
    ),
    ("smollm3", {}, [F] * 5, [T, T, T, F, T]),
    (
        "smollm3",
        {"use_sliding_window": True, "sliding_window": 8},
        [F, F, F, T, F],
        [T, T, T, F, T],
    ),
    ("smollm3", {"no_rope_layer_interval": 2}, [F] * 5, [T, F, T, F, T]),
    ("smollm3", {"no_rope_layers": [0, 1, 1, 0, 1, 1, 1]}, [F] * 5, [F, T, T, F, T]),
    ("exaone4", {"sliding_window": 8}, [T, T, T, F, T], [T, T, T, F, T]),
    ("exaone4", {"sliding_window": None}, [F] * 5, [T] * 5),
]


@pytest.mark.parametrize(("kind", "fields", "windows", "rotates"), LAYERS)
def test_windows_and_rotations_of_layers(
    kind: str, fields: dict[str, Any], windows: list[bool], rotates: list[bool]
) -> None:
    family = BY_KIND[kind]
    content = complete_fields(family, {"num_hidden_layers": 5, **fields})
    found = find_windows(family, content)
    assert found == windows
    assert find_rotating(family, content, found) == rotates


FULL_ONLY = {"rope_type": "default", "rope_theta": 1e6}
ROTATIONS: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any] | None]] = [
    ("llama", {}, {"rope_type": "default", "rope_theta": 1e4}, None),
    ("smollm3", {}, {"rope_type": "default", "rope_theta": 2e6}, None),
    (
        "llama",
        {"rope_theta": 3.0, "rope_scaling": None},
        {"rope_type": "default", "rope_theta": 3.0},
        None,
    ),
    (
        "llama",
        {"rope_theta": 3.0, "rope_scaling": {"type": "linear", "factor": 2.0}},
        {"rope_type": "linear", "factor": 2.0, "rope_theta": 3.0},
        None,
    ),
    (
        "llama",
        {
            "rope_parameters": {"rope_type": "yarn", "factor": 2.0, "rope_theta": 7.0},
            "rope_theta": 3.0,
            "original_max_position_embeddings": 9,
        },
        {
            "rope_type": "yarn",
            "factor": 2.0,
            "rope_theta": 7.0,
            "original_max_position_embeddings": 9,
        },
        None,
    ),
    (
        "phi3",
        {"partial_rotary_factor": 0.5},
        {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
        None,
    ),
    ("gemma3_text", {}, FULL_ONLY, {"rope_type": "default", "rope_theta": 1e4}),
    (
        "gemma3_text",
        {"rope_local_base_freq": 5.0, "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
        {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        {"rope_type": "default", "rope_theta": 5.0},
    ),
    (
        "olmo3",
        {},
        {"rope_type": "default", "rope_theta": 5e5},
        {"rope_type": "default", "rope_theta": 5e5},
    ),
    (
        "gemma3_text",
        {"rope_parameters": {"full_attention": {"rope_theta": 2.0}, "sliding_attention": {}}},
        {"rope_type": "default", "rope_theta": 2.0},
        {"rope_type": "default", "rope_theta": 1e4},
    ),
    (
        "gemma3_text",
        {
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0},
                "sliding_attention": {},
            },
            "rope_theta": 3.0,
        },
        {"rope_type": "linear", "factor": 8.0, "rope_theta": 3.0},
        {"rope_type": "default", "rope_theta": 1e4},
    ),
]


@pytest.mark.parametrize(("kind", "fields", "rotation", "local"), ROTATIONS)
def test_rotations(
    kind: str, fields: dict[str, Any], rotation: dict[str, Any], local: dict[str, Any] | None
) -> None:
    content = {**config_of("llama 2", rope_parameters=None), "model_type": kind, **fields}
    activation = BY_KIND[kind].activation
    content[activation] = content.pop("hidden_act")
    config = parse_config(content)
    assert config.rotation == rotation and config.local_rotation == local
    assert config.of_part("global").rotation == rotation
    assert config.of_part("local").rotation == (local or rotation)


@pytest.mark.parametrize("name", some_slow(FAMILIES, EVERYDAY))
def test_configs_of_transformers_4(name: str) -> None:
    """`rope_theta`, `rope_scaling`, `rope_local_base_freq`, and no layer types."""
    new = config_json(name)
    old = {**new}
    if name.startswith("gpt"):
        old |= {"n_ctx": new["n_positions"]}
        old.pop("tie_word_embeddings" if new["tie_word_embeddings"] else "add_cross_attention")
        assert parse_config(old) == parse_config(new)
        return
    full = old.pop("rope_parameters")
    if "full_attention" in full:
        local, full = full["sliding_attention"], full["full_attention"]
        if name.startswith("gemma"):
            old["rope_local_base_freq"] = local["rope_theta"]
    scaling = {**full}
    old["rope_theta"] = scaling.pop("rope_theta")
    if "proportional" not in name:
        old["partial_rotary_factor"] = scaling.pop("partial_rotary_factor", None)
    old["rope_scaling"] = scaling if scaling["rope_type"] != "default" else None
    if not name.startswith("ministral"):
        old.pop("layer_types", None)
    assert parse_config(old) == parse_config(new)


UNREAD = {
    "use_sliding_window": False,
    "max_window_layers": 2,
    "sliding_window_pattern": 2,
    "layer_types": ["full_attention"] * 3,
    "rms_norm_eps": 0.5,
}


@pytest.mark.parametrize(
    ("kind", "field"), [(kind, field) for kind in BY_KIND for field in BY_KIND[kind].unread]
)
def test_fields_that_transformers_ignores_change_nothing(kind: str, field: str) -> None:
    name = next(name for name in FAMILIES if config_json(name)["model_type"] == kind)
    content = config_json(name)
    assert parse_config({**content, field: UNREAD[field]}) == parse_config(
        {key: value for key, value in content.items() if key != field}
    )


@pytest.mark.parametrize("name", ["gpt 2", "gemma 2", "gemma 3"])
def test_the_default_activation_is_that_of_the_family(name: str) -> None:
    content = config_json(name)
    field = BY_KIND[content["model_type"]].activation
    without = {key: value for key, value in content.items() if key != field}
    assert parse_config(without).model.block.activation == "gelu_tanh"


WINDOWS = "hybrid:local=rope,window=12,pattern=l"


@pytest.mark.parametrize(
    ("spec", "full"),
    [
        ("rope", "rope"),
        ("hybrid", WINDOWS),
        ("hybrid:window=5,first=2", "hybrid:local=rope,window=5,pattern=l,first=2"),
        ("hybrid:every=2", "hybrid:local=rope,window=12,every=2"),
    ],
)
def test_layers_of_the_model_complete_a_spec(spec: str, full: str) -> None:
    assert with_layers(spec, WINDOWS) == full


@pytest.mark.parametrize("name", ["mistral", "gpt 2"])
def test_a_warning_names_layers_that_are_replaced(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = Checkpoint(Path(), parse_config(config_json(name)))
    kind = "learned" if name == "gpt 2" else "hybrid"
    assert checkpoint.spec(kind) == checkpoint.encoding
    assert capsys.readouterr().err == ""
    assert checkpoint.spec("rope") == "rope"
    replaced = f"rope replaces the encoding of the model, which is {kind}:"
    assert replaced in capsys.readouterr().err
