"""Encodings inside a tiny Llama of transformers; `test_inside_transformers.py` has all of them."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers import some_slow
from llamas import reference, tokens, write_tokenizer
from test_inside_transformers import moved, put
from torch import Tensor

from pe_bench.errors import InputError
from pe_bench.pretrained import gguf, inside_cache
from pe_bench.pretrained.checkpoint import open_checkpoint

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

GIVEN = tokens(3, 7)
LEFT = torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1] * 7, [0, 1, 1, 1, 1, 1, 1]])
DYNAMIC = "rope:scaling=dynamic-ntk,factor=2"


@pytest.fixture(scope="module")
def llama() -> Any:
    return reference("llama 2")


@pytest.fixture(scope="module")
def rope(llama: Any) -> Any:
    return put(llama, "rope")


@pytest.mark.parametrize("kind", ["llama 2", "smollm"])
def test_a_model_is_shared_and_described(kind: str) -> None:
    llama = reference(kind).train()
    llama.config.eos_token_id, llama.config.dtype = 7, torch.float32
    model = put(llama, "tape")
    theirs = {id(parameter) for parameter in llama.parameters()}
    own = {id(p) for name, p in model.named_parameters() if "encodings" not in name}
    assert own == theirs and model.training and not put(llama.eval(), "tape").training
    config = model.config
    assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == (1, 7, None)
    assert (config.dtype, config.model_type) == (torch.float32, "pe_bench")
    assert model.model.config.tied_embeddings is config.tie_word_embeddings is (kind == "smollm")
    assert model.get_output_embeddings() is model.model.lm_head
    assert model.get_input_embeddings() is model.model.embed_tokens


@torch.no_grad()
def test_a_head_that_is_not_tied_although_the_config_says_so() -> None:
    llama = reference("smollm")
    llama.set_output_embeddings(torch.nn.Linear(48, 270, bias=False))
    model = put(llama, "rope")
    assert not model.model.config.tied_embeddings
    torch.testing.assert_close(model(GIVEN).logits, llama(GIVEN).logits, rtol=0, atol=1e-5)


IDS = torch.tensor([[0, 1, 2, 0, 1, 2, 3]])
CALLS: dict[str, dict[str, Any]] = {
    "rows": {},
    "padding on the left": {"attention_mask": LEFT},
    "padding on the right": {"attention_mask": LEFT.flip(1)},
    "documents": {"position_ids": IDS, "use_cache": False},
    "other documents": {"position_ids": IDS.roll(2, 1), "use_cache": False},
    "other ids": {"position_ids": IDS, "attention_mask": torch.ones_like(GIVEN)},
    "later ids": {"position_ids": torch.arange(5, 12)[None]},
    "labels": {"labels": GIVEN.masked_fill(LEFT == 0, -100)},
    "mean over two batches": {"labels": GIVEN, "num_items_in_batch": torch.tensor(36)},
    "last logits": {"logits_to_keep": 2},
    "some logits": {"logits_to_keep": torch.tensor([4, 1])},
}


@pytest.mark.parametrize("call", CALLS)
@torch.no_grad()
def test_calls_are_those_of_transformers(call: str, llama: Any, rope: Any) -> None:
    expected, found = llama(GIVEN, **CALLS[call]), rope(GIVEN, **CALLS[call])
    kept = CALLS[call].get("attention_mask", torch.ones_like(GIVEN)).bool()
    given, theirs = found.logits, expected.logits
    if given.shape[1] == GIVEN.shape[1]:
        given, theirs = given[kept], theirs[kept]
    torch.testing.assert_close(given, theirs, rtol=0, atol=1e-5)
    if "labels" in CALLS[call]:
        torch.testing.assert_close(found.loss, expected.loss)
    else:
        assert found.loss is None and found.past_key_values is None


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"input_ids": None}, "input_ids are missing"),
        ({"inputs_embeds": torch.zeros(1, 4, 48)}, "does not support inputs_embeds: leave it out"),
        ({"output_attentions": True}, "does not support output_attentions"),
        ({"output_hidden_states": True}, "does not support output_hidden_states"),
        ({"position_ids": IDS, "use_cache": True}, "position_ids with a cache must be 0, 1, 2"),
    ],
)
def test_calls_that_are_refused(given: dict[str, Any], sentence: str, rope: Any) -> None:
    with pytest.raises(InputError, match=sentence):
        rope(**{"input_ids": GIVEN, **given})
    rope(GIVEN[:1, :2], output_attentions=False, output_hidden_states=None)


def test_recomputation_is_turned_on_and_off(rope: Any) -> None:
    rope.gradient_checkpointing_enable()
    assert rope.is_gradient_checkpointing and rope.model.recompute
    rope.gradient_checkpointing_disable()
    assert not rope.is_gradient_checkpointing and not rope.model.recompute


@pytest.mark.parametrize("spec", some_slow(["tape", DYNAMIC], ["tape"]))
@torch.no_grad()
def test_a_cache_gives_the_same_logits(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache grows; rows are padded on the left; at the end, rows are selected."""
    monkeypatch.setattr(inside_cache, "SPARE", 1)
    model = moved(put(reference("llama 2"), spec))
    given = tokens(3, 30)
    mask = torch.cat([LEFT, torch.ones(3, 23, dtype=torch.long)], dim=1)
    lengths = [7, 8, 9, 25, 30]
    past: Any = None
    for start, end in zip([0, *lengths], lengths, strict=False):
        seen = mask[:, :end]
        ids = (seen.cumsum(1) - 1)[:, start:] if start else None
        found = model(
            given[:, start:end],
            attention_mask=seen,
            past_key_values=past,
            position_ids=ids,
            use_cache=True,
        )
        past = found.past_key_values
        assert past.get_seq_length() == end
        expected = _alone(model, given[:, :end], mask[:, :end])[:, start:]
        kept = mask[:, start:end].bool()
        torch.testing.assert_close(found.logits[kept], expected[kept])
    with pytest.raises(InputError, match="must continue those of the tokens in the cache"):
        model(given[:, :1], past_key_values=past, position_ids=torch.full((3, 1), 30))
    beams = torch.tensor([2, 0, 2])
    past.reorder_cache(beams)
    found = model(given[beams, :1], past_key_values=past).logits[:, -1]
    longer = torch.cat([given[beams], given[beams, :1]], dim=1)
    masks = torch.cat([mask[beams], mask[beams, -1:]], dim=1)
    torch.testing.assert_close(found, _alone(model, longer, masks)[:, -1])


