"""Folders of models: a saved model is read again with the same bits, and damage is refused."""

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from helpers import some_slow
from test_inside_transformers import PLAIN, PLAIN_OTHERS, decoder
from torch import Tensor

from pe_bench.config import BlockConfig
from pe_bench.decoder.model import Decoder
from pe_bench.encoding import Encoding
from pe_bench.errors import InputError
from pe_bench.pretrained import saving
from pe_bench.pretrained.checkpoint import open_checkpoint
from pe_bench.pretrained.llama_config import AUTO_MAP
from pe_bench.pretrained.saving import MODELING, save_checkpoint
from pe_bench.pretrained.tensor_names import HEAD
from pe_bench.pretrained.weights import load_llama
from pe_bench.registry import catalogue, plugins
from pe_bench.text.tokenizer import ByteTokenizer

EVERYDAY = ("hybrid:window=6,pattern=gl", "tape")


def small(spec: str, **shape: Any) -> Decoder:
    return decoder(spec, layers=1, **shape)


def read_json(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def stored(folder: Path) -> dict[str, Tensor]:
    """Return the tensors of all files of a folder."""
    found: dict[str, Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        found |= safetensors.torch.load_file(path)
    return found


def assert_equal(found: Decoder, expected: Decoder) -> None:
    """Check that two models have the same shape and the same bits."""
    assert found.config == expected.config and not found.training
    weights = expected.state_dict()
    assert found.state_dict().keys() == weights.keys()
    for name, tensor in found.state_dict().items():
        assert tensor.dtype == weights[name].dtype and torch.equal(tensor, weights[name]), name


@pytest.mark.parametrize("spec", some_slow([*PLAIN, *PLAIN_OTHERS, *EVERYDAY], EVERYDAY))
def test_a_saved_model_is_read_again(spec: str, tmp_path: Path) -> None:
    model = decoder(spec, init_std=0.3, norm_eps=1e-4)
    save_checkpoint(model, tmp_path / "saved", spec)
    checkpoint = open_checkpoint(tmp_path / "saved")
    checkpoint.check_files()
    assert_equal(checkpoint.load(), model)
    config = read_json(tmp_path / "saved" / "config.json")
    plain = spec in PLAIN or spec in PLAIN_OTHERS
    if plain:
        assert config["architectures"] == [f"{PLAIN_OTHERS.get(spec, 'Llama')}ForCausalLM"]
    else:
        label = plugins.load("encoding", spec).label  # with the options in their order
        assert config["auto_map"] == AUTO_MAP and checkpoint.encoding == label
    assert (tmp_path / "saved" / MODELING).exists() is not plain


@pytest.mark.parametrize("spec", some_slow(catalogue.names("encoding"), EVERYDAY))
def test_the_spec_of_a_used_model_is_accepted(spec: str, tmp_path: Path) -> None:
    model = small(spec, digit_ids=tuple(range(10)), separator_ids=(11,))
    tokens = torch.randint(model.config.vocab_size, (2, model.config.train_length))
    for mode in (True, False):
        model.train(mode)(tokens)
    save_checkpoint(model, tmp_path / "saved", spec)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ("tape:base=500000", "tape"),
        ("alibi", "rope"),
        ("rope:base=5", "rope"),
        ("fire", "t5"),
        ("cable:scaled=false", "cable"),
        ("hybrid:window=5,first=3", "hybrid"),
        ("rope:scaling=dynamic-ntk,factor=2", "rope"),
    ],
)
def test_another_spec_is_refused(made: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"the encoding of the model is not '{said}'"):
        save_checkpoint(small(made), tmp_path / "saved", said)
    assert not (tmp_path / "saved").exists()


ALL_AT_ONCE: dict[str, Any] = {
    "tied_embeddings": True,
    "qkv_bias": True,
    "qk_norm": "width",
    "block": BlockConfig(norms="both", norm_offset=True, score_cap=2.0, head_dim=20),
}
SHAPES = [("rope", {name: value}) for name, value in ALL_AT_ONCE.items()]


