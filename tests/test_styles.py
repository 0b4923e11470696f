"""The style that a user's encoding declares is recorded and drawn."""

from pathlib import Path

import pytest
from made_runs import CURVE, SCORE, put
from test_runner import Toy, record
from test_runner import toy as toy  # a fixture

from pe_bench.cli import main
from pe_bench.registry import catalogue
from pe_bench.reporting.styles import FREE_COLOURS, MARKERS, Style, family_of, styles, styles_of
from pe_bench.results.store import read_record, read_records

MINE = """
from pe_bench.api import Encoding

class Mine(Encoding):
    family = "moon"
    colour = "{colour}"
    marker = "{marker}"
"""


@pytest.mark.slow
def test_a_declared_style_reaches_the_report(toy: Toy, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE.format(colour="#12abEF", marker="D"))
    assert toy(encodings=["./mine.py", "nope"]) == (0, ["batch", "batch", "a", "b"] * 2)
    kept = record(tmp_path, "mine.py")[0]["described"]["encoding"]["style"]
    assert kept == {"family": "moon", "colour": "#12abEF", "marker": "D"}
    (tmp_path / "mine.py").unlink()
    assert main(["export", "sent"]) == 0
    for folder in ("results", "sent"):
        records = read_records(Path(folder))
        found = styles_of(records)
        assert found["mine.py"] == Style("#12ABEF", "D")
        assert found["nope"] == styles(["nope"])["nope"]
        assert main(["report", folder]) == 0
        page = Path(folder, "index.html").read_text()
        assert "#12ABEF" in page and "moon" in page


@pytest.mark.parametrize(
    ("style", "colour", "marker"),
    [
        ({"colour": "red"}, "#FF0000", None),
        ({"colour": "#abc", "marker": "s"}, "#AABBCC", "s"),
        ({"colour": "#0072B2", "marker": "no such"}, "#0072B2", None),
        ({"colour": "no such"}, None, None),
        ({"colour": ""}, None, None),
        ({}, None, None),
    ],
)
def test_what_is_no_colour_is_ignored(
    tmp_path: Path, style: dict[str, str], colour: str | None, marker: str | None
) -> None:
    described = {"encoding": {"style": style}}
    run = put(tmp_path, "mine.py", [SCORE, *CURVE], described=described)
    one = read_record(run)
    found = styles_of([one])["mine.py"]
    assert family_of("mine.py", one) == "other"
    if colour is None:
        assert found == styles(["mine.py"])["mine.py"]
    else:
        assert found.colour == colour and found.marker in ([marker] if marker else MARKERS)


def test_variants_and_adapted_models_have_shades_of_it(tmp_path: Path) -> None:
    described = {"encoding": {"style": {"colour": "#336699", "marker": "s", "family": "moon"}}}
    labels = ["mine.py", "mine.py:size=2", "rope -> mine.py", "rope"]
    runs = [put(tmp_path, label, [SCORE], described=described) for label in labels]
    records = [read_record(run) for run in runs]
    found = styles_of(records)
    assert found["mine.py"] == Style("#336699", "s")
    assert len(set(found.values())) == len(labels)
    assert found["rope"] == styles(["rope"])["rope"]  # a shipped one has its own
    assert [family_of(one.encoding, one) for one in records] == ["moon"] * 3 + ["rotary"]


def test_encodings_without_a_style_have_a_free_colour() -> None:
    shipped = styles(catalogue.names("encoding"))
    for label in ("mine.py", "other.py", "third.py:a=1"):
        found = styles([*shipped, label])[label]
        assert found.colour in FREE_COLOURS
        assert found.colour not in {style.colour for style in shipped.values()}
