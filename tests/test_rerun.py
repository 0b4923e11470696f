"""Repeating a run from its record: the numbers are equal, or differences are reported."""

import math
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from made_runs import CURVE, SCORE, put
from test_runner import Toy, record
from test_runner import toy as toy  # a fixture

from pe_bench.cli import main
from pe_bench.config import ModelConfig, TrainConfig
from pe_bench.errors import DataError, InputError
from pe_bench.registry import plugins
from pe_bench.reporting import known_problems
from pe_bench.results.record import RunRecord, RunStatus
from pe_bench.results.store import owner_of, read_record, read_records
from pe_bench.runs import rebuild as rebuilding
from pe_bench.runs import rerun
from pe_bench.runs.factory import RunFactory
from pe_bench.runs.options import MovedPaths, RunOptions
from pe_bench.runs.outcome import Outcome
from pe_bench.runs.rebuild import rebuild
from pe_bench.runs.rerun import Number, Repetition, describe_commits
from pe_bench.runs.run import Run
from pe_bench.runs.run_record import make_record
from pe_bench.runs.sources import find_user_paths
from pe_bench.runs.tuning import Tuning
from pe_bench.system import environment
from pe_bench.system.commit import UP_TO_ROUNDING
from pe_bench.system.files import slug
from pe_bench.system.sealed import read_sealed, write_sealed
from pe_bench.task import Preset

TOY = ["--task", "./toy.py"]
OWN = ["--encoding", "./mine.py"]
COMMITTED = Path(__file__).parents[1] / "results" / "quick"
MINE = """
from pe_bench.api import Encoding

class Mine(Encoding):
    def embed(self, x, positions):
        return {factor} * x
"""


def change_rows(folder: Path, old: str, new: str, **changed: object) -> None:
    """Write other rows into a finished run as if they had been measured, and a new record."""
    rows = folder / "rows.csv"
    assert old in rows.read_text()
    content = read_sealed(folder / "run.json", owner=owner_of(folder)) | changed
    rows.write_text(rows.read_text().replace(old, new))
    files = [rows, folder / "items.parquet"]
    write_sealed(folder / "run.json", content, owner=owner_of(folder), files=files)


def test_a_sentence_says_whether_commits_matter() -> None:
    old, new = ({"git": {"commit": letter * 40, "dirty": letter == "a"}} for letter in "ab")
    assert describe_commits(new, new, True) == ""
    same = describe_commits(old, new, True)
    assert "measured at commit aaaaaaaaaa with changes, this code is at commit bbbbbbbbbb" in same
    assert same.endswith(f"their versions are the same, so numbers are {UP_TO_ROUNDING}")
    assert describe_commits({}, new, False).startswith("measured at commit an unknown one, this")
    assert describe_commits(old, new, False).endswith("differ, so numbers may differ")


def test_numbers_that_differ_are_found(tmp_path: Path) -> None:
    first = put(tmp_path / "a", "rope", [SCORE, *CURVE[:2]])
    changed = [replace(SCORE, value=1.5), replace(CURVE[0], value=9.0), CURVE[2]]
    second = put(tmp_path / "b", "rope", changed)
    before, now = read_record(first), read_record(second)
    rows, numbers = rerun._changed_numbers(before, now)
    assert rows == 3
    names = [number.row_name for number in numbers]
    assert {*names[:2]} == {"test bits_per_byte 16", "test bits_per_byte 32"}  # in one run only
    assert names[2:] == ["test bits_per_byte 8", "all bits_per_byte"]  # the largest first
    assert [number.difference for number in numbers[2:]] == [9 - 2.125, 0.5]
    assert rerun._changed_numbers(before, before) == (3, [])
    infinite = [Number("", "1", unknown).difference for unknown in (None, "", "nan", "inf")]
    assert infinite == [math.inf] * 4


def test_sources_are_those_of_the_text_too() -> None:
    def about(label: str, **context: object) -> Any:
        return SimpleNamespace(label=label, task=Used(SimpleNamespace(**context)), start=None)

    class Used(SimpleNamespace):
        def __init__(self, context: object) -> None:
            super().__init__(context=context)

    task = about("scrolls", tokenizer="bytes", data=Path("/questions"))
    task.start = about("perplexity:corpus=pg19", tokenizer="bpe:300", data=Path("/books"))
    found = find_user_paths(task, plugins.load("encoding", "rope"))
    assert found == {
        "tokenizer": "bpe:300",
        "task": __file__,
        "data": {"": "/questions", "perplexity": "/books"},
    }


