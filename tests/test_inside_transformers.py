"""Encodings inside a Llama of transformers, and the folders of such models."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from llamas import KINDS, OTHER_KINDS, own_encoding, reference, tokens
from torch import Tensor

import pe_bench
from pe_bench.config import BlockConfig, ModelConfig
from pe_bench.decoder.model import Decoder
from pe_bench.errors import InputError
from pe_bench.pretrained.checkpoint import open_checkpoint
from pe_bench.pretrained.saving import save_checkpoint
from pe_bench.registry import catalogue, plugins
from pe_bench.text.bpe_tokenizer import BpeTokenizer
from pe_bench.text.tokenizer import ByteTokenizer

pytestmark = pytest.mark.slow

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

SHAPE = ModelConfig(
    layers=3,
    heads=4,
    kv_heads=2,
    width=64,
    mlp_width=48,
    vocab_size=270,
    train_length=24,
    digit_ids=(4, 5),
    separator_ids=(6,),
)
# transformers continues with cached keys that have the frequencies of shorter sequences.
WITH_CACHE = [kind for kind in KINDS if kind not in ("dynamic", "longrope")]
# Kinds of models with an encoding that does not change them; a new TAPE equals RoPE.
OTHERS_AS_BEFORE = [
    ("qwen 3", "rope"),
    ("qwen 3", "tape"),
    ("olmo 2", "rope"),
    ("olmo 2", "tape"),
    ("gpt 2", "learned"),
]
AS_BEFORE = [("llama 2", "rope"), ("llama 2", "tape"), *OTHERS_AS_BEFORE]
# Encodings that a config of Llama can express, and others.
PLAIN = [
    "rope",
    "rope:base=500000",
    "rope:scaling=pi,factor=4",
    "rope:scaling=yarn,factor=4,beta_fast=8,truncate=false",
    "rope:scaling=llama3,factor=4,beta_slow=0.5",
    "rope:scaling=longrope,factor=2,factors=1;1;1;1.2;1.5;2;2;2,short_factors=1;1;1;1;1;1;1;1.5",
    "rope:scaling=longrope,factor=2,factors=1;1;1;1.2;1.5;2;2;2",
    "rope:scaling=dynamic-ntk,factor=2",
    "rope:train_positions=offset",
]


PLAIN_OTHERS = {
    "nope": "SmolLM3",
    "smollm3": "SmolLM3",
    "smollm3:every=2,base=500": "SmolLM3",
    "cohere2": "SmolLM3",
    "cohere2:every=2,window=8,base=500": "SmolLM3",
    "rnope-swa": "SmolLM3",
    "rnope-swa:every=2,window=8": "SmolLM3",
    "rnope-swa:base=500": "SmolLM3",
    "hybrid:window=8": "SmolLM3",
    "hybrid:window=6,pattern=gl": "SmolLM3",
    "pose": "Llama",
    "rope:scaling=yarn,factor=4,beta_fast=8,beta_slow=2,truncate=false,attention_factor=1.3": (
        "Llama"
    ),
    "hybrid": "SmolLM3",
    "gemma2": "Ministral",
    "gemma2:every=3,window=8,base=500": "Ministral",
    "hybrid:pattern=l,window=9": "Mistral",
    "hybrid:global=rope,window=9,pattern=gl": "Ministral",
    "hybrid:local=rope:base=500:scaling=pi:factor=4": "SmolLM3",
}
"""Encodings that another family, or Llama too, has in the decoder of Llama."""


def all_specs() -> list[str]:
    """Return every shipped encoding, and each of its variants."""
    specs = []
    for name in catalogue.names("encoding"):
        specs.append(name)
        for variant in plugins.load("encoding", name).cls.variants:
            specs.append(f"{name}:{variant}")
    return specs


OTHERS = [spec for spec in all_specs() if spec not in (*PLAIN, *PLAIN_OTHERS)]


@pytest.fixture(autouse=True)
def no_cache_of_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a temporary folder for the code that transformers copies from model folders."""
    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)


