"""How runs end without a training, and what their folders tell the next command."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from filelock import FileLock
from made_runs import CURVE, SCORE, put
from safetensors.torch import save_file
from test_phases import planned

from pe_bench.errors import InputError
from pe_bench.results.item_files import read_items, write_items
from pe_bench.results.items import Items
from pe_bench.results.measurement import Measurement
from pe_bench.results.run_data import read_run_rows
from pe_bench.results.store import read_record
from pe_bench.runs.candidates import Candidate
from pe_bench.runs.failures import Failures, FirstStepFailure, SharedFailure
from pe_bench.runs.outcome import Busy, Outcome
from pe_bench.runs.phases import Phases
from pe_bench.runs.resolve import ResolvedTask
from pe_bench.runs.reuse import _models_of, identify_models
from pe_bench.runs.run import Run
from pe_bench.runs.run_folder import RunFolder
from pe_bench.runs.run_record import make_record
from pe_bench.runs.timing_context import code_of, find_conditions
from pe_bench.runs.trained_models import copy_kept, find_kept, model_folder
from pe_bench.runs.tuning import Tuning
from pe_bench.system import environment
from pe_bench.task import Evaluation

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


def begins_never() -> None:
    raise AssertionError("the run begins")


def test_a_skipped_run_has_a_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = planned(tmp_path)
    sentence = f"{run.title}: skipped, it has no digits"
    for complain, lines in (
        (True, ("", f"pe-bench: {sentence}\n")),
        (False, (f"{sentence}\n", "")),
    ):
        outcome = run.skip("it has no digits", complain=complain)
        assert outcome == Outcome(run.title, "skipped", (sentence,) * complain, run.folder)
        assert capsys.readouterr() == lines
        record = read_record(run.folder)
        assert (record.status, record.reason) == ("skipped", "it has no digits")
        assert (record.encoding, record.task, record.seed) == ("fire", "copying", 3)
        assert record.order == 2 - complain


def test_a_death_is_recorded_and_known_to_other_commands(tmp_path: Path) -> None:
    run = planned(tmp_path)
    run.files.make()
    with run.files.executing():
        assert run.files.has_died()  # no process holds the lock
        with FileLock(run.folder / "lock"):
            assert not run.files.has_died()
            with pytest.raises(Busy):
                run.execute(on_begin=begins_never)
    assert not run.files.has_died()
    outcome = run.record_death("killed")
    assert outcome == Outcome(run.title, "failed", (), run.folder, "ProcessDied: killed")
    record = read_record(run.folder)
    assert (record.status, record.reason) == ("failed", "ProcessDied: killed")
    assert run.execute(on_begin=begins_never, since=LONG_AGO) == outcome
    for since in (None, datetime.now(UTC)):  # a failure before the command is tried again
        assert run._complete_finished(begins_never) is None
        assert run._find_recent_failure(since) is None


@pytest.mark.parametrize("end", ["death", "skip", "failure"])
def test_a_finished_run_keeps_its_record(tmp_path: Path, end: str) -> None:
    """A later failure concerns only an addition, such as a model to keep."""
    run = planned(tmp_path)
    run.files.make()
    measured = Evaluation([Measurement("copy", "accuracy", 50.0, 4)])
    run._record("done", measured, subsets=("copy",))
    before = (run.folder / "run.json").read_bytes()
    if end == "death":
        assert run.record_death("killed").status == "failed"
    elif end == "skip":
        assert run.skip("no kernel here").status == "done"
    else:
        failures = Failures(run.title)
        failures.add("", MemoryError())
        assert run._record_failure(failures).status == "failed"
    assert (run.folder / "run.json").read_bytes() == before


@pytest.mark.parametrize("kind", [SharedFailure, FirstStepFailure])
def test_the_cause_of_a_failed_phase_is_reported(kind: type[Exception]) -> None:
    wrapped = kind()
    wrapped.__cause__ = InputError("give more data")
    failures = Failures("run")
    failures.add("", wrapped)
    assert failures.complaints == ("run: give more data",) and failures.cause is None


def test_a_run_recalls_the_first_line_of_a_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = planned(tmp_path)
    failures = Failures(run.title)
    failures.add("copy", ZeroDivisionError("first"))
    failures.add("reverse", InputError("second"))
    failed = run._record_failure(failures)
    first, second = failures.causes
    assert first.startswith("copy: ZeroDivisionError: first") and second == "reverse: second"
    assert failed.complaints == (f"{run.title}: reverse: second",) and failed.cause == first
    record = read_record(run.folder)
    assert record.reason == f"{first}\n{second}"
    assert record.traceback and "first" in record.traceback and "second" not in record.traceback
    capsys.readouterr()
    recalled = run._find_recent_failure(LONG_AGO)
    assert recalled == Outcome(run.title, "failed", (), run.folder, first)
    assert capsys.readouterr().out == f"{run.title}: failed in another process, {first}\n"


def test_a_finished_run_comes_last_after_an_edit_is_taken_back(tmp_path: Path) -> None:
    """Only later runs of other code under the same settings matter."""

    def order_after(**other: Any) -> int:
        own = put(tmp_path / str(len(other)), "mine", [SCORE], order=3)
        put(tmp_path / str(len(other)), "mine", [SCORE], 1, **{"order": 7, **other})
        RunFolder(own, {}).come_last()
        return read_record(own).order

    assert order_after(encoding_version="edited") == 8
    assert order_after(encoding_version="edited", order=2) == 3
    assert order_after(encoding_version="edited", settings_digest="other", preset="quick") == 3
    assert order_after() == 3


def test_times_depend_on_all_code_of_an_encoding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def plugin(*names: str) -> Any:
        for name in names:
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text("size = 1")
        return SimpleNamespace(file=tmp_path / names[0])

    folder = plugin("own/encoding.py", "own/parts.py")
    alone = plugin("alone/own.py", "alone/parts.py")
    before = [code_of(folder), code_of(alone)]
    for path in tmp_path.glob("*/parts.py"):
        path.write_text("size = 2")
    assert code_of(folder) != before[0] and code_of(alone) == before[1]
    alone.file.write_text("size = 3")
    assert code_of(alone) != before[1]
    described = {"device": "x", "threads": 3, "versions": {"torch": "9"}, "clock": 7}
    monkeypatch.setattr(environment, "describe", {"cuda": described}.__getitem__)
    found = find_conditions("cuda")
    assert len(found.pop("code")) >= 8
    assert found == {"device": "x", "threads": 3, "torch": "9"}


@pytest.mark.parametrize("left", ["work", "subsets", "journal"])
def test_a_run_with_parts_has_begun(tmp_path: Path, left: str) -> None:
    folder = RunFolder(tmp_path / "run", {})
    folder.make()
    assert not folder.has_begun()
    (tmp_path / "run" / left).mkdir()
    assert folder.has_begun()
    folder.remove_work()
    assert folder.has_begun() == (left != "work")


def test_a_file_in_place_of_a_run_is_moved(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("mine")
    RunFolder(tmp_path / "run", {}).make()
    assert (tmp_path / "run").is_dir()
    assert (tmp_path / "run.damaged1").read_text() == "mine"


def test_numbers_are_taken_over_with_their_items(tmp_path: Path) -> None:
    other = put(tmp_path / "other", "rope", [SCORE, *CURVE])
    items = [Items("test", "f1", np.array([1.0, 2.0]))]
    write_items(other / "items.parquet", items)
    own = put(tmp_path, "rope", [SCORE], settings_digest="another")
    RunFolder(own, {}).copy_numbers_of(read_record(own), read_record(other))
    rows = read_run_rows(read_record(other))
    assert read_run_rows(read_record(own)) == [{**row, "run": own.name} for row in rows]
    assert len(read_items(own / "items.parquet")) == 1 and read_record(own).status == "done"


@pytest.mark.parametrize(
    ("spec", "given"),
    [
        ("copying", {}),
        ("copying", {"tune": Tuning((1e-3, 1e-2), (7,))}),
        ("mqar", {"tune": Tuning((1e-3, 1e-2), (7,))}),
    ],
)
def test_models_of_earlier_records_follow_from_their_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: str, given: dict[str, Any]
) -> None:
    rates = {"copy": 0.25, "reverse": 0.5, "all": 0.75}

    def choose(self: Phases, task: ResolvedTask, subset: str | None) -> Candidate:
        return Candidate(rates[subset or "all"])

    run = planned(tmp_path, spec, **given)
    subsets = ("copy", "reverse") if spec == "copying" else (None,)
    made = make_record("done", run.resolved, run.phases, 3, 0)
    record = replace(made, tuning={"task": {"lr": rates}})
    if given:
        monkeypatch.setattr(Phases, "choose", choose)
    models = identify_models(run.resolved, run.phases, 3)
    assert list(models) == [subset or "" for subset in subsets]
    assert len({*models.values()}) == len(models)
    assert _models_of(record, subsets) == models
    assert _models_of(replace(record, models={"": "known"}), subsets) == {"": "known"}


@pytest.fixture
def keeping(tmp_path: Path) -> Callable[..., Path]:
    """Make a run that has kept the models of some subsets."""

    def make(*subsets: str | None) -> Path:
        folder = put(tmp_path, "rope", [SCORE])
        for subset in subsets:
            place = model_folder(folder, subset)
            (place / "more").mkdir(parents=True)
            (place / "config.json").write_text(f"of {subset}")
            (place / "more" / "part").write_text("a part")
        return folder

    return make


def test_one_model_serves_all_subsets(keeping: Callable[..., Path], tmp_path: Path) -> None:
    record = read_record(keeping(None))
    assert model_folder(Path("run"), "a b") == Path("run/model/a_b")
    assert find_kept(record) == model_folder(record.folder or tmp_path, None)
    (tmp_path / "new").mkdir()
    copy_kept(record, tmp_path / "new")
    assert (tmp_path / "new/config.json").read_text() == "of None"
    assert (tmp_path / "new/more/part").read_text() == "a part"
    (tmp_path / "file").touch()
    for taken in ("new", "file"):
        with pytest.raises(InputError, match=f"{taken} is not empty: give a new folder"):
            copy_kept(record, tmp_path / taken)
    (model_folder(record.folder or tmp_path, None) / "model.safetensors").write_bytes(b"torn")
    with pytest.raises(InputError, match="is truncated, or not a safetensors file"):
        copy_kept(record, tmp_path / "torn")
    assert not (tmp_path / "torn").exists()
    with pytest.raises(InputError, match="models of these subsets: one for all; write --subset"):
        find_kept(record, "near")


def test_each_subset_has_its_model(keeping: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no model: repeat the command of the run with --keep"):
        find_kept(read_record(keeping()))
    record = read_record(keeping("near"))
    assert find_kept(record) == find_kept(record, "near")
    record = read_record(keeping("far"))
    copy_kept(record, tmp_path / "new", "far")
    assert (tmp_path / "new/config.json").read_text() == "of far"
    with pytest.raises(InputError, match="models of these subsets: far, near; write --subset"):
        find_kept(record)
    assert record.folder
    place = model_folder(record.folder, "near")
    (tmp_path / "outside").mkdir()
    for path in sorted(place.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.rename(tmp_path / "outside" / path.name)
    place.rmdir()
    place.symlink_to(tmp_path / "outside")
    with pytest.raises(InputError, match="a link that leads out of"):
        copy_kept(record, tmp_path / "other", "near")


@pytest.mark.parametrize(
    ("keep", "given", "spec", "missing"),
    [
        (False, {}, "mqar", []),
        (True, {}, "mqar", [None]),
        (True, {"origin": "rope"}, "mqar", [None]),
        (True, {}, "copying", ["copy", "reverse"]),
        (True, {"train": {}}, "properties", []),
    ],
)
def test_models_to_keep(
    tmp_path: Path, keep: bool, given: dict[str, Any], spec: str, missing: list[str | None]
) -> None:
    run: Run = planned(tmp_path, spec, keep=keep, **given)
    assert run.missing_models() == missing
    for subset in missing:
        place = model_folder(run.folder, subset)
        place.mkdir(parents=True)
        (place / "config.json").write_text("{}")
        assert run.missing_models() == missing  # without weights
        save_file({}, place / "model.safetensors")
        missing = [one for one in missing if one != subset]
        assert run.missing_models() == missing
