"""What `pe-bench list encodings` says is what the encodings are."""

import re
from collections import Counter
from pathlib import Path

import pytest

from pe_bench.config import ModelConfig
from pe_bench.encoding import Encoding, StatefulEncoding
from pe_bench.registry import catalog as cards
from pe_bench.registry import plugins
from pe_bench.wrapper import Wrapper

NAMES = plugins.names("encoding")
SHAPE = ModelConfig(
    layers=3, heads=4, width=64, train_length=32, digit_ids=(1, 2), separator_ids=(3,)
)


@pytest.mark.parametrize("name", NAMES)
def test_a_card_says_what_the_class_does(name: str) -> None:
    found = cards.card(name)
    assert found.what and found.paper and 2016 < int(found.year) < 2027
    encoding: Encoding = plugins.load("encoding", name).make(SHAPE, 0)
    for fact in ("prefix_consistent", "shift_invariant"):
        declared = "yes" if getattr(encoding, fact) else "no"
        assert getattr(found, fact) in ("by option", declared), fact
    # One that adds to another acts where that one does as well, which its own card cannot know.
    parents = (Wrapper, StatefulEncoding, Encoding)
    parent = next(cls for cls in parents if isinstance(encoding, cls))
    own = [
        h for h in cards.PLACES if getattr(type(encoding), h, None) is not getattr(parent, h, None)
    ]
    places = dict.fromkeys(cards.PLACES[hook] for hook in own)
    assert found.acts_on == (", ".join(places) or "nothing")


@pytest.mark.parametrize("name", NAMES)
def test_the_number_of_parameters_is_the_formula(name: str) -> None:
    formula, once, _ = cards.card(name).parameters.partition(" once")
    symbols = {"C": SHAPE.width, "D": SHAPE.head_dim, "H": SHAPE.heads, "L": SHAPE.train_length}
    expected = eval(formula, {"__builtins__": {}}, symbols)
    first = plugins.load("encoding", name).make(SHAPE, 0)
    assert bool(once) is (first.shared and expected > 0)
    assert sum(p.numel() for p in first.parameters()) == expected


def test_the_table_has_a_line_for_each() -> None:
    head, *lines = cards.table(NAMES).splitlines()
    assert re.split("  +", head)[:4] == ["name", "what it does", "paper", "year"]
    assert [line.split()[0] for line in lines] == NAMES
    assert Counter(len(re.split("  +", line)) for line in lines) == {8: len(NAMES)}


def test_a_file_that_is_no_encoding_has_an_empty_card(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("def (")
    monkeypatch.setattr(plugins, "path_of", lambda kind, name: broken)
    found = cards.card("broken")
    assert found.what.startswith("(cannot be read") and found.paper == found.year == ""
