"""run.json and the folder of a run: reading returns the written values."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from made_runs import CURVE, SCORE, put

from pe_bench.registry import plugins
from pe_bench.results.export import write_export
from pe_bench.results.metrics import METRICS, Metric
from pe_bench.results.record import RunRecord
from pe_bench.results.run_data import read_run_rows
from pe_bench.results.store import find_run, key_of, read_record, read_records
from pe_bench.results.views import Column, Curve, Gallery, Headline, Heatmap
from pe_bench.runs.options import RunOptions
from pe_bench.runs.resolve import resolve
from pe_bench.runs.run import Run
from pe_bench.runs.run_folder import RunFolder
from pe_bench.runs.run_record import total_costs
from pe_bench.system import commit, environment

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


def test_text_in_a_record_cannot_control_a_terminal() -> None:
    told = {"sum\x1bmary": ["a\x9b", {"b\x07": "c\x00d"}], "n": 1, "none": None}
    record = replace(RECORD, notes=("x\x1b[2J", "y"), described=told, reason="é\n\t\r")
    content = record.to_json()
    bad = "\N{REPLACEMENT CHARACTER}"
    assert content["notes"] == (f"x{bad}[2J", "y") and content["reason"] == f"é\n\t{bad}"
    assert content["described"] == {
        f"sum{bad}mary": [f"a{bad}", {f"b{bad}": f"c{bad}d"}], "n": 1, "none": None,
    }  # fmt: skip


def test_keys_of_another_version_are_ignored() -> None:
    content = RECORD.to_json() | {"of_tomorrow": 1}
    assert RunRecord.from_json(content, RECORD.folder) == RECORD


@pytest.mark.parametrize(
    ("content", "says"), [([], "not a JSON object"), ({"task": "lm"}, "lacks status, encoding")]
)
def test_what_is_no_record(content: object, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        RunRecord.from_json(content)  # type: ignore[arg-type]


def test_a_run_is_done_with_all_of_its_subsets(tmp_path: Path) -> None:
    folder = RunFolder(put(tmp_path, "rope", [SCORE], subsets=("a", "b")), {})
    for subsets, done in ((["a"], True), (["b", "a"], True), (["a", "c"], False)):
        assert folder.is_finished(subsets) == folder.looks_finished(subsets) == done
    failed = RunFolder(put(tmp_path, "nope", [SCORE], subsets=("a",), status="failed"), {})
    assert not failed.is_finished(["a"]) and not failed.looks_finished(["a"])
    absent = RunFolder(tmp_path / "absent", {})
    assert not absent.is_finished([]) and not absent.looks_finished([])


def test_a_new_record_is_the_last_of_its_encoding(tmp_path: Path) -> None:
    folder = put(tmp_path, "rope", [SCORE], order=3)
    put(tmp_path, "rope", [SCORE], 1, order=7)
    put(tmp_path, "nope", [SCORE], order=9)
    assert RunFolder(folder, {}).next_order() == 8
    assert RunFolder(tmp_path / "runs" / "lm" / "fire" / "seed0", {}).next_order() == 1


def test_what_decides_numbers_is_in_the_name_of_a_run(tmp_path: Path) -> None:
    def name(
        encoding: str = "rope", version: str | None = None, seed: int = 0, **train: int
    ) -> Path:
        plugin = plugins.load("encoding", encoding)
        plugin = replace(plugin, version=version or plugin.version)
        task = resolve(RunOptions(cache=tmp_path, train=train), "copying")
        return Run(task, plugin, seed, tmp_path, "cpu", "fp32").folder

    others = [name("nope"), name(version="edited"), name(seed=1), name(steps=7)]
    assert len({name(), *others}) == 5


@pytest.mark.parametrize(("each", "seconds", "peak"), [(True, 36.0, 9), (False, 16.0, 8)])
def test_a_training_that_serves_all_subsets_counts_once(
    each: bool, seconds: float, peak: int
) -> None:
    costs = {}
    for name, trained, own in (("a", 10.0, 8), ("b", 20.0, 9)):
        training = {"seconds": trained, "peak_memory_bytes": own, "loss": 0.5}
        costs[name] = {
            "training": training,
            "evaluation_seconds": 3.0,
            "peak_memory_bytes": 7,
            "notes": ("of both", name),
        }
    found = total_costs(costs, each_subset=each)
    assert (found["seconds"], found["peak_memory_bytes"]) == (seconds, peak)
    assert found["subsets"] == ("a", "b") and found["notes"] == ("of both", "a", "b")
    assert found["costs"]["b"]["training"]["seconds"] == 20.0


def test_an_export_has_all_rows_of_all_runs(tmp_path: Path) -> None:
    put(tmp_path / "runs", "rope", [SCORE, *CURVE], 3, notes=("slow",), measures_time=True)
    put(tmp_path / "runs", "rope", [SCORE], 4)
    put(tmp_path / "runs", "nope", [*CURVE, replace(SCORE, value=2.0)], 3)
    runs = {key_of(record): record for record in read_records(tmp_path / "runs")}
    write_export(tmp_path / "export", [*runs.values()])
    exported = {key_of(record): record for record in read_records(tmp_path / "export")}
    assert exported.keys() == runs.keys() and len(runs) == 3
    for key, record in runs.items():
        assert read_run_rows(exported[key]) == read_run_rows(record)
        assert (
            exported[key].notes == record.notes
        )  # for times: missing measurements, and the reasons


def test_a_run_is_found_by_its_seed_or_its_name(tmp_path: Path) -> None:
    folder = put(tmp_path, "rope", [SCORE], 3)
    put(tmp_path, "rope", [SCORE], 4)
    for what in ("rope/lm/3", f"rope/lm/{folder.name}", "/rope/lm/3/", str(folder)):
        assert find_run(what, tmp_path).folder == folder.resolve()


def test_a_damaged_record_is_named_after_its_folder(tmp_path: Path) -> None:
    folder = put(tmp_path, "rope", [SCORE], 3)
    (folder / "run.json").write_text("{")
    found = read_record(folder)
    assert (found.status, found.task, found.encoding, found.seed) == ("damaged", "lm", "rope", 3)
    assert found.reason and f"remove {folder}" in found.reason


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_has_a_title_a_unit_and_a_direction(name: str) -> None:
    metric = METRICS[name]
    assert len(metric.title) > 1 and metric.unit in ("", "%", "tokens", "ms", "GFLOP", "GMAC")
    is_cost = name.endswith("_percent")  # percentages that are added to a cost; others are scores
    if name in ("prompt_tokens", "mean_logit"):
        assert metric.higher_is_better is None
    else:
        assert metric.higher_is_better == (metric.is_percent and not is_cost)
    for end, unit in (("_percent", "%"), ("_ms", "ms"), ("_gflops", "GFLOP"), ("_gmacs", "GMAC")):
        assert metric.unit == unit or not name.endswith(end)


def test_the_commit_is_that_of_the_loaded_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*args: str) -> str:
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", *args]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    git("init", "--quiet")
    (tmp_path / "commit.py").touch()
    git("add", "commit.py")
    git("commit", "--quiet", "--message", "one")
    loaded = git("rev-parse", "HEAD")
    monkeypatch.setattr(commit, "__file__", str(tmp_path / "commit.py"))
    commit.find_commit.cache_clear()
    try:
        environment.set_up("cpu")
        git("commit", "--quiet", "--allow-empty", "--message", "two")  # such as a pull
        assert environment.describe("cpu")["git"] == {"commit": loaded, "dirty": False}
    finally:
        commit.find_commit.cache_clear()
