"""Random changes to the files of an export."""

import gzip
import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st
from pyarrow import parquet

from pe_bench.results import row_files
from pe_bench.results.layout import EXPORTED
from pe_bench.system.sealed import _seal, sum_of

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
LINES = [
    "encoding = './code.py'", "task = '../secret'", "device = 3", "seeds = ['1-99999999999']",
    "tune = []", "[[grid]]", "grid = 1", "[", "jobs = -1", 'results = "\\u0000"', "x" * 3000,
    "like = 'theirs'", "data = { mqar = '/dev/zero' }", "train.steps = -1", "\x1b[2J", "model = {}",
]  # fmt: skip
Change = Callable[[st.DataObject, Path], None]


def pick(data: st.DataObject, options: Sequence[Any]) -> Any:
    return options[data.draw(st.integers(0, len(options) - 1))]


def pick_file(data: st.DataObject, folder: Path, *patterns: str) -> Path:
    """Return a random file; all patterns are equally likely."""
    return Path(pick(data, sorted(folder.glob(pick(data, patterns)))))


def seal(path: Path, content: dict[str, Any] | None = None, **changed: Any) -> None:
    """Update the checksum of a changed JSON file, as an attacker could."""
    if content is None:
        content = json.loads(path.read_text())
    for name in content["files"]:
        if (path.parent / name).is_file():
            content["files"][name] = sum_of(path.parent / name)
    content = {k: v for k, v in (content | changed).items() if k != "sha256"}
    path.write_text(json.dumps(content | {"sha256": _seal(content)}))


def seal_beside(path: Path) -> None:
    """Update the file that holds the checksum of this one."""
    for name in (EXPORTED, "run.json", f"{path.stem}.json"):
        if (path.parent / name).is_file():
            seal(path.parent / name)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value in JSON; of long lists only the first elements."""
    if path:
        yield path
    pairs: Any = value.items() if isinstance(value, dict) else ()
    if isinstance(value, list):
        pairs = enumerate(value[:3])
    for key, inner in pairs:
        yield from places(inner, (*path, key))


def change_value(data: st.DataObject, folder: Path) -> None:
    path = pick_file(data, folder, EXPORTED, "runs/*/*/*/run.json", "*/*/*.json", "*/*.json")
    content = part = json.loads(path.read_text())
    if path.name == EXPORTED:
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
    if isinstance(content.get("files"), dict) and all(isinstance(n, str) for n in content["files"]):
        seal(path, content)
    else:
        path.write_text(json.dumps(content))


def change_cell(data: st.DataObject, folder: Path) -> None:
    path = pick_file(data, folder, "rows.csv.gz", "references/*.csv", "runs/*/*/*/rows.csv")
    if path.parent.name == "references":
        path.with_suffix(".json").unlink(missing_ok=True)
    packed = path.suffix == ".gz"
    text = row_files._unpack(path.read_bytes()) if packed else path.read_bytes()
    lines = [line.split(",") for line in text.decode().splitlines()]
    line = lines[data.draw(st.integers(0, len(lines) - 1))]
    line[data.draw(st.integers(0, len(line) - 1))] = pick(data, CELLS)
    content = ("\n".join(map(",".join, lines)) + "\n").encode(errors="surrogatepass")
    path.write_bytes(gzip.compress(content) if packed else content)
    seal_beside(path)


def change_column(data: st.DataObject, folder: Path) -> None:
    names = ("items.parquet", "curves.parquet")
    path = pick_file(data, folder, *names, *(f"runs/*/*/*/{name}" for name in names))
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
    seal_beside(path)


def change_line(data: st.DataObject, folder: Path) -> None:
    path = folder / "grid.toml"
    lines = path.read_text().splitlines()
    lines.insert(data.draw(st.integers(0, len(lines))), pick(data, LINES))
    path.write_text("\n".join(lines))


KINDS = (
    "grid.toml", EXPORTED, "rows.csv.gz", "items.parquet", "curves.parquet", "references/*.csv",
    "references/*.json", "tuning/*/*.json", "runs/*/*/*/*.*",
)  # fmt: skip
"""Every kind of file that an export or a results folder has."""


def change_bytes(data: st.DataObject, folder: Path) -> None:
    path = pick_file(data, folder, *KINDS)
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        content = content[:place]
    else:
        content[place] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    if path.suffix != ".json":
        seal_beside(path)


def replace_file(data: st.DataObject, folder: Path) -> None:
    path = pick_file(data, folder, *KINDS)
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
    seal(folder / EXPORTED, files={pick(data, wrong): "0" * 64})


CHANGES: list[Change] = [
    change_value, change_value, change_value, change_cell, change_column, change_bytes,
    replace_file, name_elsewhere, change_line,
]  # fmt: skip
