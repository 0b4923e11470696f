"""The column with the degradation at the training length of the original model."""

from pathlib import Path
from typing import Any

import pytest
from helpers import make_task
from made_runs import SCORE, cells, put, read_table, report

from pe_bench.registry import plugins
from pe_bench.reporting.new_runs import summarize
from pe_bench.results.measurement import Measurement
from pe_bench.results.views import Column, View

OLD_LENGTH = (Column("old", "bits_per_byte", at_trained_length=True), Column("found", "accuracy"))
FOUND_AT_OLD_LENGTH = (
    Column("old", "bits_per_byte"),
    Column("found", "accuracy", at_trained_length=True),
)


def put_extended(root: Path, label: str, seed: int, loss: float, found: float, **more: Any) -> None:
    """Write a run of a model that was initialised from a model with `rope`."""
    origin, encoding = label.removesuffix(" [9 steps]").split(" -> ")
    steps = 9 if "[" in label else 0
    adaptation = {"encoding": encoding, "from": origin, "config": {"steps": steps}}
    rows = [
        SCORE,
        Measurement("old", "bits_per_byte", loss, 9, 0.1, ci_low=loss - 0.1, ci_high=loss + 0.1),
        Measurement("found", "accuracy", found, 9, status="not_learned"),
    ]
    put(root, label, rows, seed, **({"adaptation": adaptation, "views": OLD_LENGTH} | more))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("views", "heading", "expected"),
    [
        (
            OLD_LENGTH,
            "degradation at the original length (bits per byte ↓)",
            ["+0.250 ± 0.071", "-0.100"],
        ),
        (
            FOUND_AT_OLD_LENGTH,
            "degradation at the original length (% ↓)",
            ["+12.00 ± 2.83", "+5.00"],
        ),
    ],
)
def test_degradation_at_the_original_length_is_paired_with_the_model_itself(
    views: tuple[View, ...], heading: str, expected: list[str], tmp_path: Path
) -> None:
    same = "+0.000 ± 0.000" if views == OLD_LENGTH else "+0.00 ± 0.00"
    for seed, loss, found in ((0, 1.0, 90.0), (1, 2.0, 80.0)):
        put_extended(tmp_path, "rope -> nope", seed, loss - 1e-9, found + 1e-9, views=views)
        put_extended(tmp_path, "rope -> rope", seed, loss, found, views=views)
        worse = (loss + 0.2 + 0.1 * seed, found - 10 - 4 * seed)
        put_extended(tmp_path, "rope -> alibi", seed, *worse, views=views)
    for seed, loss, found in ((1, 1.9, 75.0), (2, 9.0, 10.0)):  # seed 2 has no model to compare
        put_extended(tmp_path, "rope -> rope [9 steps]", seed, loss, found, views=views)
    text, csv = report(tmp_path)
    shown = {line["encoding"]: line[heading] for line in cells(text)}
    assert shown == {
        "rope -\\> rope": "–",
        "rope -\\> alibi": expected[0],
        "rope -\\> nope": same,
        "rope -\\> rope \\[9 steps\\]": f"{expected[1]} (1 of 2)",
    }
    assert r"difference of a row to the unchanged model (rope -\> rope)" in text
    others = (csv["metric"] == "degradation") & (csv["encoding"] != "rope -> nope")
    degradation = csv[others].set_index("encoding")
    assert degradation["seeds"].to_dict() == {"rope -> alibi": 2, "rope -> rope [9 steps]": 1}
    assert degradation["ci_low"].notna().to_dict() == {
        "rope -> alibi": True,
        "rope -> rope [9 steps]": False,
    }
    runs = [*(tmp_path / "runs").glob("lm/*/*")]
    shown_there = " ".join(summarize(runs).split())
    assert (
        expected[0] in shown_there and "difference of a row to the unchanged model" in shown_there
    )


@pytest.mark.parametrize(
    ("views", "degradation"), [(OLD_LENGTH, 0.25), (FOUND_AT_OLD_LENGTH, 12.0)]
)
def test_worse_is_above_zero(views: tuple[View, ...], degradation: float, tmp_path: Path) -> None:
    for seed in (0, 1):
        put_extended(tmp_path, "rope -> rope", seed, 1.0, 90.0, views=views)
        put_extended(tmp_path, "rope -> alibi", seed, 1.2 + seed / 10, 80.0 - 4 * seed, views=views)
    partial = Measurement("old", "bits_per_byte", 9.0, 9, status="partial")
    adaptation = {"encoding": "nope", "from": "rope", "config": {"steps": 0}}
    put(tmp_path, "rope -> nope", [SCORE, partial], views=views, adaptation=adaptation)
    scores = read_table(tmp_path).scores
    assert scores["mean"][scores["metric"] == "degradation"].tolist() == [
        pytest.approx(degradation)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("label", ["rope -> rope [9 steps]", "rope -> nope", "tiny -> rope"])
def test_there_is_no_damage_without_the_model_itself(label: str, tmp_path: Path) -> None:
    put_extended(tmp_path, label, 0, 1.0, 90.0)
    put_extended(tmp_path, "rope -> alibi", 0, 1.0, 90.0)
    text, csv = report(tmp_path)
    assert "degradation" not in text.lower() and "degradation" not in set(csv["metric"])


@pytest.mark.slow
def test_the_model_itself_may_be_a_checkpoint(tmp_path: Path) -> None:
    adaptation = {"from": "tiny", "config": {"steps": 0}}
    for spec, loss in (("rope", 1.0), ("alibi", 1.5)):
        going_on = {**adaptation, "encoding": spec, "unchanged": spec == "rope"}
        put_extended(tmp_path, f"tiny -> {spec}", 0, loss, 90.0, adaptation=going_on)
    text, _ = report(tmp_path)
    shown = [line["degradation at the original length (bits per byte ↓)"] for line in cells(text)]
    assert sorted(shown) == ["+0.500", "–"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "subset", "metric"),
    [
        ("flipflop", "in-distribution", "accuracy"),
        ("passkey", "in-distribution", "exact_match"),
        ("perplexity", "1x-context", "bits_per_byte"),
        ("scrolls", "in-distribution", "score"),
    ],
)
def test_tasks_say_which_scores_are_at_the_trained_length(
    name: str, subset: str, metric: str, tmp_path: Path
) -> None:
    task = make_task(plugins.load("task", name).cls, tmp_path)
    columns = [view for view in task.views if isinstance(view, Column)]
    (column,) = [column for column in columns if column.at_trained_length]
    assert (column.subset, column.metric) == (subset, metric)
