"""The folders are the registry: names, descriptions, versions; the engine names no plugin."""

import ast
import importlib
import itertools
import os
import re
import subprocess
import sys
from collections.abc import Callable, Collection
from pathlib import Path

import pytest

import pe_bench
from pe_bench.errors import InputError
from pe_bench.pretrained.families import FAMILIES
from pe_bench.pretrained.layer_plan import LEARNED, NO_POSITIONS, OF_LAYERS, ROTATING
from pe_bench.pretrained.rotation import OF_LLAMA
from pe_bench.registry import catalogue, plugins
from pe_bench.registry.importing import Kind
from pe_bench.reporting.paired import DEFAULT_REFERENCE

ROOT = Path(__file__).parents[1]
PACKAGE = Path(pe_bench.__file__).parent
SHIPPED = [*catalogue.names("encoding"), *catalogue.names("task")]
unique = itertools.count(1)

MINE = '''"""Mine, a
try (Doe 2025).

More about it."""

from pe_bench.api import Encoding


class Mine(Encoding):
    """Does nothing."""

    def __init__(self, model, layer=0, *, size: int = 4):
        super().__init__(model, layer)  # without options
'''
HALF = 'from pe_bench.encodings.{parent} import Mine\n\nclass Half(Mine):\n    """Inherits."""\n'

Put = Callable[[str], Path]


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Put:
    """Write source to a file in a folder that replaces the shipped encodings."""
    folder = tmp_path / "encodings"
    folder.mkdir()
    monkeypatch.setattr(catalogue, "PACKAGE", tmp_path)
    monkeypatch.setattr("pe_bench.registry.versions.PACKAGE", tmp_path)
    monkeypatch.setattr(importlib.import_module("pe_bench.encodings"), "__path__", [str(folder)])

    def write(source: str) -> Path:
        path = folder / f"my_own_{next(unique)}.py"
        path.write_text(source, encoding="utf-8")
        importlib.invalidate_caches()
        return path

    return write


@pytest.mark.parametrize("kind", ["encoding", "task"])
def test_names_are_the_files_of_the_folders(kind: Kind) -> None:
    entries = [path for path in (ROOT / f"{kind}s").iterdir() if not path.name.startswith("_")]
    assert entries
    assert catalogue.names(kind) == sorted(e.stem.replace("_", "-") for e in entries)


def test_all_leaves_out_what_is_only_options_of_another_plugin() -> None:
    every = catalogue.names("encoding")
    assert {*every} - {*catalogue.names_of_all("encoding")} == {"tape-ablations"}
    assert catalogue.names_of_all("task") == catalogue.names("task")


def test_no_plugin_is_named_like_a_standard_module_and_no_folder_is_a_package() -> None:
    stems = [name.replace("-", "_") for name in SHIPPED]
    assert not {*stems} & sys.stdlib_module_names
    assert all(re.fullmatch(r"[a-z][a-z0-9_]*", stem) for stem in stems)
    for folder in (ROOT / "encodings", ROOT / "tasks"):
        assert not (folder / "__init__.py").exists()