def put(llama: Any, spec: str) -> Any:
    return pe_bench.put_encoding(llama, spec)


def moved(model: Any) -> Any:
    """Return the model after changing the weights of its encodings."""
    torch.manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "encodings" in name:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model


NEED_TOKENS = ("abacus", "bipe", "position-coupling")
ONE_KEY_HEAD_EACH = ("carope", "repo", "selective-rope")  # these refuse grouped queries


def decoder(spec: str, **shape: Any) -> Decoder:
    torch.manual_seed(0)
    if spec.partition(":")[0] in ONE_KEY_HEAD_EACH:
        shape["kv_heads"] = SHAPE.heads
    model = Decoder(ModelConfig(**vars(SHAPE) | shape), plugins.load("encoding", spec).make)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, 1.0 if parameter.dim() == 1 else 0.0, 0.1)
    return moved(model).eval()  # type: ignore[no-any-return]


@pytest.mark.parametrize("what", ["a model without a head", "no model"])
def test_only_a_language_model_of_transformers_gets_an_encoding(what: str) -> None:
    shape = transformers.LlamaConfig(
        vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1
    )
    wrong = transformers.LlamaModel(shape) if what == "a model without a head" else None
    with pytest.raises(InputError, match="such as LlamaForCausalLM, not "):
        put(wrong, "rope")


@pytest.mark.parametrize(
    ("kind", "spec"),
    [*((kind, spec) for kind in WITH_CACHE for spec in ("rope", "tape")), *OTHERS_AS_BEFORE],
)
@torch.no_grad()
def test_a_new_encoding_leaves_a_model_as_it_is(kind: str, spec: str) -> None:
    llama = reference(kind)
    model = put(llama, spec)
    expected = llama(tokens()).logits
    torch.testing.assert_close(model(tokens()).logits, expected, rtol=0, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("kind", ["llama 3.1", *OTHER_KINDS])
def test_generation_with_padding_is_that_of_transformers(
    kind: str, beams: int, cached: bool
) -> None:
    llama = reference(kind)
    options = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None, "num_beams": beams}
    mask = torch.ones_like(tokens(3))
    mask[0, :17] = 0
    mask[2, :1] = 0
    given = {"attention_mask": mask, "use_cache": cached, "pad_token_id": 0, **options}
    expected = llama.generate(tokens(3), **given)
    for spec in ("learned",) if kind == "gpt 2" else ("rope", "tape"):
        assert torch.equal(put(llama, spec).generate(tokens(3), **given), expected)


@torch.no_grad()
@pytest.mark.parametrize(
    "wrong",
    [
        [[1, 1, 1, 1, 1], [1, 1, 0, 0, 1]],  # padding on the right
        [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]],  # hides a new token
        [[0, 1, 1, 1, 1], [1, 1, 1, 1, 1]],  # hides an old token
        [[1], [1]],
    ],
)
def test_with_a_cache_only_padding_on_the_left_is_hidden(wrong: list[list[int]]) -> None:
    model = put(reference("llama 3.1"), "rope")
    rows = tokens(2)[:, :4]
    cache = model(rows, use_cache=True).past_key_values
    with pytest.raises(InputError, match="with a cache, attention_mask needs a column for each"):
        model(rows[:, :1], attention_mask=torch.tensor(wrong), past_key_values=cache)


