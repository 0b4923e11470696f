"""Whatever an export holds, commands end with a sentence and write nothing outside."""

import contextlib
import gzip
import io
import json
import math
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from made_runs import SCORE, put
from pyarrow import parquet

from pe_bench.cli import main
from pe_bench.errors import InputError
from pe_bench.results import parquet as own_parquet
from pe_bench.results import store
from pe_bench.results.export import write_export
from pe_bench.results.store import EXPORTED, PACKED_ROWS, read_records
from pe_bench.runs.options import Places
from pe_bench.runs.rebuild import rebuild
from pe_bench.system import files
from pe_bench.system.sealed import _seal, sum_of

COMMITTED = Path(__file__).parents[1] / "results"
SECRET = "what nobody else may read"
DEEP: Any = []
for _ in range(200):
    DEEP = [DEEP]
VALUES: list[Any] = [
    None, True, 3, -1, 0.5, 10**30, math.nan, math.inf, "", "x", "..", ".", "/tmp/x", "../../x",
    "a/../../b", "\x1b]0;title\x07", "\u202eabc", "\ud800", "a\nb", "x" * 3000, "./code.py",
    [], {}, [None], [[]], [3], {"a": 3}, {"\x1b": {}}, {"x": None}, DEEP,
]  # fmt: skip
CELLS = [
    "", "x", "nan", "inf", "-1", "1e300", "1e999", "3.5", "1" * 30, "\x1b[2J", "\x00", "١", "..",
    "a\nb", '"', "1_0", " 1", "None",
]  # fmt: skip
TABLES = ["items.parquet", "curves.parquet"]
Mutate = Callable[[st.DataObject, Path], None]


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export of a few committed runs, one of which started from trained weights."""
    records = [r for r in read_records(COMMITTED / "quick") if r.task == "mqar"]
    seeds = [r for r in records if r.encoding in ("rope", "nope") and r.seed in (0, 1)]
    adapted = [r for r in read_records(COMMITTED / "extension") if r.adaptation]
    folder = tmp_path_factory.mktemp("export")
    write_export(folder, [*seeds, adapted[0]])
    return folder


def pick(data: st.DataObject, options: Sequence[Any]) -> Any:
    return options[data.draw(st.integers(0, len(options) - 1))]


def seal(folder: Path, content: dict[str, Any] | None = None, **changed: Any) -> None:
    """Seal an export again, as whoever has changed it can."""
    path = folder / EXPORTED
    if content is None:
        content = json.loads(path.read_text())
    for name in content["files"]:
        if (folder / name).is_file():
            content["files"][name] = sum_of(folder / name)
    content = {k: v for k, v in (content | changed).items() if k != "sha256"}
    path.write_text(json.dumps(content | {"sha256": _seal(content)}))


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value in JSON, the longest lists by their first elements."""
    if path:
        yield path
    pairs: Any = value.items() if isinstance(value, dict) else ()
    if isinstance(value, list):
        pairs = enumerate(value[:3])
    for key, inner in pairs:
        yield from places(inner, (*path, key))


def change_value(data: st.DataObject, folder: Path) -> None:
    content = json.loads((folder / EXPORTED).read_text())
    table = pick(data, content["tables"])
    part = pick(data, [table, table["shared"], *table["runs"]])
    *way, last = pick(data, sorted(places(part), key=str))
    for key in way:
        part = part[key]
    how = pick(data, ["replace", "replace", "remove", "rename"])
    if how == "replace" or isinstance(part, list):
        part[last] = pick(data, VALUES)
    else:
        value = part.pop(last)
        if how == "rename":
            part[pick(data, [v for v in VALUES if isinstance(v, str)])] = value
    seal(folder, content)


