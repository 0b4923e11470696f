"""The contents of a results folder: `status`, `show` and `prune`."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from made_runs import SCORE, put

from pe_bench.cli import main
from pe_bench.commands.inventory import FoundRun, find_runs
from pe_bench.commands.prune import _remove
from pe_bench.registry import plugins
from pe_bench.results.export import write_export
from pe_bench.results.store import read_records
from pe_bench.train import training_result


def settings(**versions: Any) -> Mapping[str, Any]:
    """Return settings of a run of `mqar`, with other versions than the present ones."""
    present = {
        "task": plugins.load("task", "mqar").version,
        "decoder": 2,
        "training": training_result.VERSION,
    }
    return {"task": "mqar", "versions": present | versions, "start": None}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a results folder with a run in each state, each with another encoding."""
    version = plugins.load("encoding", "rope").version
    put(tmp_path, "rope", [SCORE], encoding_version=version, settings=settings())
    put(tmp_path, "alibi", [SCORE], encoding_version="0", settings=settings())
    put(tmp_path, "t5", [SCORE], encoding_version="1", settings=settings(task="0"))
    put(tmp_path, "fire", [SCORE], encoding_version="1", settings=settings(training=0))
    put(
        tmp_path,
        "nope",
        [],
        status="failed",
        reason="OSError: no disk",
        finished="2026-01-02T03:04",
    )
    put(tmp_path, "xpos", [], status="skipped", reason="it has no digits")
    for order, edit in enumerate(("1-aa", "1-bb")):  # versions of a user's file
        put(
            tmp_path, "mine.py", [SCORE], encoding_version=edit, settings=settings(),
            finished=f"2026-01-0{order + 1}", order=order, sources={"encoding": "hostile.py"},
        )  # fmt: skip
    adapted = {"encoding": "tape", "from": "rope", "config": {}}
    for order in range(2):
        put(tmp_path, "tape", [SCORE], adaptation=adapted, encoding_version=f"{order}", order=order)
    damaged = put(tmp_path, "cope", [SCORE])
    (damaged / "rows.csv").write_text("else")
    (tmp_path / "runs/lm/fox/seed0-12345678/journal").mkdir(parents=True)
    return tmp_path