@torch.no_grad()
@pytest.mark.parametrize(
    "spec", ["tape", "alibi", "fox", "randpe", "rope:scaling=dynamic-ntk,factor=2"]
)
def test_generation_is_that_of_the_decoder(spec: str) -> None:
    """This includes encodings that need the finished length or have no cache."""
    model = moved(put(reference("mistral"), spec))
    prompts = [row[-n:] for row, n in zip(tokens(3, 30).tolist(), (30, 12, 5), strict=True)]
    expected = model.model.generate(prompts, max_new_tokens=9)
    given = torch.zeros(3, 30, dtype=torch.long)
    mask = torch.zeros_like(given)
    for row, prompt in enumerate(prompts):
        given[row, -len(prompt) :] = torch.tensor(prompt)
        mask[row, -len(prompt) :] = 1
    options = {"max_new_tokens": 9, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    answers = model.generate(given, attention_mask=mask, **options)[:, 30:]
    assert answers.tolist() == expected


@pytest.mark.parametrize(("kind", "spec"), AS_BEFORE)
def test_the_loss_and_its_gradient_are_those_of_transformers(kind: str, spec: str) -> None:
    llama = reference(kind)
    labels = tokens().masked_fill(torch.rand(2, 60) < 0.3, -100)
    gradients = []
    for model in (llama, put(llama, spec)):
        llama.zero_grad()
        model(tokens(), labels=labels).loss.backward()
        gradients.append(llama.get_input_embeddings().weight.grad.clone())
    torch.testing.assert_close(*gradients)
    assert gradients[0].abs().max() > 1e-4


@torch.no_grad()
@pytest.mark.parametrize(("kind", "spec"), AS_BEFORE)
@pytest.mark.parametrize(
    "ids",
    [
        [*range(20), *range(15), *range(25)],  # three documents in a row
        [*range(7, 27), *range(40)],  # the first does not begin at 0
        list(range(5, 65)),  # one, somewhere
    ],
)
def test_position_ids_are_those_of_transformers(kind: str, spec: str, ids: list[int]) -> None:
    llama = reference(kind)
    model = put(llama, spec)
    given = {"position_ids": torch.tensor([ids]), "use_cache": False}
    expected = llama(tokens(2, 60), **given).logits
    torch.testing.assert_close(model(tokens(2, 60), **given).logits, expected, rtol=0, atol=1e-5)
    plain = model(tokens(2, 60)).logits
    one_document = ids[-1] - ids[0] == 59  # which a rotation ignores
    assert (plain - expected).abs().max() > 1e-3 or (one_document and spec != "learned")
    masked = given | {"attention_mask": torch.ones(2, 60, dtype=torch.long)}
    expected = llama(tokens(2, 60), **masked).logits
    torch.testing.assert_close(model(tokens(2, 60), **masked).logits, expected, rtol=0, atol=1e-5)


def test_packed_documents_have_the_loss_and_gradient_of_transformers() -> None:
    llama = reference("llama 2").train()
    ids = torch.tensor([[*range(20), *range(40)]])
    gradients = []
    for model in (llama, put(llama, "rope")):
        llama.zero_grad()
        given = {"position_ids": ids, "labels": tokens(2, 60), "use_cache": False}
        model(tokens(2, 60), **given).loss.backward()
        gradients.append(llama.model.layers[0].mlp.up_proj.weight.grad.clone())
    torch.testing.assert_close(gradients[1], gradients[0], rtol=0, atol=1e-6)
    assert gradients[0].abs().max() > 1e-4


@torch.no_grad()
@pytest.mark.parametrize("spec", ["alibi", "t5", "learned", "gemma:window=8"])
def test_packed_documents_do_not_meet(spec: str) -> None:
    model = moved(put(reference("llama 2"), spec))
    first, second = tokens(1, 12), tokens(1, 16)[:, 5:]
    together = torch.cat([first, second], dim=1)
    ids = torch.tensor([[*range(12), *range(11)]])
    packed = model(together, position_ids=ids).logits
    alone = [model(first).logits, model(second).logits]
    torch.testing.assert_close(packed, torch.cat(alone, dim=1), rtol=0, atol=1e-5)


@pytest.mark.parametrize(("kind", "spec"), [("smollm", "tape"), *OTHERS_AS_BEFORE])
def test_gradient_checkpointing(kind: str, spec: str) -> None:
    model = put(reference(kind), spec).train()
    found = []
    for on in (False, True):
        if on:
            model.gradient_checkpointing_enable()
        assert model.is_gradient_checkpointing is on
        model.zero_grad()
        model(tokens(), labels=tokens()).loss.backward()
        found.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    torch.testing.assert_close(found[1], found[0])
    model.gradient_checkpointing_disable()
    assert not model.model.recompute


def test_a_model_that_the_decoder_cannot_be() -> None:
    config = transformers.OPTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1)
    with pytest.raises(InputError, match=r"model_type is 'opt', and only llama, .* gpt2, .*olmo2"):
        put(transformers.OPTForCausalLM(config), "rope")


