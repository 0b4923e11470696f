"""run.json: what is written is what is read."""

import json
from pathlib import Path

import pytest

from pe_bench.results.metrics import Metric
from pe_bench.results.record import RunRecord
from pe_bench.results.views import Column, Curve, Gallery, Headline, Heatmap

RECORD = RunRecord(
    status="done",
    task="lm",
    encoding="rope",
    seed=3,
    settings_digest="5e77",
    settings={"options": {"base": 2.0}},
    headline=Headline("score", "all"),
    views=(
        Column("a", "score", "A"),
        Curve("a", "score", log_x=False),
        Heatmap("grid", "score", "Title", (None, 16.0)),
        Gallery("logit", "mean_logit", "Title", "mean logit"),
    ),
    metrics={"speed": Metric("speed", "m/s", higher_is_better=True)},
    notes=("4 windows",),
    subsets=("a", "b"),
    folder=Path("somewhere"),
    name="somewhere",
)


def test_a_record_survives_its_file() -> None:
    content = json.loads(json.dumps(RECORD.to_json()))
    assert not {"folder", "name", "exported"} & content.keys()
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