@pytest.mark.slow
def test_describing_all_needs_no_torch() -> None:
    program = (
        "import sys; from pe_bench.registry import catalogue\n"
        "for kind in 'encoding', 'task':\n"
        "    for name in catalogue.names(kind): print(catalogue.describe(kind, name))\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    )
    env = os.environ | {"PYTHONPATH": str(PACKAGE.parent)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    assert len(lines) == len(SHIPPED)
    assert not [line for line in lines if len(line) < 20 or line.startswith("(")]


def test_a_description_is_the_first_paragraph(shipped: Put) -> None:
    assert catalogue.describe("encoding", shipped(MINE).stem) == "Mine, a try (Doe 2025)."
    assert catalogue.describe("encoding", shipped("x = 1\n").stem) == "(no description)"
    assert "cannot be read" in catalogue.describe("encoding", shipped("def (\n").stem)
    assert "cannot be read" in catalogue.describe("encoding", "absent")


def test_a_broken_file_hurts_only_itself(shipped: Put) -> None:
    good, bad = shipped(MINE), shipped("x = 1\nraise RuntimeError('boom')\n")
    name = good.stem.replace("_", "-")
    assert catalogue.names("encoding") == sorted([name, bad.stem.replace("_", "-")])
    assert plugins.load("encoding", f"{name}:size=2").label == f"{name}:size=2"
    with pytest.raises(InputError, match=re.escape(f"did you mean '{name}'?")):
        plugins.load("encoding", good.stem)
    with pytest.raises(InputError, match=rf"{bad.name} cannot be imported .*boom, line 2"):
        plugins.load("encoding", bad.stem.replace("_", "-"))


def versions(*specs: object) -> list[str]:
    """Return the versions of freshly imported plugins."""
    for module in [m for m in sys.modules if "my_own_" in m]:
        del sys.modules[module]
    return [plugins.load("encoding", str(spec)).version for spec in specs]


def name_of(shipped_file: Path) -> str:
    return shipped_file.stem.replace("_", "-")


def raise_version(shipped_file: Path, version: int) -> None:
    """Set the version of a shipped class; comments force a new compilation."""
    source = shipped_file.read_text()
    body = re.sub(r"    version = .*\n", "", source)
    body = re.sub(r"(class \w+\(.*\):\n)", rf"\1    version = {version}\n", body)
    shipped_file.write_text(body + "#\n" * 9)


@pytest.fixture
def own(tmp_path: Path) -> Put:
    """Write source to a file of the user."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()

    def write(source: str) -> Path:
        path = folder / f"my_own_{next(unique)}.py"
        path.write_text(source, encoding="utf-8")
        return path

    return write


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("  # without options", "", True),
        ('"""Does nothing."""', '"""Does little."""', True),
        ('    """Does nothing."""\n', "", True),
        ("More about it.", "Less about it.", True),
        ("size: int = 4", "size: int = (4)", True),
        ("size: int = 4", "size: int = 5", False),
        ("layer)", "layer + 0)", False),
    ],
)
def test_the_code_of_a_file_of_ones_own_decides(own: Put, old: str, new: str, same: bool) -> None:
    assert old in MINE
    file = own(MINE)
    (before,) = versions(file)
    assert re.fullmatch("1-[0-9a-f]{12}", before)
    file.write_text(MINE.replace(old, new) + "\n" * 99)  # another size: no stale bytecode
    assert (versions(file) == [before]) is same


def test_the_code_of_a_shipped_plugin_does_not_but_its_version(shipped: Put, own: Put) -> None:
    parent = shipped(MINE)
    child = shipped(HALF.format(parent=parent.stem))
    grandchild = own(HALF.format(parent=child.stem).replace("import Mine", "import Half as Mine"))
    specs = [name_of(parent), name_of(child), grandchild]
    before = versions(*specs)
    assert before[:2] == ["1", "1"] and before[2].startswith("1-")
    parent.write_text(MINE.replace("size: int = 4", "size: int = 5") + "\n" * 99)
    assert versions(*specs) == before
    raise_version(parent, 2)
    digest = before[2].partition("-")[2]
    assert versions(*specs) == ["2", "2", f"2-{digest}"]
    raise_version(child, 3)
    assert versions(*specs) == ["2", "4", f"4-{digest}"]


IMPORTING = """
from pe_bench.api import Encoding
from pe_bench.encodings.{other} import Mine

class Importing(Encoding):
    inner = Mine
"""
NAMING = """
from pe_bench.api import Encoding
from pe_bench.api import EncodingSpec

class Naming(Encoding):
    def __init__(self, model, layer=0, *, base: EncodingSpec = EncodingSpec("{base}")):
        super().__init__(model, layer)
"""


def test_versions_of_plugins_that_are_imported_count(shipped: Put, own: Put) -> None:
    first = shipped(MINE)
    second = shipped(IMPORTING.format(other=first.stem).replace("Importing", "Mine"))
    third = own(IMPORTING.format(other=second.stem))
    unrelated = shipped(MINE)
    specs = [name_of(first), name_of(second), third, name_of(unrelated)]
    before = versions(*specs)
    raise_version(first, 2)
    after = versions(*specs)
    assert after[:2] == ["2", "2"] and after[3] == before[3] == "1"
    assert after[2] == before[2].replace("1-", "2-", 1)


def test_versions_of_encodings_that_are_named_count(shipped: Put, own: Put) -> None:
    default, other = shipped(MINE), own(MINE)
    naming = shipped(NAMING.format(base=name_of(default)))
    name = name_of(naming)
    specs = [name, f"{name}:base={other}", f"{name}:base={other}:size=2"]
    before = versions(*specs)
    assert before[0] == "1+1" and re.fullmatch(r"1\+1-[0-9a-f]{12}", before[1])
    assert before[1] == before[2]  # the option is in the label
    other.write_text(MINE.replace("size: int = 4", "size: int = 5") + "\n" * 99)
    after = versions(*specs)
    assert [a == b for a, b in zip(before, after, strict=True)] == [True, False, False]
    raise_version(default, 2)
    assert versions(*specs) == ["1+2", *after[1:]]


def test_a_version_does_not_depend_on_the_folder(shipped: Put, tmp_path: Path) -> None:
    source = HALF.format(parent=shipped(MINE).stem)
    files = [tmp_path / folder / "mine.py" for folder in ("a", "z")]
    for file in files:
        file.parent.mkdir()
        file.write_text(source)
    first, second = versions(*files)
    assert first == second


def named(source: str, names: Collection[str]) -> list[str]:
    """Return the places where code names a plugin: as a spec in a string, or by an import path.

    Only whole strings count, since plugins may have common names such as "path" or "learned".
    """
    tree = ast.parse(source)
    either = "|".join(sorted({*names} | {name.replace("-", "_") for name in names}))
    spec = re.compile(rf"(?:{either})(?::\w+=.*)?", re.DOTALL)
    place = re.compile(rf"(?:^|\W)(?:encodings|tasks)[./](?:{either})\b")
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            bad = any(place.search(alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            bad = any(place.search(f"{node.module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
            bad = id(node) not in prose and bool(spec.fullmatch(text) or place.search(text))
        else:
            continue
        if bad:
            found.append(f"line {node.lineno}: {ast.unparse(node)}")
    return found


ENGINE = [
    path
    for path in sorted(PACKAGE.rglob("*.py"))
    if path.relative_to(PACKAGE).parts[0] not in ("encodings", "tasks")
    and path.name != "metrics.py"  # a metric may have the name of a task
]


EXCEPTIONS: dict[str, set[str]] = {
    "reporting/paired.py": {DEFAULT_REFERENCE},  # reports compare with it by default
    "pretrained/rotation.py": {OF_LLAMA},  # the encoding of a plain Llama
    "pretrained/layer_plan.py": {LEARNED, OF_LAYERS, ROTATING, NO_POSITIONS},  # published models
    "pretrained/families.py": set(FAMILIES),  # values of `model_type`
    "pretrained/refusals.py": set(FAMILIES),
}


@pytest.mark.slow
def test_the_engine_names_no_plugin() -> None:
    for path in ENGINE:
        found = named(path.read_text(encoding="utf-8"), SHIPPED)
        allowed = EXCEPTIONS.get(str(path.relative_to(PACKAGE)), set())
        assert [line for line in found if line.split("'")[1] not in allowed] == [], path


@pytest.mark.parametrize(
    ("source", "bad"),
    [
        ("import pe_bench.encodings.path", True),
        ("from pe_bench.encodings import path", True),
        ("from pe_bench.encodings.path import PaTH", True),
        ("from .tasks.long_text import LongText", True),
        ("if spec == 'path': pass", True),
        ("x = {'long-text': 1}", True),
        ("x = 'path:base=5'", True),
        ("x = f'path:base={y}'", True),
        ("import_module('pe_bench.encodings.path')", True),
        ("x = 'encodings/path.py'", True),
        ("'''path is one'''\nx = 1  # as path is", False),
        ("class A:\n    x = 1\n    'path'", False),
        ("from pathlib import Path\npath = Path('a/path')", False),
        ("x = 'the path of a file, path: such'", False),
        ("from pe_bench import encodings, path", False),
        ("from pe_bench.encodings import pathology", False),
    ],
)
def test_what_counts_as_naming_a_plugin(source: str, bad: bool) -> None:
    assert bool(named(source, ["path", "long-text"])) is bad
