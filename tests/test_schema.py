"""Results of a later version, or with missing parts, are refused and not changed."""

import json
from pathlib import Path
from typing import Any

import pytest
from made_runs import CURVE, SCORE, put
from test_runner import Toy, record
from test_runner import toy as toy  # a fixture

from pe_bench.cli import main
from pe_bench.results.layout import EXPORTED
from pe_bench.results.store import read_record
from pe_bench.system import sealed
from pe_bench.system.sealed import SCHEMA, DamagedError, read_sealed, write_sealed

LATER = f"was written by a later version of pe-bench (schema {SCHEMA + 1}, this one reads up to"


def change(path: Path, **values: Any) -> None:
    """Write other values into a sealed record, and remove those that are None."""
    content = json.loads(path.read_text()) | values
    content = {k: v for k, v in content.items() if v is not None and k != "sha256"}
    path.write_text(json.dumps(content | {"sha256": sealed._seal(content)}))


@pytest.mark.slow
def test_every_record_says_its_schema(toy: Toy, tmp_path: Path) -> None:
    toy()
    for path in [*tmp_path.glob("results/**/*.json"), *tmp_path.glob("cache/**/*.json")]:
        content = json.loads(path.read_text())
        assert "sha256" not in content or content["schema"] == SCHEMA, path
    assert record(tmp_path)[0]["schema"] == SCHEMA


@pytest.mark.slow
def test_a_later_run_is_refused_and_stays_as_it_is(
    toy: Toy, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    toy()
    toy(encodings=["rope"])
    path = record(tmp_path)[1] / "run.json"
    change(path, schema=SCHEMA + 1)
    before = path.read_bytes()
    capsys.readouterr()
    assert toy() == (2, [])
    found = capsys.readouterr().err
    assert LATER in found and f"results/runs/toy.py/nope/{path.parent.name}/run.json" in found
    assert main(["report"]) == 2
    assert LATER in capsys.readouterr().err
    assert "rope" in Path("results/leaderboard.md").read_text()
    assert path.read_bytes() == before and not list(path.parent.glob("*.damaged*"))


@pytest.mark.slow
def test_a_later_export_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(tmp_path / "here", "rope", [SCORE, *CURVE])
    there = tmp_path / "there"
    assert main(["report", "--results", str(tmp_path / "here"), "--export", str(there)]) == 0
    change(there / EXPORTED, schema=SCHEMA + 1)
    assert main(["report", "--results", str(there)]) == 2
    assert LATER in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("absent", "says"),
    [
        ("settings_digest", "run.json is not the record of a run (it lacks settings_digest)"),
        ("headline", "run.json is not the record of a run (it lacks a headline)"),
    ],
)
def test_a_run_that_says_too_little_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], absent: str, says: str
) -> None:
    put(tmp_path, "alibi", [SCORE, *CURVE])
    folder = put(tmp_path, "rope", [SCORE, *CURVE])
    change(folder / "run.json", **{absent: None})
    assert main(["report", "--results", str(tmp_path)]) == 2
    line = capsys.readouterr().err
    assert says in line and f"run it again, or remove {folder}" in line
    assert "alibi" in (tmp_path / "leaderboard.md").read_text()


def test_rows_may_have_further_columns_but_lack_none(tmp_path: Path) -> None:
    folder = put(tmp_path, "rope", [SCORE])
    rows = folder / "rows.csv"
    head, row = rows.read_text().splitlines()
    rows.write_text(f"{head},more\n{row},1\n")
    assert read_record(folder).status == "done"
    rows.write_text(f"{head.replace('ci_low', 'confidence')}\n{row}\n")
    found = read_record(folder)
    assert found.status == "damaged"
    assert "rows.csv lacks the columns ci_low, as in an earlier version" in str(found.reason)


def test_a_schema_that_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    monkeypatch.setattr(sealed, "SCHEMA", "two")
    write_sealed(path, {}, owner="a")
    monkeypatch.undo()
    with pytest.raises(DamagedError, match="has a schema that is not a number"):
        read_sealed(path, owner="a")
