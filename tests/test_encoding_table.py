"""`pe-bench list` describes encodings correctly."""

import re
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
from helpers import some_slow

from pe_bench.commands.encoding_table import FACTS, _acts_on, _variants, encoding_table
from pe_bench.config import ModelConfig
from pe_bench.errors import InputError
from pe_bench.registry import catalogue, plugins

NAMES = catalogue.names("encoding")
SHAPE = ModelConfig(
    layers=3, heads=4, width=64, train_length=32, digit_ids=(1, 2), separator_ids=(3,)
)

ACTING = {
    "nope": "nothing",
    "rope": "q and k",
    "alibi": "bias",
    "t5": "bias",
    "cable": "bias",
    "kerple": "bias, logits by option (form=power-weighted)",
    "randpe": "ids, q and k",
    "tape": "q and k, values, state",
    "path": "logits, bias by option (gate=fox)",
    "abacus": "ids, embeddings, q and k by option (base=rope)",
}


@cache
def card_of(name: str) -> dict[str, str]:
    head, line = [re.split("  +", line) for line in encoding_table([name]).splitlines()]
    assert line[0] == name
    return dict(zip(head, line, strict=True))


@pytest.mark.slow
def test_the_brief_table_fits_a_terminal() -> None:
    longest = max(NAMES, key=len)
    head, *lines = encoding_table(["abacus", "kerple", "tape", longest], wide=False).splitlines()
    assert re.split("  +", head) == ["name", "acts on", *FACTS.values()]
    cells = [re.split("  +", line) for line in lines[:3]]
    assert [cell[1] for cell in cells] == ["ids, embeddings", "bias", "q and k, values, state"]
    assert all(cell[2] in ("yes", "no") and cell[3] in ("yes", "no") for cell in cells)
    assert max(map(len, [head, *lines])) <= 80


@pytest.mark.parametrize("name", some_slow(NAMES, ["nope", "kerple"]))
def test_a_card_has_a_source(name: str) -> None:
    card = card_of(name)
    assert card["what it does"] and card["paper"] and 2016 < int(card["year"]) < 2027
    encoding = plugins.load("encoding", name).make(SHAPE, 0)
    for fact in ("prefix_consistent", "shift_invariant"):
        declared = "yes" if getattr(encoding, fact) else "no"
        assert card[fact.replace("_", "-")].split()[0] == declared


@pytest.mark.parametrize("name", some_slow(ACTING, ["nope", "kerple"]))
def test_where_an_encoding_acts(name: str) -> None:
    assert card_of(name)["acts on"] == ACTING[name]


def test_of_several_options_the_first_is_named() -> None:
    encodings = {"": "nope", "form=a": "alibi", "form=b": "t5", "angle=1": "rope"}
    variants = {option: plugins.load("encoding", name) for option, name in encodings.items()}
    assert _acts_on(variants) == "nothing, q and k by option (angle=1), bias by option (form=a)"


def test_options_are_tried_alone_and_together_where_one_needs_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def load(kind: str, spec: str) -> Any:
        def make(model: ModelConfig, layer: int) -> None:
            if spec == "own:c=3":
                raise InputError("c needs b")

        return SimpleNamespace(spec=spec, make=make)

    monkeypatch.setattr(plugins, "load", load)
    variants = ("a=1", "b=2,c=3", "d=4,e=5")
    plugin: Any = SimpleNamespace(label="own", cls=SimpleNamespace(variants=variants))
    found: dict[str, Any] = dict(_variants(plugin))
    assert found.pop("") is plugin
    options = ["a=1", "b=2", "b=2,c=3", "d=4", "e=5"]
    assert {name: one.spec for name, one in found.items()} == {o: f"own:{o}" for o in options}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "backends"),
    [
        ("rope", "eager sdpa blocked flex"),
        ("fire", "eager sdpa blocked"),
        ("fox", "eager blocked flex"),
        ("cope", "eager blocked"),
    ],
)
def test_what_trains_an_encoding(name: str, backends: str) -> None:
    assert card_of(name)["training runs on"] == backends


@pytest.mark.parametrize("name", NAMES)
def test_the_number_of_parameters_is_the_formula(name: str) -> None:
    plugin = plugins.load("encoding", name)
    formula, once, _ = plugin.cls.parameters_per_layer.partition(" once")
    symbols = {"C": SHAPE.width, "D": SHAPE.head_dim, "H": SHAPE.heads, "L": SHAPE.train_length}
    symbols["N"] = SHAPE.layers
    expected = eval(formula, {"__builtins__": {}}, symbols)
    # The lowest layers of `repo` have no parameters, and neither has the last layer of `tape`.
    # Shared # parameters are in the first layer.
    first, *rest = (plugin.make(SHAPE, layer) for layer in range(SHAPE.layers))
    assert bool(once) is (first.shared and expected > 0)
    made = [first] if first.shared else [first, *rest]
    assert max(sum(p.numel() for p in each.parameters()) for each in made) == expected
