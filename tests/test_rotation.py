"""Encodings in a trained model rotate as the model does, or a sentence says otherwise."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import KINDS, some_slow

from pe_bench.cli import main
from pe_bench.decoder.model import Decoder
from pe_bench.pretrained.checkpoint import Checkpoint
from pe_bench.pretrained.llama_config import LlamaConfig, parse_config
from pe_bench.pretrained.rotation import describe_rotation, with_rotation
from pe_bench.registry import catalogue, plugins

NAMES = catalogue.names("encoding")
EVERYDAY = (*KINDS, "fope", "gemma", "irope", "pope", "rnope-swa", "xpos")
BASE = 300_000.0  # no encoding's default
SHAPE = {
    "model_type": "llama",
    "vocab_size": 60,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "hidden_size": 64,
    "intermediate_size": 32,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 64,
}
SCALED = {"rope_type": "linear", "factor": 2.0}
TURNING = """
import torch
from pe_bench.api import Encoding

class {name}(Encoding):
    def __init__(self, model, layer=0, *, {option}: float = 100.0):
        super().__init__(model, layer)

    def transform_qk(self, q, k, positions):
        return q * {sign}1, k
"""


def config(**rotation: Any) -> LlamaConfig:
    facts = {"digit_ids": list(range(10)), "separator_ids": [10]}
    full = parse_config(
        {**SHAPE, "rope_parameters": {"rope_theta": BASE, **rotation}, "pe_bench": facts}
    )
    assert full.rotation["rope_theta"] == BASE
    return full


def all_variants() -> list[str]:
    specs = []
    for name in NAMES:
        for variant in plugins.load("encoding", name).cls.variants:
            if not re.search("base=|length=|operands=", variant):
                specs.append(f"{name}:{variant}")
    return specs


@pytest.fixture
def bases(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Record the base of every computed series of frequencies."""
    from pe_bench.encodings.rope import geometric

    found: list[float] = []

    def record(base: float, *args: Any) -> torch.Tensor:
        found.append(base)
        return geometric(base, *args)

    for name, module in list(sys.modules.items()):
        if name.startswith("pe_bench.encodings.") and hasattr(module, "geometric"):
            monkeypatch.setattr(module, "geometric", record)
    return found


@pytest.mark.parametrize("spec", some_slow([*NAMES, *all_variants()], EVERYDAY))
def test_every_rotating_layer_has_the_base_of_the_model(spec: str, bases: list[float]) -> None:
    model = config().model
    full, notes = with_rotation(spec, config())
    made = plugins.load("encoding", full)
    bases.clear()
    Decoder(model, made.make).eval()(torch.arange(20)[None] % 10)
    rotates = any(each.overrides("transform_qk") for each in made.make(model, 0).layer_kinds)
    assert rotates or full == plugins.load("encoding", spec).label
    assert set(bases) <= {BASE} or notes
    assert f"base={BASE:g}" in full or notes or not rotates


@pytest.mark.parametrize("name", some_slow(NAMES, EVERYDAY))
def test_a_scaling_is_taken_over_or_named(name: str) -> None:
    full, notes = with_rotation(name, config(**SCALED))
    plain, _ = with_rotation(name, config())
    rotates = f"base={BASE:g}" in plain
    assert not rotates or "scaling=pi" in full or "scaling pi" in notes[0]


@pytest.mark.parametrize(
    ("spec", "expected", "said"),
    [
        ("gemma", "gemma", "base 300000"),
        ("carope:start=normal", "carope:start=normal", "base 300000"),
        ("pope:base=500", "pope:base=500", ""),
        ("softpick:base=pope", "softpick:base=pope:base=300000", ""),
        ("hybrid:global=pope:base=500", "hybrid:local=rope:base=300000,global=pope:base=500", ""),
        ("dape:base=alibi", "dape:base=alibi", ""),
    ],
)
def test_specs(spec: str, expected: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert Checkpoint(Path(), config()).spec(spec) == expected
    printed = capsys.readouterr().err
    assert said in printed and bool(said) == bool(printed)


@pytest.mark.parametrize(("option", "notes"), [("base", 0), ("other", 1)])
def test_your_own_encoding(option: str, notes: int, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(TURNING.format(name="Mine", option=option, sign="-"))
    full, found = with_rotation(str(file), config())
    assert (f":base={BASE:g}" in full) is not bool(notes)
    assert len(found) == notes


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("tape", "tape:base=300000,scaling=pi,factor=2"),
        ("pope", "pope:base=300000"),
        ("rope:scaling=none", "rope:base=300000"),
        ("alibi", "alibi"),
    ],
)
def test_a_model_of_this_suite_hands_its_rotation_on(spec: str, expected: str) -> None:
    own = {"encoding": "tape:base=300000,scaling=pi,factor=2"}
    of_own = parse_config({**SHAPE, "model_type": "pe_bench", "pe_bench": own})
    assert with_rotation(spec, of_own)[0] == expected