@pytest.mark.parametrize(("spec", "shape"), [*SHAPES, ("alibi", ALL_AT_ONCE)])
def test_other_shapes_are_read_again(spec: str, shape: dict[str, Any], tmp_path: Path) -> None:
    model = small(spec, **shape)
    save_checkpoint(model, tmp_path / "saved", spec)
    assert_equal(open_checkpoint(tmp_path / "saved").load(), model)
    assert any(HEAD in n for n in stored(tmp_path / "saved")) is not model.config.tied_embeddings


def test_files_of_limited_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = 40_000
    monkeypatch.setattr(saving, "SHARD", limit)
    model = small("rope")
    save_checkpoint(model, tmp_path / "saved", "rope")
    files = sorted((tmp_path / "saved").glob("*.safetensors"))
    count = len(files)
    assert [file.name for file in files] == [
        f"model-{number:05}-of-{count:05}.safetensors" for number in range(1, count + 1)
    ]
    index = read_json(tmp_path / "saved" / "model.safetensors.index.json")
    sizes = []
    for file in files:
        weights = safetensors.torch.load_file(file)
        assert weights.keys() == {
            n for n, place in index["weight_map"].items() if place == file.name
        }
        sizes.append([tensor.nbytes for tensor in weights.values()])
    assert all(sum(size) <= limit or len(size) == 1 for size in sizes)
    assert any(limit / 2 < sum(size) and len(size) > 1 for size in sizes)
    assert sum(map(len, sizes)) == len(index["weight_map"])
    assert index["metadata"] == {"total_size": sum(map(sum, sizes))}
    assert_equal(open_checkpoint(tmp_path / "saved").load(), model)
    files[1].unlink()
    with pytest.raises(InputError, match=f"has no {files[1].name}, which its index names"):
        open_checkpoint(tmp_path / "saved").load()


def test_special_ids_and_types_are_in_the_config(tmp_path: Path) -> None:
    model = small("rope").bfloat16()
    save_checkpoint(model, tmp_path / "text", "rope", tokenizer=ByteTokenizer())
    config = read_json(tmp_path / "text" / "config.json")
    assert [config[f"{role}_token_id"] for role in ("bos", "eos", "pad")] == [257, 258, 256]
    assert config["dtype"] == "bfloat16"
    tokenizer = open_checkpoint(tmp_path / "text").tokenizer()
    assert (tokenizer.bos, tokenizer.eos, tokenizer.vocab_size) == (257, 258, 270)
    save_checkpoint(model, tmp_path / "plain", "rope")
    config = read_json(tmp_path / "plain" / "config.json")
    assert [config[f"{role}_token_id"] for role in ("bos", "eos", "pad")] == [None] * 3
    with pytest.raises(InputError, match="has no tokenizer"):
        open_checkpoint(tmp_path / "plain").tokenizer()


def test_a_model_is_loaded_in_a_type_and_a_shape(tmp_path: Path) -> None:
    """Parameters of the encoding stay in float32."""
    model = decoder("tape", layers=2)
    save_checkpoint(model.bfloat16(), tmp_path / "saved", "tape")
    checkpoint = open_checkpoint(tmp_path / "saved")
    for dtype, expected in ((torch.float32,) * 2, (torch.float64,) * 2, (None, torch.bfloat16)):
        found = checkpoint.load(dtype=dtype)
        for name, parameter in found.named_parameters():
            assert parameter.dtype == (torch.float32 if "encodings" in name else expected), name
            assert torch.equal(parameter.float(), model.get_parameter(name).float())
    longer = replace(checkpoint.model, train_length=99)
    assert checkpoint.load(model=longer).config == longer


def test_parameters_of_another_encoding_are_new(tmp_path: Path) -> None:
    model = decoder("tape:position_size=4", layers=2)
    save_checkpoint(model, tmp_path / "saved", "tape:position_size=4")
    checkpoint = open_checkpoint(tmp_path / "saved")
    names = [name for name in model.state_dict() if name.startswith("encodings.")]
    own = checkpoint.load("tape:position_size=4").state_dict()
    assert names and all(torch.equal(own[name], model.state_dict()[name]) for name in names)
    for spec in ("tape", "tape:position_size=4,base=500"):
        other = checkpoint.load(spec)
        assert torch.equal(other.lm_head.weight, model.lm_head.weight)
        assert not any(p.any() for n, p in other.named_parameters() if n.endswith("sigma"))


