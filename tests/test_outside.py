"""Whatever an export contains, commands end with a sentence and write nothing outside."""

import contextlib
import io
import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hostile import CHANGES, KINDS, pick, seal
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from made_runs import SCORE, put
from safetensors.torch import save_file

import pe_bench
from pe_bench.checks.subject import CONFIG
from pe_bench.cli import main
from pe_bench.errors import InputError
from pe_bench.results import parquet as own_parquet
from pe_bench.results import row_files, run_data
from pe_bench.results.export import write_export
from pe_bench.results.layout import EXPORTED, PACKED_ROWS
from pe_bench.results.merging import merge_folder
from pe_bench.results.record import RunRecord
from pe_bench.results.store import read_records
from pe_bench.runs.options import MovedPaths
from pe_bench.runs.rebuild import rebuild
from pe_bench.system import files
from pe_bench.train.checkpoints import write_checkpoint

COMMITTED = Path(__file__).parents[1] / "results"
SECRET = "text that other users may not read"


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write an export of committed runs that also has a run's folder, tuning files and a grid."""
    records = [
        record
        for record in read_records(COMMITTED / "sizes")
        if record.task == "mqar" and record.settings["model"]["width"] == 32
    ]
    seeds = {(r.encoding, r.seed): r for r in records}
    adapted = [r for r in read_records(COMMITTED / "extension") if r.adaptation]
    folder = tmp_path_factory.mktemp("export")
    exported = [seeds[name, seed] for name in ("rope", "nope") for seed in (1, 2)]
    write_export(folder, [*exported, adapted[0], read_records(COMMITTED / "efficiency")[0]])
    merge_folder(COMMITTED / "sizes", folder, [seeds["rope", 3]])
    shutil.copy(COMMITTED / "sizes" / "grid.toml", folder)
    assert all(list(folder.glob(kind)) for kind in KINDS)
    return folder


