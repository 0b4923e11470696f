"""Checkpoints of transformers in the decoder: the same logits, and refusals by name."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from llamas import KINDS, ORIGINAL, reference, tokens, write_tokenizer

from pe_bench.decoder.cache import Cache
from pe_bench.errors import InputError
from pe_bench.pretrained.checkpoint import open_checkpoint

pytestmark = pytest.mark.slow

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

LENGTH = 60
# transformers continues with cached keys that have the frequencies of shorter sequences.
WITHOUT_CACHE = ("dynamic", "longrope")

Folder = Callable[[str], Path]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """Return the folder of a tiny model, made once."""
    root = tmp_path_factory.mktemp("checkpoints")

    def make(kind: str) -> Path:
        path = root / kind
        if not path.exists():
            reference(kind).save_pretrained(path)
            write_tokenizer(path)
        return path

    return make


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_logits_are_those_of_transformers(kind: str, folder: Folder) -> None:
    model = open_checkpoint(folder(kind)).load()
    for length in (ORIGINAL - 4, LENGTH):
        given = tokens(length=length)
        expected = reference(kind)(given).logits
        torch.testing.assert_close(model(given), expected, rtol=0, atol=1e-5)
        assert expected.abs().max() > 0.5


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in WITHOUT_CACHE])
@torch.no_grad()
def test_cached_decoding_is_that_of_transformers(kind: str, folder: Folder) -> None:
    model, other = open_checkpoint(folder(kind)).load(), reference(kind)
    cache = Cache(2, LENGTH)
    past = transformers.DynamicCache(config=other.config)
    for piece in tokens().split([20, 1, 1, 30, 1, 7], dim=1):
        expected = other(piece, past_key_values=past, use_cache=True).logits
        torch.testing.assert_close(model(piece, cache), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["llama 3.1", *WITHOUT_CACHE])
@torch.no_grad()
def test_answers_are_those_of_transformers(kind: str, folder: Folder) -> None:
    """Lengths go from below the original length to beyond it."""
    model, other = open_checkpoint(folder(kind)).load(), reference(kind)
    prompt = tokens(1, ORIGINAL - 4)
    expected = other.generate(
        prompt, max_new_tokens=12, do_sample=False, use_cache=False, eos_token_id=None
    )
    (answer,) = model.generate(prompt.tolist(), max_new_tokens=12)
    assert answer == expected[0, prompt.shape[1] :].tolist()


def test_scalings_act(folder: Folder) -> None:
    """Without its scaling, each model has other logits, so the comparisons above can fail."""
    given = tokens()
    for kind in ("llama 3.1", "linear", "dynamic", "yarn", "yarn, all options", "longrope"):
        checkpoint = open_checkpoint(folder(kind))
        plain = checkpoint.load(f"rope:base={checkpoint.config.rotation['rope_theta']}")
        assert (plain(given) - checkpoint.load()(given)).abs().max() > 0.01, kind


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in WITHOUT_CACHE])
@torch.no_grad()
def test_a_new_tape_is_the_model(kind: str, folder: Folder) -> None:
    checkpoint = open_checkpoint(folder(kind))
    model = checkpoint.load(checkpoint.spec("tape"))
    assert any("sigma" in name for name, _ in model.named_parameters())
    expected = reference(kind)(tokens()).logits
    torch.testing.assert_close(model(tokens()), expected, rtol=0, atol=1e-5)


def test_shards_and_types(folder: Folder, tmp_path: Path) -> None:
    model = reference("llama 3.1").bfloat16()
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    checkpoint = open_checkpoint(tmp_path)
    assert {p.dtype for p in checkpoint.load().parameters()} == {torch.float32}
    same = checkpoint.load(dtype=None)
    assert {p.dtype for p in same.parameters()} == {torch.bfloat16}
    weights = {f"model.{name}": tensor for name, tensor in same.state_dict().items()}
    weights["lm_head.weight"] = weights.pop("model.lm_head.weight")
    assert weights.keys() == model.state_dict().keys()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())


def test_the_tokenizer_has_no_ids_that_the_model_lacks(folder: Folder, tmp_path: Path) -> None:
    shutil.copytree(folder("llama 2"), tmp_path, dirs_exist_ok=True)
    tokenizer = open_checkpoint(tmp_path).tokenizer()
    assert tokenizer.vocab_size == 270
    assert (tokenizer.bos, tokenizer.eos) == (1, 2)
    assert tokenizer.pad == tokenizer.sep == tokenizer.eos
    assert tokenizer.decode(tokenizer.encode("né")) == "né"
    change(tmp_path, vocab_size=250)
    with pytest.raises(InputError, match="has 259 ids, but the model has 250"):
        open_checkpoint(tmp_path).tokenizer()


def change(path: Path, **values: Any) -> None:
    """Change fields of a config.json; None removes one."""
    config = json.loads((path / "config.json").read_text()) | values
    config = {name: value for name, value in config.items() if value is not None}
    (path / "config.json").write_text(json.dumps(config))


def test_a_single_file_is_read_beside_the_index_of_another_model(
    folder: Folder, tmp_path: Path
) -> None:
    shutil.copytree(folder("llama 2"), tmp_path, dirs_exist_ok=True)
    expected = open_checkpoint(tmp_path).load()(tokens())
    weights = safetensors.torch.load_file(tmp_path / "model.safetensors")
    others = {name: 2 * tensor for name, tensor in weights.items()}
    index = json.dumps({"weight_map": dict.fromkeys(weights, "model-1.safetensors")})
    (tmp_path / "model.safetensors.index.json").write_text(index)
    for shard in (None, others):  # without and with its files
        if shard is not None:
            safetensors.torch.save_file(shard, tmp_path / "model-1.safetensors")
        assert torch.equal(open_checkpoint(tmp_path).load()(tokens()), expected)
        theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
        torch.testing.assert_close(theirs(tokens()).logits, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("same", [True, False])
@torch.no_grad()
def test_a_head_beside_tied_embeddings(same: bool, folder: Folder, tmp_path: Path) -> None:
    """transformers keeps the head in the file if it differs from the embeddings."""
    shutil.copytree(folder("smollm"), tmp_path, dirs_exist_ok=True)
    path = tmp_path / "model.safetensors"
    weights = safetensors.torch.load_file(path)
    head = weights["model.embed_tokens.weight"].clone()
    weights["lm_head.weight"] = head if same else head.flip(0).contiguous()
    safetensors.torch.save_file(weights, path, metadata={"format": "pt"})
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.model.tied_embeddings == same
    model = checkpoint.load()
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    torch.testing.assert_close(model(tokens()), theirs(tokens()).logits, rtol=0, atol=1e-5)
