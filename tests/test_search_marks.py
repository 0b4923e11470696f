"""Runs that ended much worse than their search are marked and counted."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_runs import SCORE, put, read_table, report

from pe_bench.reporting.tuning_notes import find_worse


def trial(lr: float, loss: float | None, value: str | None = None, seed: int = 9) -> dict[str, Any]:
    return {"phase": "all", "lr": lr, "value": value, "seed": seed, "training_loss": loss}


def put_run(root: Path, seed: int, loss: float | None, tried: list[dict[str, Any]]) -> None:
    search = {"task": "lm", "encoding": "rope", "encoding_version": "0", "tried": tried}
    tuning = {**search, "lr": {"all": 1e-3}, "values": {"all": None}}
    training = {"steps": 5, "loss": loss}
    settings = {
        "train": {"steps": 5, "lr": 1e-3, "batch_size": 1},
        "tune": {"lr": [1e-3, 1e-2], "seeds": [9], "version": 2},
    }
    put(root, "rope", [replace(SCORE, value=50.0)], seed, tuning={"task": tuning},
        settings=settings, costs={"test": {"training": training}})  # fmt: skip


@pytest.mark.parametrize(
    ("loss", "search", "marked"),
    [
        (0.5, 0.04, True),
        (0.5, 0.06, False),
        (0.009, 1e-6, False),  # a loss that close to zero says nothing
        (0.011, 1e-6, True),
        (None, 1e-6, False),
        (0.5, None, False),
    ],
)
def test_which_runs_are_marked(
    tmp_path: Path, loss: float | None, search: float | None, marked: bool
) -> None:
    put_run(tmp_path, 3, loss, [trial(1e-3, search), trial(1e-2, 1e-9), trial(1e-3, 1e-9, "100")])
    assert find_worse(read_table(tmp_path)) == ({"rope": [3]} if marked else {})


def test_the_median_of_the_search_counts(tmp_path: Path) -> None:
    seeds = [trial(1e-3, loss, seed=seed) for seed, loss in enumerate((1e-6, 0.1, 0.2))]
    put_run(tmp_path, 1, 0.9, seeds)
    put_run(tmp_path, 2, 1.1, seeds)
    assert find_worse(read_table(tmp_path)) == {"rope": [2]}


def test_the_report_counts_them(tmp_path: Path) -> None:
    for seed, loss in ((1, 0.01), (2, 0.7), (4, 0.8)):
        put_run(tmp_path, seed, loss, [trial(1e-3, 0.01)])
    text, _ = report(tmp_path)
    assert "0.7000 ‡2 |" in text
    assert "‡: 2 runs have ended with a training loss of more than 10 times that of" in text
    assert "rope (seeds 2, 4)." in text