@pytest.mark.parametrize(
    ("fields", "encoding"),
    [
        ({"rope_scaling": None, "rope_parameters": None}, "rope:base=300000"),
        (
            {"rope_scaling": {"type": "linear", "factor": 2.0}},
            "rope:base=300000,scaling=pi,factor=2",
        ),
        (
            {"model_type": "smollm3", "no_rope_layers": [1, 1, 1, 0, 1, 1]},
            "hybrid:local=rope:base=300000,pattern=lllg",
        ),
        (
            {
                "model_type": "qwen2",
                "use_sliding_window": True,
                "sliding_window": 16,
                "max_window_layers": 2,
            },
            "hybrid:local=rope:base=300000,global=rope:base=300000,window=16,pattern=ggllll",
        ),
    ],
)
def test_the_encoding_of_a_config(fields: dict[str, Any], encoding: str) -> None:
    config = parse_config({**SHAPE, "rope_theta": BASE, **fields})
    assert Checkpoint(Path(), config).encoding == encoding


@pytest.mark.parametrize("name", some_slow(NAMES, EVERYDAY))
def test_another_rotation_than_that_of_a_model_trained_here_is_named(
    name: str, bases: list[float]
) -> None:
    model = config().model
    origin = plugins.load("encoding", f"rope:base={BASE:g}")
    encoding = plugins.load("encoding", name)
    notes = describe_rotation(encoding, origin, model)
    bases.clear()
    encoding.make(model, 0)
    assert set(bases) <= {BASE} or notes
    for written in re.findall(r"write (\S+) to", "".join(notes)):
        again = describe_rotation(plugins.load("encoding", written), origin, model)
        assert "write" not in "".join(again)


@pytest.mark.parametrize(
    ("origin", "name", "said"),
    [
        ("softpick:base=rope:base=500", "rope", "write rope:base=500 to"),
        ("softpick:base=rope:base=500", "softpick:base=rope:base=500", ""),
        ("hybrid:local=rope:base=500,global=nope", "rope", "write rope:base=500 to"),
        ("hybrid:local=rope:base=500,global=rope", "rope", "may differ from those of hybrid"),
        ("hybrid:local=rope:base=500,global=rope", "rope:base=500", ""),
        ("gemma", "rope", "may differ from those of gemma"),
        ("gemma", "alibi", ""),
        ("alibi", "rope", ""),
    ],
)
def test_rotation_of_origins(origin: str, name: str, said: str) -> None:
    encoding = plugins.load("encoding", name)
    notes = " ".join(describe_rotation(encoding, plugins.load("encoding", origin), config().model))
    assert said in notes and bool(said) == bool(notes)


def test_every_part_of_a_spec_is_named() -> None:
    fixed = "carope:start=normal"  # has no base
    _, notes = with_rotation(f"hybrid:local={fixed},global={fixed}", config())
    assert len(notes) == 2
    _, notes = with_rotation(f"hybrid:local={fixed},global=pope", config())
    assert len(notes) == 1


def test_run_names_another_rotation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    encodings = ["rope", "rope:scaling=pi,factor=2", "pope:base=100", "alibi", "rope:base=500"]
    words = f"--from rope:base=500 --task flipflop --dry-run --device cpu --results {tmp_path}"
    assert main(["run", *words.split(), "--encoding", *encodings]) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if "frequencies" in line]
    assert [line.partition(": write ")[2].partition(" to take")[0] for line in said] == [
        "rope:base=500",
        "rope:base=500,scaling=pi,factor=2",
    ]