def load(folder: Path, **options: Any) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, trust_remote_code=True, **options
    ).eval()


@pytest.mark.parametrize("spec", [*PLAIN, *PLAIN_OTHERS, *OTHERS])
@torch.no_grad()
def test_a_saved_model(spec: str, tmp_path: Path) -> None:
    """In transformers it has the same logits, and reading it again gives the same bits."""
    model = decoder(spec)
    save_checkpoint(model, tmp_path / "saved", spec)
    theirs = load(tmp_path / "saved")
    kind = "Llama" if spec in PLAIN else PLAIN_OTHERS.get(spec, "PeBench")
    assert type(theirs).__name__ == f"{kind}ForCausalLM"
    for length in (20, 60):
        logits = theirs(tokens(length=length)).logits
        torch.testing.assert_close(logits, model(tokens(length=length)), rtol=0, atol=1e-5)
    checkpoint = open_checkpoint(tmp_path / "saved")
    again = checkpoint.load()
    assert again.config == model.config
    assert torch.equal(again(tokens()), model(tokens()))
    if kind == "PeBench":
        assert checkpoint.encoding == plugins.load("encoding", spec).label


LATER_TOKENS_MATTER = [
    "rope:scaling=dynamic-ntk,factor=2",
    "rope:scaling=longrope,factors=1;1;1;1;2;2;3;3,short_factors=1;1;1;1;1;1;1;1,"
    "factor=4,original_length=24",
]