GIVEN: list[dict[str, Any]] = [
    {"preset": "small", "precision": "bf16"},
    {"train": {"steps": 7, "lr": 0.002, "batch_size": 3}, "model": {"layers": 1, "heads": 2}},
    {"subsets": ("reverse",)},
    {"tune": Tuning()},
    {"tune": Tuning(seeds=(7, 8)), "train": {"lr": 0.002}},
    {"tune": Tuning(lr=(0.01, 0.1))},
    {"origin": "rope:base=500"},
    {"origin": "rope", "adapt": {"steps": 4, "lr": 0.01, "method": "encoding", "batch_size": 2}},
    {"origin": "rope", "adapt": {"steps": 4, "method": "none", "also": "embeddings+norms"}},
]


def planned(folder: Path, task: str = "copying:samples=3", **given: Any) -> Run:
    """Return a run of the user's own encoding that nothing has executed."""
    (folder / "mine.py").write_text(MINE.format(factor=1.0))
    factory = RunFactory(RunOptions(cache=folder / "cache", **given), folder / "results")
    return factory.make_from_specs(f"{folder}/mine.py", task, 3)


def record_of(run: Run, **changed: Any) -> RunRecord:
    """Return the record that a run would have."""
    subsets = run.resolved.task.subsets
    made = make_record("done", run.resolved, run.phases, run.seed, 0, subsets=subsets)
    return replace(made, **changed)


@pytest.mark.parametrize("given", GIVEN, ids=lambda given: "+".join(given))
def test_a_record_contains_its_run(tmp_path: Path, given: dict[str, Any]) -> None:
    """Nothing but the record tells the options of the run."""
    run = planned(tmp_path, **given)
    moved = MovedPaths(encoding=f"{tmp_path}/mine.py")
    task, encoding = rebuild(record_of(run), tmp_path / "scratch", moved)
    assert replace(run, resolved=task, encoding=encoding).folder == run.folder
    assert task.task.context.subsets == given.get("subsets")


def test_a_record_contains_a_checkpoint_and_its_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a checkpoint, only the length of the rows is an option of the task."""
    adaptation = {"encoding": "rope", "from": "llama", "config": {"steps": 3, "batch_size": 2}}
    settings = {"train": {"length": 96, "steps": 0}}
    recorded = replace(
        record_of(planned(tmp_path)),
        adaptation=adaptation,
        settings=settings,
        sources={"checkpoint": str(tmp_path / "llama")},
    )
    usual = RunOptions(train={"steps": 7}, model={"layers": 9}, tokenizer="bytes")
    with pytest.raises(InputError, match=f"there is no checkpoint {tmp_path}/llama: give its"):
        rebuilding._options_to_continue(usual, recorded, MovedPaths())
    for name, names in (("moved", MovedPaths(origin=tmp_path / "moved")), ("llama", MovedPaths())):
        (tmp_path / name).mkdir()
        found = rebuilding._options_to_continue(usual, recorded, names)
        assert (found.origin, found.train) == (str(tmp_path / name), {"length": 96})
        assert (found.adapt, found.model, found.tokenizer) == (
            {"steps": 3, "batch_size": 2},
            {},
            None,
        )
    tune = Tuning(lr=(0.1, 0.2))  # a record from elsewhere may have no rate
    found = rebuilding._options_to_continue(replace(usual, tune=tune), recorded, MovedPaths())
    assert (found.tune, found.adapt) == (tune, {"steps": 3, "batch_size": 2})
    with pytest.raises(InputError, match="--from has no effect: the model of this run starts from"):
        rebuild(record_of(planned(tmp_path)), tmp_path, MovedPaths(origin=tmp_path))


def test_data_that_have_moved_replace_those_of_the_record(tmp_path: Path) -> None:
    data = {"": "questions", "perplexity": "books"}
    recorded = record_of(planned(tmp_path), sources={"data": data, "tokenizer": "bpe:300"})
    moved = MovedPaths(data={"": Path("moved")})
    options = rebuilding._make_options(recorded, tmp_path / "scratch", moved)
    assert options.data == {"": Path("moved"), "perplexity": Path("books")}
    assert (options.tokenizer, options.cache) == ("bpe:300", tmp_path / "scratch" / "cache")


def test_the_phase_before_has_its_own_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model is that of the phase before; the data of both phases may be elsewhere."""

    class Text:
        @classmethod
        def preset(cls, name: str, data: Path | None) -> Preset:
            assert (name, data) == ("small", Path("books"))
            return Preset(TrainConfig(steps=50, lr=0.01), ModelConfig(layers=5, heads=2))

    def load(kind: str, spec: str, preset: str) -> Any:
        assert (kind, spec, preset) == ("task", "text:corpus=pg19", "small")
        return SimpleNamespace(cls=Text)

    monkeypatch.setattr(plugins, "load", load)
    train = vars(TrainConfig(steps=50, lr=0.02))
    start = {"task": "text:corpus=pg19", "train": train}
    settings: dict[str, Any] = {"start": start, "model": vars(ModelConfig(layers=6, heads=2))}
    recorded: Any = SimpleNamespace(settings=settings, preset="small")
    after = Preset(TrainConfig(steps=9), starts_from="text")
    data = {"": Path("questions"), "text": Path("books")}
    found = rebuilding._changes_of_start(recorded, after, data)
    assert found == ({"lr": 0.02}, {"layers": 6})
    settings["start"] = None
    found = rebuilding._changes_of_start(recorded, replace(after, model=ModelConfig(heads=2)), data)
    assert found == ({}, {"layers": 6})


