"""`import pe_bench`: the code of its page runs, and the import is fast."""

import importlib.util
import json
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any, cast

import pandas as pd
import pytest
import torch
from helpers import some_slow

import pe_bench
from pe_bench.decoder.block import Block
from pe_bench.registry import catalogue
from pe_bench.text.tokenizer import ByteTokenizer

ROOT = Path(__file__).parents[1]
CONFIG = pe_bench.ModelConfig(
    layers=2, heads=2, width=16, mlp_width=16, vocab_size=32, train_length=16
)
ENCODINGS = catalogue.names("encoding")


@pytest.mark.slow
def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) > 4
    shape = pe_bench.ModelConfig(**vars(CONFIG) | {"vocab_size": 260, "kv_heads": 1})
    rope = pe_bench.Decoder(shape, pe_bench.load_encoding("rope:base=500000"))
    pe_bench.save_checkpoint(rope, "path/to/llama", "rope:base=500000", tokenizer=ByteTokenizer())
    names: dict[str, object] = {}
    for block in blocks:
        if "transformers import" not in block or importlib.util.find_spec("transformers"):
            exec(block, names)
    assert isinstance(names["rows"], pd.DataFrame)
    assert set(names["rows"]["encoding"]) == {"rope", "alibi"}
    assert list(tmp_path.glob("*.pdf"))


def test_importing_needs_neither_torch_nor_pandas() -> None:
    program = (
        "import sys, pe_bench\n"
        "assert set(pe_bench.__all__) <= set(dir(pe_bench))\n"
        "print({'torch', 'pandas', 'numpy', 'matplotlib'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize("name", pe_bench.__all__)
def test_every_name_is_there_and_says_what_it_does(name: str) -> None:
    assert getattr(pe_bench, name).__doc__


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'rnu'"):
        pe_bench.rnu  # noqa: B018


@pytest.mark.parametrize("name", some_slow(ENCODINGS))
def test_layers_alone_compute_what_the_decoder_does(name: str) -> None:
    """A decoder of `AttentionLayer`s with the same weights equals `Decoder`."""
    config = pe_bench.ModelConfig(**vars(CONFIG) | {"digit_ids": (1, 2), "separator_ids": (3,)})
    make = pe_bench.load_encoding(name)
    model = pe_bench.Decoder(config, make).double().eval()
    layers = [
        pe_bench.AttentionLayer(config, make, i, encoding=model.encoding_of(i)).double().eval()
        for i in range(config.layers)
    ]
    tokens = torch.randint(32, (2, 12), generator=torch.Generator().manual_seed(0))
    x = layers[0].embed(model.embed_tokens(tokens), tokens=tokens)
    state = layers[0].prepare(x, tokens=tokens)
    for layer, module in zip(layers, model.layers, strict=True):
        block = cast(Block, module)
        layer.attention.load_state_dict(block.self_attn.state_dict())
        attended, extra = layer.attend(block.input_layernorm(x), state=state, tokens=tokens)
        x = x + attended
        mlp_in = block.post_attention_layernorm(x)
        mlp_out = block.mlp(mlp_in)
        x = x + mlp_out
        state = layer.update_state(state, extra, mlp_in, mlp_out)
    assert torch.allclose(model.norm(x), model.hidden(tokens), rtol=0, atol=1e-12)


def test_positions_that_are_found_in_tokens_want_the_tokens() -> None:
    config = pe_bench.ModelConfig(**vars(CONFIG) | {"separator_ids": (3,)})
    layer = pe_bench.AttentionLayer(config, pe_bench.load_encoding("bipe"))
    with pytest.raises(pe_bench.InputError, match="tokens=ids"):
        layer.attend(torch.zeros(1, 4, 16))


@pytest.mark.parametrize("name", ENCODINGS)
def test_a_plain_call_is_refused_where_it_would_drop_something(name: str) -> None:
    config = pe_bench.ModelConfig(**vars(CONFIG) | {"digit_ids": (1, 2), "separator_ids": (3,)})
    layer = pe_bench.AttentionLayer(config, pe_bench.load_encoding(name)).eval()
    x = torch.randn(1, 12, config.width)
    tokens = torch.zeros(1, 12, dtype=torch.long)
    state = layer.prepare(x, tokens=tokens)
    if state is not None or not torch.equal(layer.embed(x, tokens=tokens), x):
        with pytest.raises(pe_bench.InputError, match=r"call (attend|x = embed)\(x"):
            layer(x, tokens=tokens)
    elif not layer.encoding.overrides("embed"):
        assert torch.equal(layer(x, tokens=tokens), layer.attend(x, tokens=tokens)[0])


def llama_weights(model: pe_bench.Decoder) -> dict[str, torch.Tensor]:
    """Return the weights of a Llama of the same shape, all different from the model's."""
    own = {n: t for n, t in model.state_dict().items() if not n.startswith("encodings.")}
    return {f"model.{n}": torch.full_like(t, 0.5) for n, t in own.items()}


def test_llama_weights_are_loaded_and_the_encodings_own_stay() -> None:
    model = pe_bench.Decoder(CONFIG, pe_bench.load_encoding("tape"))
    before = {n: t.clone() for n, t in model.state_dict().items()}
    weights = llama_weights(model) | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    del weights["model.lm_head.weight"]  # tied to the embeddings
    pe_bench.load_llama(model, weights)
    for name, tensor in model.state_dict().items():
        same = torch.equal(tensor, before[name])
        assert same if name.startswith("encodings.") else (tensor == 0.5).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model.norm.weight": None}, "have no norm.weight"),
        (
            {"model.norm.weight": torch.ones(8)},
            r"norm.weight is \(8,\), but the decoder's is \(16,\)",
        ),
        ({"model.norm.bias": torch.ones(16)}, "no place for norm.bias"),
        (
            {"model.norm.weight": torch.ones(16, dtype=torch.int8)},
            "norm.weight has the type torch.int8: give weights in float32",
        ),
    ],
)
def test_weights_that_do_not_fit(change: dict[str, torch.Tensor | None], message: str) -> None:
    model = pe_bench.Decoder(CONFIG, pe_bench.load_encoding("rope"))
    weights = {n: t for n, t in {**llama_weights(model), **change}.items() if t is not None}
    with pytest.raises(pe_bench.InputError, match=message):
        pe_bench.load_llama(model, weights)


def test_bad_input_is_an_error_before_anything_is_trained(tmp_path: Path) -> None:
    with pytest.raises(pe_bench.InputError, match="did you mean 'rope'"):
        pe_bench.run(["alibi", "rpoe"], "flipflop", results=tmp_path)
    assert not list(tmp_path.glob("runs/*"))
    with pytest.raises(pe_bench.InputError):
        pe_bench.draw_figures(tmp_path)


@pytest.mark.slow
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run every cell, with two training steps per model."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pe_bench, "run", partial(pe_bench.run, train={"steps": 2}))
    notebook = json.loads((ROOT / "examples" / "compare.ipynb").read_text(encoding="utf-8"))
    cells = ["".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == "code"]
    names: dict[str, Any] = {}
    for cell in cells:
        exec(cell, names)
    assert len(names["axes"].lines) == 5  # two encodings, two seeds, the training length