def run(*words: str) -> str:
    """Run a command and return its output, which has no traceback and no control characters."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        code = main(words)
    text = out.getvalue()
    assert code in (0, 1, 2), words
    assert code == 0 or text.strip(), words
    assert text.replace("\n", "").isprintable(), words
    assert SECRET not in text
    return text


EACH = settings(
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.generate],  # failures are small already, and shrinking takes minutes
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.slow
@settings(EACH, max_examples=12)
@given(data=st.data())
def test_a_mutated_export_through_every_command(export: Path, data: st.DataObject) -> None:
    """Mutate a copy of an export and give it to every command that reads one."""
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # means of infinite numbers
        Path("secret").write_text(SECRET)
        shutil.copytree(export, "theirs")
        pick(data, CHANGES)(data, Path("theirs"))
        before = {path for path in Path().rglob("*") if "theirs" not in path.parts}
        run("merge", "theirs", "--results", "mine/results")
        run("compare", "--all", "--results", "theirs")
        run("export", "rows.csv", "--results", "theirs")
        run("export", "again", "--results", "theirs")
        run("compare", "rope", "nope", "--results", "theirs", "--figure", "figure.svg")
        run("report", "theirs")
        run("run", "--like", "theirs", "--encoding", "fire", "--dry-run")
        with contextlib.suppress(InputError):
            for record in read_records(Path("theirs"))[:1]:
                rebuild(record, Path("scratch"), MovedPaths())
        new = {path for path in Path().rglob("*") if "theirs" not in path.parts} - before
        allowed = ("mine/results", "rows.csv", "again", "figure.svg", "scratch", "mine")
        assert all(str(path).startswith(allowed) for path in new)
        for path in new:
            assert not path.is_file() or SECRET not in path.read_text(errors="replace")


def change_record(folder: Path, **changed: Any) -> None:
    """Change all records of an export."""
    content = json.loads((folder / EXPORTED).read_text())
    for table in content["tables"]:
        for one in table["runs"]:
            one.update(changed)
    seal(folder / EXPORTED, content)


@pytest.fixture
def theirs(export: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(export, "theirs")
    return Path("theirs")


def first_exported(folder: Path) -> RunRecord:
    return next(record for record in read_records(folder) if record.exported)


def test_one_record_hurts_no_other(theirs: Path) -> None:
    content = json.loads((theirs / EXPORTED).read_text())
    content["tables"][0]["runs"][0]["costs"] = {"a": 3}
    seal(theirs / EXPORTED, content)
    records = read_records(theirs)
    (broken,) = (record for record in records if record.status == "damaged")
    assert (broken.task, broken.encoding, broken.seed) == ("mqar", "rope", 1)
    others = [record for record in records if record is not broken]
    assert "its costs.a is not a JSON object" in str(broken.reason)
    assert others and all(record.status == "done" for record in others)


def test_code_that_a_record_names_is_not_run(theirs: Path) -> None:
    code = theirs / "code.py"
    code.write_text("open('EXECUTED', 'w').close()\n")
    for name in ("code.py", str(code.resolve()), "hybrid:global=./theirs/code.py", "./theirs/"):
        change_record(theirs, encoding=name, sources={"encoding": str(code.resolve())})
        record = first_exported(theirs)
        with pytest.raises(InputError):
            rebuild(record, Path("scratch"), MovedPaths())
    assert not Path("EXECUTED").exists()


READERS = {
    PACKED_ROWS: run_data.read_run_lines,
    "items.parquet": run_data.read_run_items,
    "curves.parquet": run_data.read_run_curves,
}


@pytest.mark.parametrize("name", READERS)
def test_a_bomb_is_not_unpacked(theirs: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    record = first_exported(theirs)
    size = (theirs / name).stat().st_size
    for limit, says in ((size - 1, "larger than"), (size, "unpacks to more than")):
        for module in (row_files, own_parquet):
            monkeypatch.setattr(module, "LARGEST", limit)
        with pytest.raises(InputError, match=says):
            READERS[name](record)


@pytest.mark.parametrize("command", ["merge", "checkpoint"])
def test_links_that_lead_outside_are_not_followed(tmp_path: Path, command: str) -> None:
    folder = put(tmp_path / "theirs", "rope", [SCORE])
    (folder / "model").mkdir()
    (folder / "model/config.json").write_text("{}")
    (tmp_path / "secret").write_text(SECRET)
    (folder / "model/link").symlink_to(tmp_path / "secret")
    words = {"merge": ["merge", str(tmp_path / "theirs"), "--results", str(tmp_path / "mine")]}
    words["checkpoint"] = ["checkpoint", str(folder), str(tmp_path / "mine")]
    assert "model/link is a link that leads out of" in run(*words[command])
    copies = [path for path in (tmp_path / "mine").rglob("*") if path.is_file()]
    assert not any(SECRET in path.read_text() for path in copies)


@pytest.mark.parametrize(
    "words",
    [
        "report loop",
        "report . loop",
        "merge loop",
        "export loop",
        "export again --results loop",
        "compare rope nope --results loop",
        "run --encoding rope --task flipflop --results loop",
        "run --encoding rope --task perplexity --data loop",
        "run --from ./loop --encoding rope --task flipflop",
    ],
)
def test_links_in_a_loop_are_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("loop").symlink_to("loop")
    assert "pe-bench: " in run(*words.split())


def write_model(folder: Path) -> None:
    model = pe_bench.Decoder(CONFIG, pe_bench.load_encoding("rope"))
    pe_bench.save_checkpoint(model, folder / "model", "rope")


def write_imported(folder: Path) -> None:
    """Write as transformers does for `pe-bench import`."""
    save_file({"weight": torch.zeros(1)}, folder / "weights")
    files.follow_umask(folder)


WRITERS: dict[str, Callable[[Path], None]] = {
    "text": lambda folder: files.write_atomic(folder / "file", ""),
    "checkpoint": lambda folder: write_checkpoint(folder / "file", {}, owner="a"),
    "model": write_model,
    "imported model": write_imported,
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_files_have_the_mode_of_the_umask(tmp_path: Path, write: Callable[[Path], None]) -> None:
    before = os.umask(0o027)
    try:
        write(tmp_path)
    finally:
        os.umask(before)
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert written
    assert {oct(path.stat().st_mode & 0o777) for path in written} == {"0o640"}
