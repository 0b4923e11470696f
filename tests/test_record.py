"""run.json: what is written is what is read."""

import json
from pathlib import Path

import pytest

from pe_bench.results.record import RunRecord
from pe_bench.results.schema import Figure, Headline

RECORD = RunRecord(
    status="done",
    task="lm",
    encoding="rope",
    seed=3,
    settings_digest="5e77",
    settings={"options": {"base": 2.0}},
    headline=Headline("score", "all", higher_is_better=True),
    figures=(Figure("heatmap", "grid", "score", "Title", "score, %", (None, 16.0)),),
    subsets=("a", "b"),
    folder=Path("somewhere"),
)


def test_a_record_survives_its_file() -> None:
    content = json.loads(json.dumps(RECORD.to_json()))
    assert "folder" not in content
    assert RunRecord.from_json(content, Path("somewhere")) == RECORD


def test_keys_of_another_version_are_ignored() -> None:
    content = RECORD.to_json() | {"of_tomorrow": 1}
    assert RunRecord.from_json(content, RECORD.folder) == RECORD


@pytest.mark.parametrize(
    ("content", "says"), [([], "not a JSON object"), ({"task": "lm"}, "lacks status, encoding")]
)
def test_what_is_no_record(content: object, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        RunRecord.from_json(content)  # type: ignore[arg-type]
