"""A grid continues from an export: nothing is trained or searched again."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_tuning import EACH, Toy, kept, records
from test_tuning import toy as toy  # a fixture

import pe_bench
from pe_bench.cli import main
from pe_bench.config import show_rate
from pe_bench.registry import plugins
from pe_bench.results.record import RunRecord
from pe_bench.results.store import owner_of
from pe_bench.runs.options import RunOptions
from pe_bench.runs.phases import Phases
from pe_bench.runs.resolve import resolve
from pe_bench.runs.reuse import find_same, identify_models
from pe_bench.system.sealed import read_sealed, write_sealed

TUNED = ("--tune", "--tune.seeds", "7")


def forget() -> None:
    """Remove results and trained models."""
    shutil.rmtree("results")
    shutil.rmtree("cache")


@pytest.mark.slow
def test_a_grid_goes_on_from_an_export(toy: Toy, tmp_path: Path) -> None:
    toy(*TUNED, "--seeds", "0", "1", encodings=("nope", "rope"))
    before = kept(tmp_path, "rope")
    rows = pe_bench.read_results("results")
    curves = pe_bench.read_curves("results")
    assert main(["export", "sent"]) == 0
    forget()
    assert main(["merge", "sent"]) == 0
    assert kept(tmp_path, "rope") == before
    code, trained = toy(*TUNED, "--seeds", "0", "1", "2", encodings=("nope", "rope"))
    assert code == 0 and [each.split()[1] for each in trained] == ["2", "2"]  # no 7: no search
    assert len(pe_bench.read_results("results")) == len(rows) * 3 // 2
    assert len(pe_bench.read_curves("results")) == len(curves) * 3 // 2


@pytest.mark.slow
def test_another_search_that_chooses_the_same_trains_nothing_again(
    toy: Toy, tmp_path: Path
) -> None:
    toy(*TUNED, "--seeds", "0", "1")
    (lr,) = kept(tmp_path)["lr"].values()
    others = records(tmp_path)
    rows = pe_bench.read_results("results")
    assert main(["export", "sent"]) == 0
    forget()
    assert main(["merge", "sent"]) == 0
    code, trained = toy("--tune", "--tune.seeds", "8", "--seeds", "0", "1", "2")
    assert code == 0 and {each.split()[1] for each in trained[:-1]} == {"8"}
    assert trained[-1].split()[1] == "2"  # of the reported seeds, only the new one
    found = [run for run in records(tmp_path) if run["settings"]["tune"]["seeds"] == [8]]
    assert [run["seed"] for run in found] == [0, 1, 2]
    assert [run["reused"] is not None for run in found] == [True, True, False]
    for before, now in zip(others, found[:2], strict=True):
        assert now["tuning"]["task"]["lr"] == {"all": lr}
        assert now["tuning"]["task"]["seeds"] == [8]
        assert now["models"] == before["models"]
        assert (now["finished"], now["seconds"]) == (before["finished"], before["seconds"])
        assert before["reused"] is None
    again = pe_bench.read_results("results")
    fresh = again[again["settings"] == found[0]["settings_digest"]]
    assert fresh[fresh["seed"] < 2]["value"].tolist() == rows["value"].tolist()
    assert toy("--tune", "--tune.seeds", "8", "--seeds", "0", "1", "2") == (0, [])


@pytest.mark.slow
def test_a_run_that_was_measured_on_other_data_is_not_reused(toy: Toy, tmp_path: Path) -> None:
    toy(*TUNED, "--seeds", "0")
    (path,) = tmp_path.glob("results/runs/*/*/*/run.json")
    content = read_sealed(path, owner=owner_of(path.parent))
    content["data"]["items_sha256"] = "that of an earlier version"
    files = [path.with_name(name) for name in ("rows.csv", "items.parquet", "curves.parquet")]
    write_sealed(path, content, owner=owner_of(path.parent), files=files)
    toy("--tune", "--tune.seeds", "8", "--seeds", "0")
    (found,) = [run for run in records(tmp_path) if run["settings"]["tune"]["seeds"] == [8]]
    assert found["reused"] is None


@pytest.mark.slow
def test_records_of_earlier_versions_are_reused_too(toy: Toy, tmp_path: Path) -> None:
    (tmp_path / "toy.py").write_text(EACH)  # a learning rate for each subset
    toy(*TUNED, "--seeds", "0")
    (path,) = tmp_path.glob("results/runs/*/*/*/run.json")
    content = read_sealed(path, owner=owner_of(path.parent))
    del content["models"]
    files = [path.with_name(name) for name in ("rows.csv", "items.parquet", "curves.parquet")]
    write_sealed(path, content, owner=owner_of(path.parent), files=files)
    shutil.rmtree("cache")
    _, trained = toy("--tune", "--tune.seeds", "8", "--seeds", "0")
    assert {each.split()[1] for each in trained} == {"8"}


@pytest.mark.slow
def test_another_rate_or_another_length_is_trained(toy: Toy, tmp_path: Path) -> None:
    toy("--train.lr", "1e-3")
    assert toy("--train.lr", "3e-3") == (0, ["3e-3 0"])
    assert toy("--train.lr", "3e-3", "--train.steps", "5") == (0, ["3e-3 0"])
    search = ("--tune", "--tune.lr", "1e-5", "3e-3", "--tune.seeds", "8")
    toy(*search, "--seeds", "1")
    best = show_rate(kept(tmp_path)["lr"]["all"])
    assert toy("--train.lr", best)[1] == [f"{best} 0"]
    assert toy(*search) == (0, [])  # the rate is chosen, and its model was there
    assert [run["reused"] is not None for run in records(tmp_path)].count(True) == 1


CHANGES: list[dict[str, Any]] = [
    {"seed": 1},
    {"status": "failed"},
    {"encoding_version": "edited"},
    {"subsets": ("copy",)},
    {"data": {"label": "another"}},
    {"settings": "other"},
    {"models": {"copy": "0", "reverse": "0"}},
]


@pytest.mark.parametrize("changed", CHANGES, ids=lambda changed: next(iter(changed)))
def test_what_differs_in_anything_but_the_search_is_not_the_same(
    tmp_path: Path, changed: dict[str, Any]
) -> None:
    task = resolve(RunOptions(cache=tmp_path), "copying")
    phases = Phases(plugins.load("encoding", "nope"), tmp_path, "cpu", "fp32")
    same = RunRecord(
        status="done",
        task=task.label,
        encoding="nope",
        encoding_version=phases.encoding.version,
        seed=0,
        settings_digest="of another search",
        settings=task.settings,
        data=task.task.provenance(),
        subsets=(*task.task.subsets, "one more"),
        models=identify_models(task, phases, 0),
    )
    assert find_same([same], task, phases, 0) == same
    if "settings" in changed:
        changed = {"settings": {**task.settings, "preset": "another"}}
    other = replace(same, **changed)
    assert find_same([other], task, phases, 0) is None
    assert find_same([other, same], task, phases, 0) == same