def _alone(model: Any, given: Tensor, mask: Tensor) -> Tensor:
    """Return the logits of rows that are padded on the left, each computed alone."""
    logits = torch.zeros(*given.shape, model.config.vocab_size)
    for row, (ids, kept) in enumerate(zip(given, mask.bool(), strict=True)):
        logits[row, kept] = model.model(ids[None, kept])[0]
    return logits


@torch.no_grad()
def test_the_cache_of_a_sequence_of_unknown_length() -> None:
    """`generate` tells the final length; a single call cannot."""
    model = moved(put(reference("llama 2"), "randpe"))
    prompts = [row[kept].tolist() for row, kept in zip(GIVEN, LEFT.bool(), strict=True)]
    expected = model.model.generate(prompts, max_new_tokens=3)
    options = {"max_new_tokens": 3, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    for cached in (True, False):
        answers = model.generate(GIVEN, attention_mask=LEFT, use_cache=cached, **options)
        assert cached is False or answers[:, 7:].tolist() == expected
    with pytest.raises(InputError, match="final length of the text: use generate"):
        model(GIVEN, use_cache=True)


@torch.no_grad()
def test_a_folder_of_a_model_with_an_encoding(tmp_path: Path) -> None:
    model = moved(put(reference("smollm").bfloat16(), "t5:buckets=8"))
    model.save_pretrained(tmp_path, max_shard_size="40KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert (tmp_path / "modeling_pe_bench.py").exists()
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.encoding == "t5:buckets=8"
    assert checkpoint.config.model == model.model.config
    again, about = type(model).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(about[what] for what in ("missing_keys", "unexpected_keys"))
    for found in (checkpoint.load(dtype=None), again.model):
        for name, tensor in model.model.state_dict().items():
            assert torch.equal(found.state_dict()[name], tensor), name
    before = dict(model.model.encodings.named_buffers())
    after = dict(again.model.encodings.named_buffers())
    assert before and before.keys() == after.keys()
    assert all(torch.equal(after[name], buffer) for name, buffer in before.items())


def test_a_gguf_file_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The readers of transformers are replaced, which need the package gguf."""
    model = reference("smollm")
    model.config.quantization_config = {"bits": 4}  # a field of the file
    tokenizer = SimpleNamespace(save_pretrained=write_tokenizer)
    found = {"AutoConfig": model.config, "AutoModelForCausalLM": model, "AutoTokenizer": tokenizer}
    asked: list[tuple[str, dict[str, Any]]] = []

    def replace_reader(name: str, result: Any) -> None:
        def read(**given: Any) -> Any:
            asked.append((name, given))
            if isinstance(result, Exception):
                raise result
            return result

        # transformers has replaced its module in the meantime.
        current = sys.modules["transformers"]
        monkeypatch.setattr(current, name, SimpleNamespace(from_pretrained=read))

    monkeypatch.setattr(gguf, "find_spec", lambda name: name)
    for name, result in found.items():
        replace_reader(name, result)
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF and more")
    umask = os.umask(0o027)
    try:
        checkpoint = gguf.import_gguf(file, tmp_path / "very" / "deep" / "new")
    finally:
        os.umask(umask)
    where = {"pretrained_model_name_or_path": tmp_path, "gguf_file": "model.gguf"}
    wide = {**where, "dtype": torch.float32}
    assert asked == [(name, wide if "Model" in name else where) for name in found]
    assert checkpoint.folder == tmp_path / "very" / "deep" / "new"
    assert [path.name for path in checkpoint.folder.parent.iterdir()] == ["new"]
    assert {path.stat().st_mode & 0o777 for path in checkpoint.folder.glob("*.*")} == {0o640}
    loaded = checkpoint.load()
    for name, tensor in loaded.state_dict().items():
        theirs = name if name == "lm_head.weight" else f"model.{name}"
        assert torch.equal(tensor, model.state_dict()[theirs])
    assert loaded.lm_head.weight is loaded.embed_tokens.weight
    assert checkpoint.tokenizer().vocab_size == 270
    replace_reader("AutoTokenizer", ValueError("no words\nat all"))
    with pytest.raises(InputError, match=r"cannot read .*model.gguf \(no words\)$"):
        gguf.import_gguf(file, tmp_path / "other")
    model.config.hidden_act = "relu"
    with pytest.raises(InputError, match=r"model.gguf: hidden_act is relu"):
        gguf.import_gguf(file, tmp_path / "other")
    assert not (tmp_path / "other").exists()