def change_cell(data: st.DataObject, folder: Path) -> None:
    name = pick(data, [PACKED_ROWS, "references"])
    path = folder / name
    if name == "references":
        path = pick(data, sorted(folder.glob("references/*.csv")))
        path.with_suffix(".json").unlink(missing_ok=True)
    text = store._unpack(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    lines = [line.split(",") for line in text.decode().splitlines()]
    line = lines[data.draw(st.integers(0, len(lines) - 1))]
    line[data.draw(st.integers(0, len(line) - 1))] = pick(data, CELLS)
    changed = "\n".join(map(",".join, lines)) + "\n"
    content = changed.encode(errors="surrogatepass")
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    seal(folder)


def change_column(data: st.DataObject, folder: Path) -> None:
    path = folder / pick(data, TABLES)
    table = parquet.read_table(path)
    name = pick(data, table.column_names)
    index = table.column_names.index(name)
    kind, count = table.schema.field(name).type, len(table)
    values = table.column(name).to_pylist()
    new = [
        lambda: pa.nulls(count),
        lambda: pa.nulls(count, kind),
        lambda: pa.array(["\x1b[2J"] * count),
        lambda: pa.array([-1] * count),
        lambda: pa.array([[]] * count, kind if pa.types.is_list(kind) else None),
        lambda: pa.array([None, *values[1:]], kind),
        lambda: pa.array([*values[1:], values[0]], kind),
    ]
    if data.draw(st.booleans()):
        table = table.set_column(index, name, pick(data, new)())
    else:
        table = table.drop_columns([name])
    parquet.write_table(table, path)
    seal(folder)


def change_bytes(data: st.DataObject, folder: Path) -> None:
    path = folder / pick(data, [EXPORTED, PACKED_ROWS, *TABLES])
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        content = content[:place]
    else:
        content[place] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    if path.name != EXPORTED:
        seal(folder)


def replace_file(data: st.DataObject, folder: Path) -> None:
    names = [
        EXPORTED,
        PACKED_ROWS,
        *TABLES,
        *(f"references/{p.name}" for p in sorted(folder.glob("references/*"))),
    ]
    path = folder / pick(data, names)
    path.unlink()
    how = pick(data, ["fifo", "folder", "link", "device", "loop", "missing"])
    if how == "fifo":
        os.mkfifo(path)
    elif how == "folder":
        path.mkdir()
    elif how == "link":
        path.symlink_to(folder.parent / "secret")
    elif how == "device":
        path.symlink_to("/dev/zero")
    elif how == "loop":
        path.symlink_to(path.name)


def name_elsewhere(data: st.DataObject, folder: Path) -> None:
    wrong = ["/dev/zero", "../secret", "/etc/passwd", "", ".", "references", "\x1b", "a/../../b"]
    seal(folder, files={pick(data, wrong): "0" * 64})


MUTATIONS: list[Mutate] = [
    change_value, change_value, change_value, change_cell, change_column, change_bytes,
    replace_file, name_elsewhere,
]  # fmt: skip


def run(*words: str) -> str:
    """Run a command, and return what it prints: no traceback, no control characters."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        code = main(words)
    text = out.getvalue()
    assert code in (0, 1, 2), words
    assert code == 0 or text.strip(), words
    assert text.replace("\n", "").isprintable(), words
    assert SECRET not in text
    return text


def try_all(data: st.DataObject, export: Path, *, with_report: bool) -> None:
    """Mutate a copy of an export and give it to every command that reads one."""
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of means of what is infinite
        Path("secret").write_text(SECRET)
        shutil.copytree(export, "theirs")
        pick(data, MUTATIONS)(data, Path("theirs"))
        before = {path for path in Path().rglob("*") if "theirs" not in path.parts}
        run("merge", "theirs", "--results", "mine/results")
        run("compare", "--all", "--results", "theirs")
        run("export", "rows.csv", "--results", "theirs")
        if with_report:
            run("export", "again", "--results", "theirs")
            run("compare", "rope", "nope", "--results", "theirs", "--picture", "picture.svg")
            run("report", "theirs")
            shutil.copy(COMMITTED / "quick" / "grid.toml", "theirs")
            run("run", "--like", "theirs", "--encoding", "fire", "--dry-run")
            with contextlib.suppress(InputError):
                for record in read_records(Path("theirs"))[:1]:
                    rebuild(record, Path("scratch"), Places())
        new = {path for path in Path().rglob("*") if "theirs" not in path.parts} - before
        allowed = ("mine/results", "rows.csv", "again", "picture.svg", "scratch", "mine")
        assert all(str(path).startswith(allowed) for path in new)
        for path in new:
            assert not path.is_file() or SECRET not in path.read_text(errors="replace")


EACH = settings(
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.generate],  # a failure is small as it is, and shrinking takes minutes
    suppress_health_check=list(HealthCheck),
)


@settings(EACH, max_examples=8)
@given(data=st.data())
def test_a_mutated_export(export: Path, data: st.DataObject) -> None:
    try_all(data, export, with_report=False)


@pytest.mark.slow
@settings(EACH, max_examples=4)
@given(data=st.data())
def test_a_mutated_export_through_every_command(export: Path, data: st.DataObject) -> None:
    try_all(data, export, with_report=True)


def change_record(folder: Path, **changed: Any) -> None:
    """Change all records of an export."""
    content = json.loads((folder / EXPORTED).read_text())
    for table in content["tables"]:
        for one in table["runs"]:
            one.update(changed)
    seal(folder, content)


@pytest.fixture
def theirs(export: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(export, "theirs")
    return Path("theirs")


def test_one_record_hurts_no_other(theirs: Path) -> None:
    content = json.loads((theirs / EXPORTED).read_text())
    content["tables"][0]["runs"][0]["costs"] = {"a": 3}
    seal(theirs, content)
    broken, *others = read_records(theirs)
    assert broken.status == "damaged" and "its costs.a is not a JSON object" in str(broken.reason)
    assert others and all(record.status == "done" for record in others)


def test_code_that_a_record_names_is_not_run(theirs: Path) -> None:
    code = theirs / "code.py"
    code.write_text("open('EXECUTED', 'w').close()\n")
    for name in ("code.py", str(code.resolve()), "hybrid:global=./theirs/code.py", "./theirs/"):
        change_record(theirs, encoding=name, sources={"encoding": str(code.resolve())})
        (record, *_) = read_records(theirs)
        with pytest.raises(InputError):
            rebuild(record, Path("scratch"), Places())
    assert not Path("EXECUTED").exists()


READERS = {
    PACKED_ROWS: store.read_run_lines,
    "items.parquet": store.read_run_items,
    "curves.parquet": store.read_run_curves,
}


@pytest.mark.parametrize("name", READERS)
def test_a_bomb_is_not_unpacked(theirs: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    (record, *_) = read_records(theirs)
    size = (theirs / name).stat().st_size
    for limit, says in ((size - 1, "larger than"), (size, "unpacks to more than")):
        for module in (store, own_parquet):
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


def test_files_have_the_mode_of_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        files.write_atomic(tmp_path / "file", "")
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640