def test_settings_that_differ_are_refused_and_versions_are_not(tmp_path: Path) -> None:
    task = planned(tmp_path).resolved
    same = {**task.settings, "versions": {"task": "of long ago"}}
    rebuilding._check_settings(record_of(planned(tmp_path), settings=same), task)
    older = record_of(planned(tmp_path), settings={**same, "dropout": 0.5})
    with pytest.raises(InputError, match=r"dropout was 0\.5, and would be absent"):
        rebuilding._check_settings(older, task)
    other = record_of(planned(tmp_path), settings={**same, "data": "abc"})
    with pytest.raises(DataError, match="give the data of the run with --data"):
        rebuilding._check_settings(other, task)


def test_a_repetition_uses_no_search_and_tells_all_that_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second repetition fails."""
    run = planned(tmp_path, "flipflop", tune=Tuning(lr=(0.01, 0.1)))
    same = {"threads": 1, "python": "3"}
    versions = [{"commit": letter * 40, "dirty": False} for letter in "ab"]
    before = {**same, "device": "old", "clock": 1, "git": versions[0]}
    now = {**same, "device": "new", "clock": 2, "git": versions[1]}
    folder = put(tmp_path, "mine.py", [SCORE, *CURVE[:2]], 3)
    content = {
        "task": "flipflop", "encoding": "mine.py", "encoding_version": "1", "settings_digest": "0",
        "rates": [0.01, 0.1], "seeds": [1000], "held_out_batches": 16, "option": None, "tried": [],
        "lr": {"all": 0.01},
    }  # fmt: skip
    settings = {
        **run.resolved.settings,
        "versions": {**run.resolved.settings["versions"], "task": 0},
    }
    recorded = record_of(
        run, environment=before, folder=folder, name=folder.name, encoding_version="older",
        settings=settings, tuning={"task": content},
    )  # fmt: skip
    ended = [Outcome("again", "done", (), put(tmp_path / "again", "mine.py", [SCORE, CURVE[0]], 3))]
    ended.append(replace(ended[0], status="failed"))

    def execute(own: Run) -> Outcome:
        assert own.results == tmp_path / "scratch" / "results"
        assert (own.seed, own.device, own.precision, own.keep) == (3, "cuda", "fp32", False)
        assert own.resolved.digest() == run.resolved.digest()
        choice = own.phases.choose(own.resolved, None)
        assert choice.lr == 0.01
        return ended.pop(0)

    monkeypatch.setattr(Run, "execute", execute)
    monkeypatch.setattr(environment, "describe", lambda device: {**now, "device_type": device})
    threads: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    moved = MovedPaths(encoding=f"{tmp_path}/mine.py")
    found = [
        rerun.repeat(recorded, tmp_path / "scratch", device="cuda", moved=moved) for _ in range(2)
    ]
    conditions = [
        ("device", "old", "new"),
        ("encoding_version", "older", run.encoding.version),
        ("versions.task", "0", str(run.resolved.settings["versions"]["task"])),
    ]
    commits = describe_commits(before, now, same=False)
    numbers = [Number("test bits_per_byte 16", f"{CURVE[1].value}", None)]
    whole = Repetition(found[0].outcome, 3, numbers, conditions, commits)
    assert found == [whole, replace(whole, outcome=found[1].outcome, rows=0, numbers=[])]
    assert [one.outcome.status for one in found] == ["done", "failed"]
    assert f"mine.py · flipflop · seed 3: again, in {tmp_path}/scratch\n" in capsys.readouterr().out
    assert threads == []
    with pytest.raises(AssertionError):  # another device
        rerun.repeat(recorded, tmp_path / "scratch", device="cpu", moved=moved)
    assert threads == [1]


def test_the_command_prints_what_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given: list[Any] = []

    def repeat(record: RunRecord, scratch: Path, **more: Any) -> Repetition:
        given.append((record.seed, scratch, more))
        return found

    numbers = [Number(f"n{n}", "8", None if n == 0 else f"{8 + n}") for n in range(12)]
    conditions = [("python", "3.11", "3.12"), ("threads", "2", "4")]
    found = Repetition(Outcome("rope", "done"), 20, numbers, conditions, "another commit")
    monkeypatch.setattr(rerun, "repeat", repeat)
    put(tmp_path, "rope", [SCORE], 4, environment={"device_type": "cuda"})
    command = ["rerun", "rope/lm/4", "--results", str(tmp_path), "--device", "cpu"]
    moved = ["--encoding", "e.py", "--task", "t.py", "--data", "d", "--from", "f"]
    assert main([*command, *moved, "--keep", str(tmp_path / "kept")]) == 1
    paths = MovedPaths("e.py", "t.py", {"": Path("d")}, Path("f"))
    assert given == [(4, tmp_path / "kept", {"device": "cpu", "moved": paths})]
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:3] == ["12 of 20 numbers are not the same:", ""]
    assert [line.split() for line in lines[3:6]] == [
        ["number", "recorded", "now", "difference"], ["n0", "8", "–", "inf"], ["n1", "8", "9", "1"]
    ]  # fmt: skip
    assert len(lines) == 4 + 10 + 4 and lines[13].split()[0] == "n9"
    ends = ["and 2 more, which differ less", "another commit", "python: 3.11, now 3.12"]
    assert lines[14:] == [*ends, "threads: 2, now 4"]
    found = replace(found, numbers=[], conditions=[], commits="")
    assert main([*command, "--keep", str(tmp_path)]) == 2  # a results folder
    assert f"{tmp_path} is a results folder: give another one" in capsys.readouterr().err
    assert main(command) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [
        "all 20 numbers are the same, digit by digit",
        "machine, packages and code are those of the record",
    ]
    failed = Outcome("rope", "failed", ("no data",), cause="broken")
    found = replace(found, outcome=failed)
    assert main(command) == 1
    assert "rope: the run failed, no data broken\n" in capsys.readouterr().err


@pytest.mark.slow
def test_the_same_numbers(toy: Toy, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    toy("--seeds", "3", "--train.steps", "4", "--model.layers", "1")
    folder = record(tmp_path, seed=3)[1]
    before = {path: path.stat().st_mtime_ns for path in Path("results").rglob("*")}
    capsys.readouterr()
    log = tmp_path / "log"
    log.write_text("")
    assert main(["rerun", str(folder), *TOY]) == 0
    out = capsys.readouterr().out
    assert "all 3 numbers are the same, digit by digit" in out
    assert "machine, packages and code are those of the record" in out
    assert log.read_text().split() == ["batch"] * 4 + ["a", "b"]
    assert {path: path.stat().st_mtime_ns for path in Path("results").rglob("*")} == before
    assert main(["rerun", *TOY, "nope/toy.py/3", "--keep", "kept"]) == 0
    (kept,) = read_records(Path("kept/results"))
    assert kept.settings_digest == read_record(folder).settings_digest
    assert main(["rerun", *TOY, "nope/toy.py/3", "--keep", "kept"]) == 2
    assert "kept has this run already: give another folder" in capsys.readouterr().err


DIFFERS = Number("a right 8", "1.0", "2.0")


@pytest.mark.parametrize(
    ("status", "numbers", "code"),
    [("done", [], 0), ("done", [DIFFERS], 1), ("failed", [], 1)],
)
def test_the_exit_code(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    status: RunStatus,
    numbers: list[Number],
    code: int,
) -> None:
    found = Repetition(Outcome("rope", status), 3, numbers, [], "")
    monkeypatch.setattr(rerun, "repeat", lambda *_, **__: found)
    put(tmp_path, "rope", [SCORE])
    assert main(["rerun", "rope/lm/0", "--results", str(tmp_path)]) == code


@pytest.mark.slow
def test_a_number_that_differs(
    toy: Toy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    toy()
    folder = record(tmp_path)[1]
    change_rows(folder, ",a,8,,right,", ",a,8,,right,1")
    capsys.readouterr()
    assert main(["rerun", *TOY, "nope/toy.py/0"]) == 1
    out = capsys.readouterr().out
    assert "1 of 3 numbers are not the same:" in out
    line = next(line for line in out.splitlines() if line.startswith("a right 8"))
    recorded, now, difference = map(float, line.split()[3:])
    assert recorded - now == pytest.approx(difference, rel=0.1) and difference > 9


@pytest.mark.slow
def test_both_commits_are_named_beside_the_numbers(
    toy: Toy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("mine.py").write_text(MINE.format(factor=1.0))
    toy(encodings=["./mine.py"])
    content, folder = record(tmp_path, "mine.py")
    older = content["environment"] | {"git": {"commit": "0" * 40, "dirty": False}}
    change_rows(folder, ",a,8,,right,", ",a,8,,right,1", environment=older)
    assert main(["rerun", *TOY, *OWN, "mine.py/toy.py/0"]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "1 of 3 numbers are not the same" in out
    assert "measured at commit 0000000000, this code is at commit " in out
    assert "versions are the same, so numbers are equal up to rounding, which training" in out
    assert "git.commit" not in out and "those of the record" not in out
    Path("mine.py").write_text(MINE.format(factor=2.0))
    assert main(["rerun", *TOY, *OWN, "mine.py/toy.py/0"]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "their versions differ, so numbers may differ" in out
    assert "encoding_version: " in out and "up to rounding" not in out


@pytest.mark.slow
def test_an_edited_encoding_is_named(
    toy: Toy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("mine.py").write_text(MINE.format(factor=1.0))
    toy(encodings=["./mine.py"])
    Path("mine.py").write_text(MINE.format(factor=2.0))
    assert main(["rerun", *TOY, *OWN, "mine.py/toy.py/0"]) == 1
    out = capsys.readouterr().out
    assert "3 of 3 numbers are not the same" in out and "\nencoding_version: 1-" in out
    Path("mine.py").rename("moved.py")
    assert main(["rerun", *TOY, "mine.py/toy.py/0"]) == 2
    said = "mine.py is not shipped: give its file with --encoding FILE (it was"
    assert f"{said} {tmp_path / 'mine.py'})" in capsys.readouterr().err
    assert main(["rerun", *TOY, "mine.py/toy.py/0", "--encoding", "moved.py"]) == 2
    assert "the run has mine.py, but moved.py has moved.py" in capsys.readouterr().err
    Path("elsewhere").mkdir()
    Path("moved.py").rename("elsewhere/mine.py")
    assert main(["rerun", *TOY, "mine.py/toy.py/0", "--encoding", "elsewhere/mine.py"]) == 1


@pytest.mark.slow
def test_an_exported_run(toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    toy(encodings=["nope", "rope:base=500"])
    assert main(["export", "sent"]) == 0
    assert "sources" not in Path("sent/records.json").read_text()  # paths of one machine
    shutil.rmtree("results")
    assert main(["rerun", "nope/toy.py/0", "--results", "sent"]) == 2
    assert "toy.py is not shipped: give its file with --task FILE" in capsys.readouterr().err
    run = ["rerun", "rope:base=500/toy.py/0", "--results", "sent", "--task", "./toy.py"]
    assert main(run) == 0
    assert "all 3 numbers are the same" in capsys.readouterr().out


@pytest.mark.slow
def test_a_tuned_run_keeps_its_learning_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["run", "--encoding", "nope", "--task", "flipflop:samples=2", "--no-report"]
    tiny = ["--train.steps", "2", "--train.batch_size", "2", "--model.layers", "1"]
    assert main([*command, *tiny, "--train.lr", "0.002", "--tune"]) == 0
    assert "tune: lr" in capsys.readouterr().out
    assert main(["rerun", "nope/flipflop:samples=2/0"]) == 0
    out = capsys.readouterr().out
    assert "tune: lr" not in out and "are the same, digit by digit" in out


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["--adapt.steps", "2", "--adapt.lr", "0.01"]])
def test_a_run_that_went_on_from_another(
    toy: Toy, capsys: pytest.CaptureFixture[str], more: list[str]
) -> None:
    assert toy("--from", "rope", *more, encodings=["rope:base=500"])[0] == 0
    (run,) = read_records(Path("results"))
    assert run.folder and main(["rerun", str(run.folder), *TOY]) == 0
    assert "all 3 numbers are the same" in capsys.readouterr().out


@pytest.mark.slow
def test_data_and_a_phase_before(
    real_documents: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(real_documents / "scrolls" / "quality", "data/quality")
    command = ["run", "--encoding", "nope", "--task", "scrolls", "--data", "data", "--no-report"]
    tiny = ["--train.steps", "1", "--pretrain.steps", "2", "--model.layers", "1"]
    assert main([*command, "--subsets", "quality", *tiny]) == 0
    assert main(["rerun", "nope/scrolls/0"]) == 0
    assert "are the same, digit by digit" in capsys.readouterr().out
    shutil.move("data", "moved")
    assert main(["rerun", "nope/scrolls/0"]) == 2
    assert main(["rerun", "nope/scrolls/0", "--data", "moved"]) == 0
    capsys.readouterr()
    path = next(Path("moved/quality").glob("*.jsonl"))
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    assert main(["rerun", "nope/scrolls/0", "--data", "moved"]) == 2
    assert "differ from those of the run" in capsys.readouterr().err


@pytest.mark.slow
def test_committed_runs_can_be_repeated(tmp_path: Path) -> None:
    """Runs of an earlier version of their task, or of another default corpus, are refused."""
    tables = {run.settings_digest: run for run in read_records(COMMITTED)}
    repeated = 0
    for run in tables.values():
        try:
            task, encoding = rebuild(run, tmp_path, MovedPaths())
        except InputError as error:  # also of data
            other_data = "differ from those of the run" in str(error)
            assert other_data or known_problems.find(run.settings_digest)
            continue
        if task.settings["versions"] != run.settings["versions"]:
            continue
        repeated += 1
        assert task.digest() == run.settings_digest
        again = Run(task, encoding, run.seed, tmp_path / "results", "cpu", "fp32")
        rerun._write_choices(run, again)
        identity = task.digest(encoding.label, encoding.version)
        (path,) = (tmp_path / "results" / "tuning" / run.task).glob("*.json")
        assert path.stem == f"{slug(run.encoding)}-{identity}"
    assert repeated > len(tables) / 2


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("rope/lm/1", "there is no run 'rope/lm/1' in results: give its folder, or"),
        ("rope/lm/0", "'rope/lm/0' matches several runs: rope/lm/seed0-"),
        ("fire/lm/0", "the run has no numbers to compare with: it is failed (no reason"),
        ("alibi/lm/0", "lm measures time, which is never exactly equal"),
        ("cope/lm/0", "the record has no settings, as in an earlier version"),
        ("torn/lm/0", "run.json is not the record of a run"),
        ("kept", "there is no run 'kept'"),
    ],
)
def test_what_cannot_be_repeated(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    results = Path("results")
    put(results, "rope", [SCORE, *CURVE])
    put(results, "rope", [SCORE], encoding_version="1")
    put(results, "fire", [SCORE], status="failed")
    put(results, "alibi", [SCORE], measures_time=True)
    put(results, "cope", [SCORE])
    torn = put(results, "torn", [SCORE]) / "run.json"
    content = {"task": "lm", "encoding": "torn", "seed": 0}
    write_sealed(torn, content, owner=owner_of(torn.parent))
    assert main(["rerun", name]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line


@pytest.mark.slow
def test_a_repetition_that_fails(
    toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    toy()
    monkeypatch.setenv("TOY_FAIL", "b")
    assert main(["rerun", *TOY, "nope/toy.py/0"]) == 1
    assert "the run failed, b: ZeroDivisionError: broken on purpose" in capsys.readouterr().err


def test_a_file_for_a_shipped_plugin_is_refused() -> None:
    record = RunRecord(
        status="done", task="mqar", encoding="rope -> nope", seed=0, settings_digest="0",
        adaptation={"encoding": "nope", "from": "rope"},
    )  # fmt: skip
    with pytest.raises(InputError, match="--encoding has no effect: the encoding of the run, nope"):
        rebuilding._check_paths(record, MovedPaths(encoding="mine.py"))
    with pytest.raises(InputError, match="--task has no effect: the task of the run, mqar"):
        rebuilding._check_paths(record, MovedPaths(task="mine.py"))
    trained = replace(record, sources={"checkpoint": "llama"})
    with pytest.raises(InputError, match="--encoding has no effect"):
        rebuilding._check_paths(trained, MovedPaths(encoding="mine.py"))
    own = replace(record, adaptation={"encoding": "nope", "from": "own.py"})
    rebuilding._check_paths(own, MovedPaths(encoding="own.py"))