def states(folder: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for run in find_runs(folder):
        found.setdefault(run.folder.parent.name, []).append(run.state)
    return found


STATES = {
    "rope": ["finished"],
    "alibi": ["stale"],
    "t5": ["stale"],
    "fire": ["stale"],
    "nope": ["failed"],
    "xpos": ["skipped"],
    "mine.py": ["stale", "finished"],
    "tape": ["replaced", "finished"],
    "cope": ["damaged"],
    "fox": ["unfinished"],
}


def test_every_run_has_a_state(folder: Path) -> None:
    assert states(folder) == STATES
    with FileLock(folder / "runs/lm/fox/seed0-12345678/lock"):
        assert states(folder)["fox"] == ["running"]
    (failed,) = (folder / "runs/lm/nope").iterdir()
    with FileLock(failed / "lock"):  # it is executed again
        assert states(folder)["nope"] == ["running"]


def test_the_state_is_known_in_a_folder_of_another_user(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for lock in folder.glob("runs/*/*/*"):
        (lock / "lock").touch()

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError

    monkeypatch.setattr("pe_bench.system.locks.hold", refuse)
    assert states(folder) == STATES | {"fox": ["running"]}  # perhaps: it has no record


def test_an_edit_that_is_taken_back_makes_the_other_run_stale(tmp_path: Path) -> None:
    for edit, order, day in (("1-aa", 3, 1), ("1-bb", 2, 2)):  # order: of the last request
        put(
            tmp_path, "mine.py", [SCORE], encoding_version=edit, settings=settings(),
            finished=f"2026-01-0{day}", order=order,
        )  # fmt: skip
    put(
        tmp_path, "mine.py", [SCORE], 1, encoding_version="1-cc", settings=settings(), order=9,
        status="failed", finished="2026-02-01",
    )  # fmt: skip
    assert states(tmp_path) == {"mine.py": ["finished", "stale", "failed"]}


def test_status_says_why(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--results", str(folder)]) == 0
    text = capsys.readouterr().out
    assert text.splitlines()[0] == (
        f"{folder}: 3 finished, 1 skipped, 1 unfinished, 1 failed, 1 damaged, 4 stale, 1 replaced"
    )
    now = plugins.load("encoding", "alibi").version
    assert f"measured with version 0 of alibi, now {now}" in text
    assert f"measured with version 0 of mqar, now {settings()['versions']['task']}" in text
    assert f"version 0 of the training, now {training_result.VERSION}" in text
    assert "version 1-aa of mine.py, now 1-bb" in text
    assert "failed      nope/lm/seed0-5e770  2026-01-02 03:04\n            OSError: no disk" in text
    assert "rope/lm" not in text
    main(["status", "--all", "--results", str(folder)])
    text = capsys.readouterr().out
    assert "finished    rope/lm" in text and all(map(str.strip, text.splitlines()))
    assert main(["status", "--results", str(folder / "nowhere")]) == 2


def test_runs_in_exports_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(tmp_path / "there", "rope", [SCORE])
    put(tmp_path / "there", "nope", [SCORE])
    write_export(tmp_path / "here" / "sent", read_records(tmp_path / "there"))
    put(tmp_path / "here", "mine.py", [SCORE])
    assert main(["status", "--results", str(tmp_path / "here")]) == 0
    assert capsys.readouterr().out == f"{tmp_path}/here: 1 finished, 2 in exports\n"


def test_prune_removes_what_it_lists(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = ["--results", str(folder)]
    assert main(["prune", "stale", "failed", "--dry-run", *place]) == 0
    listed = capsys.readouterr().out.replace("5 runs would be removed\n", "")
    assert listed.count("stale  ") == 4 and listed.count("failed  ") == 1
    assert states(folder) == STATES
    with FileLock(folder / "runs/lm/alibi/seed0-5e770/lock"):
        assert main(["prune", "stale", "failed", *place]) == 1
    assert capsys.readouterr().out == f"{listed}4 runs removed from {folder}\n"
    kept = {
        name: list(found) for name, found in STATES.items() if name not in ("t5", "fire", "nope")
    }
    assert states(folder) == {**kept, "mine.py": ["finished"]}
    assert not (folder / "runs/lm/nope").exists()
    assert main(["prune", "finished", *place]) == 2


def test_prune_leaves_what_was_executed_since_it_was_listed(folder: Path) -> None:
    """Between the list and the removal, a run may have finished."""
    listed = {run.folder.parent.name: run for run in find_runs(folder)}
    before = replace(listed["nope"], finished="2020-01-01T00:00:00+00:00")
    for run in (before, FoundRun(listed["rope"].folder, "unfinished")):
        assert not _remove(run)
        assert run.folder.exists()
    for name in ("fox", "nope", "cope"):
        assert _remove(listed[name])
        assert not listed[name].folder.exists()


def test_show_says_all_about_a_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "rope/lm/0", "--results", str(folder)]) == 0
    text = capsys.readouterr().out
    for part in ("rope · lm · seed 0", "cccccccccc with changes", "all bits_per_byte  1", "1,234"):
        assert part in text
    assert "versions.training" in text and str(folder / "runs/lm/rope") in text
    assert "kept models" not in text
    (run,) = (folder / "runs/lm/rope").glob("seed0-*")
    (run / "model").mkdir()
    (run / "model" / "config.json").write_text("{}")
    assert main(["show", "rope/lm/0", "--results", str(folder)]) == 0
    assert f"kept models       {run / 'model'}" in capsys.readouterr().out
    assert main(["show", "nope/lm/0", "--results", str(folder)]) == 0
    assert "OSError: no disk" in capsys.readouterr().out
    assert main(["show", "xpos/lm/0", "--results", str(folder)]) == 0  # skipped
    assert capsys.readouterr().out.endswith("\nreason\n  it has no digits\n")
    assert main(["show", "mine.py/lm/0", "--results", str(folder)]) == 2  # two of them
    assert "seed0-5e771-bb of 2026-01-02" in capsys.readouterr().err