def test_a_fingerprint_stands_for_config_and_weights(tmp_path: Path) -> None:
    save_checkpoint(small("rope"), tmp_path, "rope")
    before = open_checkpoint(tmp_path).fingerprint
    assert before == open_checkpoint(tmp_path).fingerprint
    rewrite(tmp_path, **{"model.norm.weight": torch.full((64,), 0.5)})
    changed = open_checkpoint(tmp_path).fingerprint
    change(tmp_path, rms_norm_eps=1e-3)
    assert len({before, changed, open_checkpoint(tmp_path).fingerprint}) == 3


@pytest.mark.parametrize("differs", [True, False])
def test_a_head_beside_tied_embeddings(differs: bool, tmp_path: Path) -> None:
    """A head in the file is kept if it differs from the embeddings."""
    model = small("rope", tied_embeddings=True)
    save_checkpoint(model, tmp_path, "rope")
    head = model.embed_tokens.weight.detach().flip(0) if differs else model.embed_tokens.weight
    rewrite(tmp_path, **{"lm_head.weight": head.detach().contiguous()})
    checkpoint = open_checkpoint(tmp_path)
    checkpoint.check_files()
    found = checkpoint.load()
    assert checkpoint.model.tied_embeddings is not differs
    assert (found.lm_head.weight is found.embed_tokens.weight) is not differs
    assert torch.equal(found.lm_head.weight, head)


def test_each_tensor_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = small("rope")
    save_checkpoint(model, tmp_path, "rope")
    read: list[str] = []
    opened = safetensors.safe_open

    class Counting:
        def __init__(self, *args: Any) -> None:
            self.file = opened(*args)

        def __enter__(self) -> Any:
            self.inner = self.file.__enter__()  # type: ignore[no-untyped-call]
            return self

        def __exit__(self, *args: Any) -> None:
            self.file.__exit__(*args)  # type: ignore[no-untyped-call]

        def get_tensor(self, name: str) -> Tensor:
            read.append(name)
            tensor: Tensor = self.inner.get_tensor(name)
            return tensor

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

    monkeypatch.setattr(safetensors, "safe_open", Counting)
    open_checkpoint(tmp_path).load()
    assert len(read) == len(set(read)) == len(model.state_dict())


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("prefix", ["model.", ""])
def test_a_state_dict_of_a_llama_is_loaded(prefix: str, tied: bool) -> None:
    expected, model = small("nope"), Decoder(small("nope").config, Encoding)
    weights = {f"{prefix}{name}": tensor for name, tensor in expected.state_dict().items()}
    head = weights.pop(f"{prefix}{HEAD}")
    if not tied:
        weights[HEAD] = head
    weights[f"{prefix}layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)  # of old files
    load_llama(model, weights)
    with torch.no_grad():
        expected.lm_head.weight.copy_(expected.embed_tokens.weight if tied else head)
    assert_equal(model.eval(), expected)
    weights[f"{prefix}norm.weight"] = torch.ones(63)
    with pytest.raises(InputError, match=r"norm.weight is \(63,\), but the decoder's is \(64,\)"):
        load_llama(model, weights)


def test_weights_that_contradict_each_other_are_refused() -> None:
    weights = dict(small("nope").state_dict())
    twice = weights | {"model.norm.weight": weights["norm.weight"] + 1}
    with pytest.raises(InputError, match=r"the weights contain norm\.weight twice"):
        load_llama(small("nope"), twice)
    broken = weights | {"norm.weight": torch.full((64,), math.nan)}
    with pytest.raises(InputError, match=r"norm\.weight has values that are NaN or infinite"):
        load_llama(small("nope"), broken)
    tied = Decoder(replace(small("nope").config, tied_embeddings=True), Encoding)
    with pytest.raises(InputError, match="the model has tied embeddings, but the weights have"):
        load_llama(tied, weights)


@pytest.mark.parametrize("what", ["file", "folder"])
def test_only_a_new_folder_is_written(what: str, tmp_path: Path) -> None:
    place = tmp_path / "full" if what == "folder" else tmp_path / "file"
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "something").touch()
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="is not empty: give a new folder"):
        save_checkpoint(small("nope"), place, "nope")
    save_checkpoint(small("nope"), tmp_path / "new" / "folder", "nope")


