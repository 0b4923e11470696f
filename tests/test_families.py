"""Families of models of transformers: the decoder has the same logits, or refuses the model."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from llamas import SHAPE, tokens

from pe_bench import put_encoding
from pe_bench.decoder.cache import Cache
from pe_bench.pretrained.checkpoint import open_checkpoint
from pe_bench.pretrained.saving import save_checkpoint

pytestmark = pytest.mark.slow

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

LENGTH = 60
Folder = Callable[[str], Path]
SPECIAL = {"pad_token_id": None, "bos_token_id": 1, "eos_token_id": 2}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "partial_rotary_factor": 0.75,
    "short_factor": [1.0, 1.5, 2.0],
    "long_factor": [1.0, 2.0, 3.0],
}
BY_TYPE = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
YARN_IN_GLOBAL_LAYERS = {
    "full_attention": {
        "rope_type": "yarn",
        "factor": 4.0,
        "rope_theta": 5e5,
        "original_max_position_embeddings": 24,
    },
    "sliding_attention": {"rope_type": "default", "rope_theta": 5e5},
}
GRANITE = {
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.3,
    "attention_multiplier": 0.2,
    "logits_scaling": 1.5,
}
MIXED = ["full_attention", "sliding_attention", "full_attention", "sliding_attention"]
GEMMA = {"sliding_window": 12, "head_dim": 16, "query_pre_attn_scalar": 20}
FOUR_LAYERS = {"num_hidden_layers": 4}
GPT2 = {"num_key_value_heads": None, "layer_norm_epsilon": 1e-4}
CAPS = {"attn_logit_softcapping": 4.0, "final_logit_softcapping": 2.0}

# Class, config, and the spec of the encoding.
FAMILIES: dict[str, tuple[str, dict[str, Any], str]] = {
    "llama, head_dim": ("Llama", {"head_dim": 16}, "rope"),
    "mistral": ("Mistral", {"sliding_window": 12}, "hybrid:window=12,pattern=l"),
    "ministral": (
        "Ministral",
        {
            "sliding_window": 12,
            "layer_types": ["full_attention", *["sliding_attention"] * 2],
            "head_dim": 8,
        },
        "hybrid:global=rope,window=12,pattern=gll",
    ),
    "qwen 2": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 12, "max_window_layers": 2},
        "hybrid:global=rope,window=12,pattern=ggl",
    ),
    "qwen 3": ("Qwen3", {"head_dim": 16}, "rope"),
    "qwen 3, proportional": (
        "Qwen3",
        {"rope_parameters": {"rope_type": "proportional", "partial_rotary_factor": 0.5}},
        "rope:proportional=0.5",
    ),
    "smollm 3": ("SmolLM3", FOUR_LAYERS, "hybrid:local=rope:base=2000000,pattern=lllg"),
    "smollm 3, listed": (
        "SmolLM3",
        {"no_rope_layers": [0, 1, 1]},
        "hybrid:local=rope:base=2000000,pattern=gll",
    ),
    "phi 3": (
        "Phi3",
        {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.75}},
        "rope:rotary=0.75",
    ),
    "phi 3, longrope": (
        "Phi3",
        {
            "rope_parameters": LONGROPE,
            "original_max_position_embeddings": 24,
            "max_position_embeddings": 96,
            "sliding_window": 50,
        },
        "hybrid:local=rope:scaling=longrope:factor=4:original_length=24:factors=1.0;2.0;3.0"
        ":short_factors=1.0;1.5;2.0:rotary=0.75,window=50,pattern=l",
    ),
    "gpt 2": ("GPT2", {**GPT2, "max_position_embeddings": 64}, "learned:rows=64"),
    "gpt 2, wider": (
        "GPT2",
        {**GPT2, "n_inner": 40, "tie_word_embeddings": False, "max_position_embeddings": 2048},
        "learned",
    ),
    "olmo": ("Olmo", {}, "rope"),
    "olmo 2": ("Olmo2", {}, "rope"),
    "olmo 3": (
        "Olmo3",
        {"sliding_window": 12, **FOUR_LAYERS},
        "hybrid:local=rope:base=500000,global=rope:base=500000,window=12,pattern=lllg",
    ),
    "olmo 3, yarn": (
        "Olmo3",
        {
            "sliding_window": 12,
            "rope_parameters": YARN_IN_GLOBAL_LAYERS,
            "max_position_embeddings": 96,
            **FOUR_LAYERS,
        },
        "hybrid:local=rope:base=500000,global=rope:base=500000:scaling=yarn:factor=4"
        ":original_length=24:beta_fast=32,window=12,pattern=lllg",
    ),
    "exaone 4": (
        "Exaone4",
        {"sliding_window": 12, **FOUR_LAYERS},
        "hybrid:window=12,pattern=lllg",
    ),
    "exaone 4, no windows": (
        "Exaone4",
        {"sliding_window": None, "layer_types": ["full_attention"] * 3},
        "rope",
    ),
    "granite": ("Granite", GRANITE, "rope"),
    "gemma 2": ("Gemma2", {**GEMMA, **CAPS}, "hybrid:global=rope,window=12,pattern=lg"),
    "gemma 3": (
        "Gemma3Text",
        {**GEMMA, "rope_parameters": BY_TYPE, "num_hidden_layers": 7},
        "hybrid:global=rope:base=1000000:scaling=pi:factor=8,window=12,pattern=lllllg",
    ),
}
# Fused tensors, and a partial rotation that other types of RoPE do not have.
NEEDS_CODE = ("phi 3", "phi 3, longrope", "gpt 2", "gpt 2, wider", "qwen 3, proportional")
CACHED = [
    name for name in FAMILIES if "longrope" not in name
]  # longrope: cached keys keep old frequencies


def reference(name: str) -> Any:
    """Return a tiny model of transformers whose weights have no special values."""
    family, changes, _ = FAMILIES[name]
    config = getattr(transformers, f"{family}Config")(**{**SHAPE, **SPECIAL, **changes})
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    names = {"Gemma3Text": "Gemma3ForCausalLM", "GPT2": "GPT2LMHeadModel"}
    model = getattr(transformers, names.get(family, f"{family}ForCausalLM"))(config)
    offset = 0.0 if "Gemma" in family else 1.0
    with torch.no_grad():
        for what, parameter in model.named_parameters():
            parameter.normal_(offset if "norm" in what or "ln_" in what else 0.0, 0.15)
    return model.eval()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """Return a function that returns the folder of a tiny model of a family, made once."""
    root = tmp_path_factory.mktemp("families")

    def make(name: str) -> Path:
        if not (root / name).exists():
            reference(name).save_pretrained(root / name)
        return root / name

    return make


@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_logits_are_those_of_transformers(name: str, folder: Folder) -> None:
    model = open_checkpoint(folder(name)).load()
    for length in (20, LENGTH):
        expected = reference(name)(tokens(length=length)).logits
        found = model(tokens(length=length))
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-4 * float(expected.abs().max()))
        assert expected.std() > 0.02


@pytest.mark.parametrize("name", CACHED)
@torch.no_grad()
def test_cached_decoding_is_that_of_transformers(name: str, folder: Folder) -> None:
    model, other = open_checkpoint(folder(name)).load(), reference(name)
    cache = Cache(2, LENGTH)
    past = transformers.DynamicCache(config=other.config)
    for piece in tokens().split([20, 1, 1, 30, 1, 7], dim=1):
        expected = other(piece, past_key_values=past, use_cache=True).logits
        found = model(piece, cache)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-4 * float(expected.abs().max()))


@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_a_model_is_saved_as_one_of_its_family(name: str, folder: Folder, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(folder(name))
    save_checkpoint(checkpoint.load(), tmp_path, checkpoint.encoding)
    kind = json.loads((tmp_path / "config.json").read_text())["model_type"]
    if name in NEEDS_CODE:
        assert kind == "pe_bench"
        return
    assert kind == reference(name).config.model_type
    found = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)(tokens()).logits
    expected = reference(name)(tokens()).logits
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4 * float(expected.abs().max()))


@pytest.mark.parametrize("name", ["gemma 2", "gemma 3"])
@torch.no_grad()
def test_a_family_is_saved_without_its_windows(name: str, folder: Folder, tmp_path: Path) -> None:
    """Classes of transformers may need the size of a window that no layer has."""
    model = open_checkpoint(folder(name)).load("rope")
    save_checkpoint(model, tmp_path / "saved", "rope")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "saved").eval()
    tokens = torch.randint(SHAPE["vocab_size"], (2, LENGTH))
    torch.testing.assert_close(theirs(tokens).logits, model(tokens), rtol=0, atol=1e-4)


@torch.no_grad()
def test_layers_of_one_kind_can_be_changed(folder: Folder) -> None:
    checkpoint = open_checkpoint(folder("gemma 3"))
    longer = checkpoint.spec("hybrid:global=rope:scaling=none")
    assert longer == checkpoint.encoding.replace(":scaling=pi:factor=8", "")
    assert "window=5" in checkpoint.spec("hybrid:window=5")
    logits = checkpoint.load(longer)(tokens())
    assert not torch.allclose(logits, checkpoint.load()(tokens()), atol=1e-3)


@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_encodings_inside_transformers(name: str) -> None:
    model = reference(name)
    expected = model(tokens()).logits
    inside = put_encoding(model, FAMILIES[name][2].partition(":")[0])
    found = inside(tokens()).logits
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4 * float(expected.abs().max()))
    theirs = {id(parameter) for parameter in model.parameters()}
    copied = [n for n, p in inside.named_parameters() if id(p) not in theirs]
    fused = {"gpt 2": "_proj", "phi 3": "_proj"}.get(name.partition(",")[0])
    assert (copied == []) == (fused is None)
    assert all(fused in n for n in copied if fused)


@torch.no_grad()
def test_new_positions_replace_those_of_gpt_2() -> None:
    model = reference("gpt 2")
    inside = put_encoding(model, "nope")
    assert not list(inside.model.encodings.parameters())
    model.transformer.wpe.weight.zero_()
    expected = model(tokens()).logits
    torch.testing.assert_close(inside(tokens()).logits, expected, rtol=0, atol=1e-5)
    with_table = put_encoding(model, "learned")
    assert with_table.model.encodings[0].table is model.transformer.wpe.weight
