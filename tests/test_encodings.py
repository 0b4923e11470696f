"""Every shipped encoding passes every check."""

import inspect
import re
from dataclasses import MISSING, fields

import pytest
import torch
from helpers import CODED, KINDS, some_slow
from torch import Tensor

from pe_bench.checks.encodings import CHECKS
from pe_bench.checks.findings import NotApplicable
from pe_bench.checks.subject import CONFIG, Subject
from pe_bench.config import ModelConfig
from pe_bench.decoder.model import Decoder
from pe_bench.encoding import Encoding, StatefulEncoding
from pe_bench.errors import InputError
from pe_bench.layers import Layers
from pe_bench.registry import catalogue, plugins
from pe_bench.registry.options import option_of

NAMES = catalogue.names("encoding")
SPECS = [
    ":".join(filter(None, (name, options)))
    for name in NAMES
    for options in ("", *plugins.load("encoding", name).cls.variants)
]


NINE_LAYERS = {*CODED} - {*KINDS}
"""Encodings that are checked in bfloat16 with nine layers only."""


def everyday(spec: str, check: str) -> bool:
    """Return whether a check is quick: all checks of a few encodings, and one of the others."""
    return spec in ("rope", "alibi", "tape") or (spec in NAMES and check == "gradients")


@pytest.mark.parametrize(
    ("spec", "check"),
    [
        pytest.param(spec, check, marks=() if everyday(spec, check) else pytest.mark.slow)
        for spec in SPECS
        for check in CHECKS
        if check != "bfloat16" or spec not in NINE_LAYERS
    ],
)
def test_shipped_encodings(spec: str, check: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four layers suffice (test_conformance.py), two for options of layers with the same code."""
    plugin = plugins.load("encoding", spec)
    differ = spec in NAMES or issubclass(plugin.cls, (Layers, StatefulEncoding))
    monkeypatch.setattr(Subject.model, "__defaults__", (torch.float64, 4 if differ else 2))
    subject = Subject(plugin.make)
    try:
        assert CHECKS[check](subject) is None
    except NotApplicable as claim:
        assert str(claim)


@pytest.mark.parametrize("name", some_slow(CODED, [*KINDS, "fox", "path", "repo", "wall"]))
@pytest.mark.usefixtures("four_layers")
def test_grouped_queries(name: str) -> None:
    """Four query heads share two key heads; the cache holds only the keys of two heads."""
    plugin = plugins.load("encoding", name)
    try:
        subject = Subject(plugin.make, kv_heads=2)
        subject.model(layers=1)
    except InputError as refusal:
        assert "kv_heads" in str(refusal)
    else:
        assert CHECKS["cache"](subject) is None


@pytest.mark.slow
@pytest.mark.parametrize("name", CODED)
def test_nine_layers_in_bfloat16(name: str) -> None:
    """Errors add up from layer to layer."""
    assert CHECKS["bfloat16"](Subject(plugins.load("encoding", name).make)) is None


def test_hybrids_without_code() -> None:
    assert {*NAMES} - {*CODED} == {
        *("cohere2", "gemma", "gemma2", "gemma3"),
        *("llama4", "olmo3", "rnope-swa", "smollm3"),
    }


@pytest.mark.slow
def test_what_shipped_encodings_claim() -> None:
    """Shipped encodings must declare their properties, so that checks apply."""
    loaded = {n: plugins.load("encoding", n).make(CONFIG, 0).eval() for n in NAMES}
    assert all(e.prefix_consistent for e in loaded.values())
    assert {n for n, e in loaded.items() if e.needs_final_length} == {"randpe"}
    absolute = {n for n, e in loaded.items() if not e.shift_invariant}
    assert absolute == {
        "bipe",
        "dual-chunk",
        "fire",
        "fope",
        "grape-ap",
        "learned",
        "position-coupling",
        "self-extend",
        "sinusoidal",
    }
    assert {n for n, e in loaded.items() if e.max_position} == {"learned", "randpe", "xpos"}
    assert {n for n, e in loaded.items() if e.overrides("product")} == {"path", "wall"}
    assert {n for n, e in loaded.items() if e.overrides("rewrite_logits")} == {
        "cope",
        "dape",
        "dapev2",
        "dual-chunk",
        "grape-a",
        "grape-ap",
        "lm-infinite",
        "rerope",
        "self-extend",
        "stick-breaking",
        "streaming-llm",
        "string-rope",
    }
    stateful = {n: e for n, e in loaded.items() if e.overrides("prepare")}
    assert stateful.keys() == {"tape", "tape-ablations"}
    assert all(isinstance(e, StatefulEncoding) for e in stateful.values())
    assert all(e.rotation_equivariant and e.permutation_equivariant for e in stateful.values())


@pytest.mark.parametrize("name", catalogue.names("encoding"))
def test_every_option_is_among_the_variants(name: str) -> None:
    cls = plugins.load("encoding", name).cls
    own = inspect.signature(vars(cls).get("__init__", Encoding.__init__)).parameters.values()
    options = {option_of(p.name) for p in own if p.kind is p.KEYWORD_ONLY}
    documentation = [inspect.getdoc(cls)]
    for table in vars(cls).get("option_tables", {}).values():
        for choice in table.values():
            options |= {field.name for field in fields(choice) if field.default is not MISSING}
            documentation += [inspect.getdoc(part) for part in choice.__mro__]
    tried = set(re.findall(r"(\w+)=", ",".join(cls.variants)))
    assert options - tried == set()
    text = "\n".join(filter(None, documentation))
    documented = {option_of(name) for name in re.findall(r"^ +(\w+):", text, re.MULTILINE)}
    assert options - documented == set()


MANY = ModelConfig(
    layers=4,
    heads=3,
    width=48,
    mlp_width=16,
    vocab_size=20,
    train_length=60,
    separator_ids=(1,),
    digit_ids=tuple(range(2, 12)),
)
ROW = 7 * torch.arange(70)[None] % MANY.vocab_size  # longer than the tables of the variants
WITHOUT_EFFECT = {
    "fope": {"outputs"},  # needs heads with more channels
    "llama4": {"scale"},  # the temperature begins at 8192 tokens
    "randpe": {"count"},  # evaluations are averaged outside of the model
    "rope": {"turns"},  # no plane turns between one and two times in these rows
}


def behaviour(spec: str) -> tuple[dict[str, Tensor], Tensor, Tensor] | None:
    """Return initial weights, and logits of evaluation and training; None if it is refused."""
    random = torch.Generator().manual_seed(1)
    torch.manual_seed(0)
    try:
        model = Decoder(MANY, plugins.load("encoding", spec).make)
        first = {name: weight.clone() for name, weight in model.state_dict().items()}
        for parameter in model.parameters():
            parameter.data += 0.3 * torch.randn(parameter.shape, generator=random)
        evaluated = model.eval()(ROW)
        torch.manual_seed(2)
        return first, evaluated, model.train()(ROW[:, : MANY.train_length])
    except InputError:
        return None


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_every_option_changes_something(name: str) -> None:
    """Each option of a variant, taken away alone, leaves another model."""
    without: set[str] = set()
    for variant in plugins.load("encoding", name).cls.variants:
        whole = behaviour(f"{name}:{variant}")
        options = re.findall(r"(\w+)=([^=]*)(?:,|$)", variant)
        for option in options:
            others = ",".join("=".join(other) for other in options if other != option)
            part = behaviour(f"{name}:{others}" if others else name)
            if whole is None or part is None:
                continue  # the others need the option
            same = [*part[0]] == [*whole[0]] and all(
                map(torch.equal, [*part[0].values(), *part[1:]], [*whole[0].values(), *whole[1:]])
            )
            if same:
                without.add(option[0])
    assert without == WITHOUT_EFFECT.get(name, set())