def change(path: Path, **values: Any) -> None:
    """Change fields of a config.json."""
    config = read_json(path / "config.json") | values
    (path / "config.json").write_text(json.dumps(config))


def cut_short(path: Path) -> None:
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def rewrite(path: Path, **changes: Tensor | None) -> None:
    file = path / "model.safetensors"
    weights = safetensors.torch.load_file(file)
    for name, tensor in changes.items():
        weights = {**weights, name: tensor} if tensor is not None else weights
        if tensor is None:
            del weights[name]
    safetensors.torch.save_file(weights, file)


def with_prefix(path: Path) -> None:
    weights = safetensors.torch.load_file(path / "model.safetensors")
    longer = {f"language_model.{name}": tensor for name, tensor in weights.items()}
    safetensors.torch.save_file(longer, path / "model.safetensors")


def with_nan(path: Path) -> None:
    weights = safetensors.torch.load_file(path / "model.safetensors")
    weights["model.layers.0.mlp.up_proj.weight"][3, 5] = torch.nan
    safetensors.torch.save_file(weights, path / "model.safetensors")


def alone(path: Path, content: str) -> None:
    """Remove the single file, so that the index is read."""
    (path / "model.safetensors").unlink()
    index(path, content)


def index(path: Path, content: str) -> None:
    (path / "model.safetensors.index.json").write_text(content)


def only_pickles(path: Path) -> None:
    (path / "model.safetensors").rename(path / "pytorch_model.bin")


DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no config": (lambda p: (p / "config.json").unlink(), "has no config.json"),
    "no JSON": (lambda p: (p / "config.json").write_text("{"), "config.json is not JSON"),
    "a list": (lambda p: (p / "config.json").write_text("[]"), "config.json is not a JSON object"),
    "no weights": (lambda p: (p / "model.safetensors").unlink(), "has neither model.safetensors"),
    "pickles": (only_pickles, "pytorch_model.bin is a pickle, which is never read"),
    "cut short": (cut_short, "model.safetensors is truncated"),
    "no safetensors": (lambda p: (p / "model.safetensors").write_text("x"), "is truncated, or not"),
    "missing": (lambda p: rewrite(p, **{"model.norm.weight": None}), "have no norm.weight"),
    "extra": (
        lambda p: rewrite(p, **{"model.norm.bias": torch.ones(64)}),
        r"no place for norm.bias \(1 weights",
    ),
    "shape": (lambda p: rewrite(p, **{"model.norm.weight": torch.ones(8)}), r"norm.weight is \(8"),
    "prefix": (with_prefix, "weights begin with language_model.model.: remove this prefix"),
    "NaN": (with_nan, "numbers in model.layers.0.mlp.up_proj.weight that are not finite"),
    "bad index": (lambda p: alone(p, "{}"), "is not an index of safetensors files"),
    "missing shard": (
        lambda p: alone(p, '{"weight_map": {"model.norm.weight": "model-1.safetensors"}}'),
        "has no model-1.safetensors, which its index names",
    ),
    "other folder": (lambda p: shutil.rmtree(p), "there is no folder"),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder without damage."""
    path = tmp_path_factory.mktemp("folders") / "whole"
    save_checkpoint(small("rope"), path, "rope")
    return path


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_folders(damage: str, whole: Path, tmp_path: Path) -> None:
    path = tmp_path / "damaged"
    shutil.copytree(whole, path)
    spoil, sentence = DAMAGE[damage]
    spoil(path)
    with pytest.raises(InputError, match=sentence) as error:
        open_checkpoint(path).load()
    assert len(str(error.value).splitlines()) == 1