@pytest.mark.parametrize("spec", LATER_TOKENS_MATTER)
@torch.no_grad()
def test_a_saved_model_generates_what_was_measured(spec: str, tmp_path: Path) -> None:
    model = decoder(spec, train_length=24)
    save_checkpoint(model, tmp_path / "saved", spec)
    theirs = load(tmp_path / "saved")
    prompt = tokens(rows=1, length=15)
    seen = torch.ones_like(prompt)
    given = {"max_new_tokens": 30, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    (found,) = theirs.generate(prompt, attention_mask=seen, **given).tolist()
    assert found[15:] == model.generate(prompt.tolist(), max_new_tokens=30)[0]


def test_a_changed_llama_generates_as_before() -> None:
    llama = reference("llama 2")
    llama.generation_config.eos_token_id = [2, 7, 9]
    llama.generation_config.top_k = 3
    found = put(llama, "alibi").generation_config
    assert (found.eos_token_id, found.top_k) == ([2, 7, 9], 3)


@pytest.mark.parametrize("name", catalogue.names("encoding"))
@torch.no_grad()
def test_a_changed_llama_is_saved(name: str, tmp_path: Path) -> None:
    """A model that transformers writes and reads has the logits of the model in memory."""
    if name in NEED_TOKENS:  # a Llama in memory does not define digits
        with pytest.raises(InputError, match="needs"):
            put(reference("llama 2"), name)
        return
    model = moved(put(reference("llama 2"), name)).eval()
    model.save_pretrained(tmp_path / "saved")
    expected = model(tokens()).logits
    torch.testing.assert_close(load(tmp_path / "saved")(tokens()).logits, expected)
    own = open_checkpoint(tmp_path / "saved").load()
    torch.testing.assert_close(own(tokens()), expected)


@pytest.mark.parametrize("spec", ["own", "tape", "alibi"])
@pytest.mark.parametrize("kind", OTHER_KINDS)
@torch.no_grad()
def test_changed_models_of_other_families_are_saved(kind: str, spec: str, tmp_path: Path) -> None:
    model = moved(put(reference(kind), own_encoding(kind) if spec == "own" else spec)).eval()
    expected = model(tokens()).logits
    model.save_pretrained(tmp_path / "saved")
    torch.testing.assert_close(load(tmp_path / "saved")(tokens()).logits, expected)
    checkpoint = open_checkpoint(tmp_path / "saved")
    torch.testing.assert_close(checkpoint.load()(tokens()), expected)
    save_checkpoint(checkpoint.load(), tmp_path / "ours", checkpoint.encoding)
    torch.testing.assert_close(load(tmp_path / "ours")(tokens()).logits, expected)


def test_a_wrapper_is_part_of_what_is_saved(tmp_path: Path) -> None:
    """A plugin that changes the attention of an inner `rope` is not saved as a plain Llama."""
    (tmp_path / "doubled.py").write_text(
        "from pe_bench.api import ModelConfig, Wrapper, make_base\n\n\n"
        "class Doubled(Wrapper):\n    '''RoPE whose keys count twice.'''\n\n"
        "    def __init__(self, model: ModelConfig, layer: int = 0) -> None:\n"
        "        super().__init__(model, layer, make_base('rope', model, layer))\n\n"
        "    def transform_qk(self, q, k, positions):\n"
        "        q, k = super().transform_qk(q, k, positions)\n"
        "        return q, 2 * k\n"
    )
    model = decoder(str(tmp_path / "doubled.py"))
    save_checkpoint(model, tmp_path / "saved", str(tmp_path / "doubled.py"))
    again = open_checkpoint(tmp_path / "saved").load(str(tmp_path / "doubled.py"))
    assert torch.equal(again(tokens()), model(tokens()))
    assert json.loads((tmp_path / "saved" / "config.json").read_text())["model_type"] == "pe_bench"


@pytest.mark.parametrize("spec", ["rope", "tape"])
@pytest.mark.parametrize(
    "shape",
    [
        {"tied_embeddings": True},
        {"qkv_bias": True},
        {"qk_norm": "rms"},
        {"qk_norm": "width"},
        {"block": BlockConfig(head_dim=16)},
        {"block": BlockConfig(norms="both", norm_offset=True, score_cap=2.0, logit_scale=0.5)},
    ],
)
@torch.no_grad()
def test_saved_models_of_other_shapes(spec: str, shape: dict[str, Any], tmp_path: Path) -> None:
    model = decoder(spec, **shape)
    save_checkpoint(model, tmp_path / "saved", spec)
    logits = load(tmp_path / "saved")(tokens()).logits
    torch.testing.assert_close(logits, model(tokens()), rtol=0, atol=1e-5)
    assert torch.equal(open_checkpoint(tmp_path / "saved").load()(tokens()), model(tokens()))


@torch.no_grad()
def test_what_transformers_saves_is_read(tmp_path: Path) -> None:
    model = moved(put(reference("smollm"), "tape:position_size=4"))
    model.save_pretrained(tmp_path / "saved")
    load(tmp_path / "saved").save_pretrained(tmp_path / "again")
    assert torch.equal(load(tmp_path / "again")(tokens()).logits, model(tokens()).logits)
    checkpoint = open_checkpoint(tmp_path / "again")
    assert checkpoint.encoding == "tape:position_size=4"
    assert torch.equal(checkpoint.load()(tokens()), model.model(tokens()))
    other = checkpoint.load("tape:position_size=8")
    assert not any(p.abs().max() for n, p in other.named_parameters() if n.endswith("sigma"))


def test_the_tokenizer_of_bytes(tmp_path: Path) -> None:
    text = "Grüße, 한국어\n\t\x00 <s> 12"
    save_checkpoint(decoder("rope"), tmp_path / "saved", "rope", tokenizer=ByteTokenizer())
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert theirs.encode(text.replace("<s>", ""), add_special_tokens=False) == list(
        text.replace("<s>", "").encode()
    )
    own = open_checkpoint(tmp_path / "saved").tokenizer()
    assert own.encode(text).tolist() == list(text.encode())
    assert (own.pad, own.bos, own.eos, own.sep) == (256, 257, 258, 259)
    config = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert (config["bos_token_id"], config["eos_token_id"]) == (257, 258)
    save_checkpoint(decoder("rope"), tmp_path / "copy", "rope", tokenizer=own)
    assert isinstance(open_checkpoint(tmp_path / "copy").tokenizer(), BpeTokenizer)


def test_an_encoding_of_a_file_is_named_again(tmp_path: Path) -> None:
    """A folder must not select the code to run."""
    (tmp_path / "mine.py").write_text(
        "from pe_bench.encodings.tape import TAPE\n\n\nclass Mine(TAPE):\n    '''TAPE.'''\n"
    )
    spec = str(tmp_path / "mine.py")
    model = decoder(spec)
    save_checkpoint(model, tmp_path / "saved", spec)
    checkpoint = open_checkpoint(tmp_path / "saved")
    with pytest.raises(InputError, match=r"names a file with code as its encoding \(mine.py\)"):
        checkpoint.load()
    with pytest.raises(InputError, match="is not run unless you give it"):
        load(tmp_path / "saved")
    given: Tensor = tokens()
    assert torch.equal(checkpoint.load(spec)(given), model(given))
    theirs = load(tmp_path / "saved", encoding_spec=spec)
    torch.testing.assert_close(theirs(given).logits, model(given))


DECAY = """
import torch
from pe_bench.api import Encoding


class Mine(Encoding):
    def __init__(self, model, layer=0, *, rate: float = 0.5):
        super().__init__(model, layer)
        self.rate = rate

    def distance_bias(self, distances):
        return -self.rate * distances[None].float().expand(self.model.heads, -1)
"""


@pytest.mark.parametrize("loads", ["Checkpoint", "transformers"])
def test_other_options_or_code_than_those_of_the_model_cause_a_warning(
    loads: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, saved = tmp_path / "mine.py", tmp_path / "saved"
    path.write_text(DECAY)

    def said(spec: str) -> str:
        if loads == "Checkpoint":
            open_checkpoint(saved).load(spec)
        else:
            load(saved, encoding_spec=spec)
        lines = capsys.readouterr().err.splitlines()
        return "".join(line for line in lines if line.startswith("pe-bench:"))

    save_checkpoint(decoder(f"{path}:rate=0.1"), saved, f"{path}:rate=0.1")
    assert said(f"{path}:rate=0.1") == ""
    assert "the encoding of the model is mine.py:rate=0.1, not mine.py: its outputs" in said(
        str(path)
    )
    path.write_text(DECAY.replace("-self.rate", "-2 * self.rate"))
    assert "has changed since the model was saved (1-" in said(f"{path}:rate=0.1")


DYNAMIC = "rope:scaling=dynamic-ntk,factor=2"  # its cache stores only tokens


def padded() -> tuple[Tensor, Tensor]:
    """Return two rows of tokens, (B, T), and their mask with padding on the left."""
    mask = torch.ones(2, 20, dtype=torch.long)
    mask[0, :3] = 0
    return tokens(length=20), mask


@pytest.mark.parametrize("spec", ["alibi", "tape", DYNAMIC])
@torch.no_grad()
def test_a_cache_goes_back(spec: str) -> None:
    model = put(reference("llama 2"), spec)
    given, mask = padded()
    start = model(given[:, :10], attention_mask=mask[:, :10], use_cache=True)
    cache = start.past_key_values
    expected = model(given[:, 10:13], attention_mask=mask[:, :13], past_key_values=cache).logits
    cache.crop(0)
    assert cache.get_seq_length() == 13
    for _ in range(2):
        cache.crop(-3)
        assert cache.get_seq_length() == 10
        again = model(given[:, 10:13], attention_mask=mask[:, :13], past_key_values=cache).logits
        torch.testing.assert_close(again, expected)
    for wrong in (5, -10, -14):
        with pytest.raises(InputError, match=f"from -9 to -1, not {wrong}"):
            cache.crop(wrong)
    cache.reset()
    assert cache.get_seq_length() == 0
    again = model(given[:, :10], attention_mask=mask[:, :10], past_key_values=cache).logits
    torch.testing.assert_close(again, start.logits)


@pytest.mark.parametrize("spec", ["alibi", "tape", DYNAMIC])
@torch.no_grad()
def test_rows_of_a_cache_are_selected_and_repeated(spec: str) -> None:
    model = put(reference("llama 2"), spec)
    given, mask = padded()

    def step(rows: list[int], change: str, argument: Any) -> None:
        cache = model(given[:, :10], attention_mask=mask[:, :10], use_cache=True).past_key_values
        getattr(cache, change)(argument)
        found = model(given[rows, 10:], attention_mask=mask[rows], past_key_values=cache).logits
        expected = model(given[rows], attention_mask=mask[rows]).logits[:, 10:]
        torch.testing.assert_close(found, expected)

    step([1], "batch_select_indices", torch.tensor([1]))
    step([1, 0], "reorder_cache", torch.tensor([1, 0]))
    step([0, 0, 1, 1], "batch_repeat_interleave", 2)


@torch.no_grad()
def test_a_cache_with_windows_does_not_go_back() -> None:
    model = put(reference("llama 2"), "hybrid:window=4")
    given = tokens(length=20)
    cache = model(given[:, :15], use_cache=True).past_key_values
    model(given[:, 15:], past_key_values=cache)
    with pytest.raises(InputError, match="a window has dropped keys"):
        cache.crop(-5)


BUFFERS = """
import torch
from pe_bench.api import Encoding

class Mine(Encoding):
    def __init__(self, model, layer=0):
        super().__init__(model, layer)
        slopes = 3.0 ** -torch.arange(1, 1 + model.heads)
        self.register_buffer("slopes", slopes, persistent=False)
        self.register_buffer("saved", slopes / 7)

    def distance_bias(self, distances):
        return -(self.slopes + self.saved)[:, None] * distances
"""


@torch.no_grad()
def test_constants_of_a_saved_model_stay_float32(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(BUFFERS)
    spec = str(tmp_path / "mine.py")
    model = put(reference("llama 2").bfloat16(), spec)
    model.save_pretrained(tmp_path / "saved")
    again = load(tmp_path / "saved", encoding_spec=spec, dtype=torch.bfloat16)
    assert again.dtype == torch.bfloat16
    assert torch.equal(again(tokens()).logits, model(tokens()).logits)
    for buffer in again.model.encodings.buffers():
        assert buffer.dtype == torch.float32


@pytest.mark.parametrize("kind", OTHER_KINDS)
@torch.no_grad()
def test_an_encoding_of_a_file_is_put_into_models_of_other_families(
    kind: str, tmp_path: Path
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        'from pe_bench.encodings.alibi import ALiBi\n\n\nclass Mine(ALiBi):\n    """ALiBi."""\n'
    )
    expected = put(reference(kind), "alibi")(tokens()).logits
    torch.testing.assert_close(put(reference(kind), str(path))(tokens()).logits, expected)


def test_a_folder_does_not_name_code_in_an_option(tmp_path: Path) -> None:
    save_checkpoint(decoder("abacus:base=alibi"), tmp_path / "saved", "abacus:base=alibi")
    path = tmp_path / "saved" / "config.json"
    evil = tmp_path / "evil.py"
    evil.write_text("raise SystemExit('was run')")
    path.write_text(path.read_text().replace("base=alibi", f"base={evil}"))
    with pytest.raises(InputError, match="names a file with code as its encoding"):
        open_checkpoint(tmp_path / "saved").load()
