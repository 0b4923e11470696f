"""Specs of plugins, files from anywhere, and options converted to their annotated types."""

import itertools
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

from pe_bench.config import ModelConfig
from pe_bench.errors import InputError
from pe_bench.registry import catalogue, plugins
from pe_bench.registry.importing import Kind
from pe_bench.registry.options import EncodingSpec, convert, plugin_options

unique = itertools.count()

MINE = '''"""Mine, a try (Doe 2025).

More about it."""

from typing import Literal

from pe_bench.encoding import Encoding


class Mine(Encoding):
    """Does nothing."""

    def __init__(
        self,
        model,
        layer=0,
        *,
        base: float = 10_000.0,
        size: int = 4,
        gated: bool = True,
        layout: Literal["near", "far"] = "near",
        limit: int | None = 8,
    ):
        super().__init__(model, layer)  # without options
'''
OPTIONS = "base=10000, size=4, gated=true, layout=near, limit=8"

Put = Callable[[str], Path]


@pytest.fixture
def put(tmp_path: Path) -> Put:
    """Write source to a file that no test has loaded before."""

    def write(source: str) -> Path:
        path = tmp_path / f"mine_{next(unique)}.py"
        path.write_text(source, encoding="utf-8")
        return path

    return write


@pytest.mark.parametrize(
    ("options", "label", "kept"),
    [
        ("", "", {}),
        (":base=5e5", ":base=500000", {"base": 500_000.0}),
        (":base=10000", "", {}),
        (":size=5e2", ":size=500", {"size": 500}),
        (":gated=False", ":gated=false", {"gated": False}),
        (":layout=far", ":layout=far", {"layout": "far"}),
        (":limit=none", ":limit=None", {"limit": None}),
        (":limit=8,size=4", "", {}),
        (":limit=9, size=2 ,base=.5", ":base=0.5,size=2,limit=9", dict(base=0.5, size=2, limit=9)),
    ],
)
def test_specs(put: Put, options: str, label: str, kept: dict[str, Any]) -> None:
    path = put(MINE)
    plugin = plugins.load("encoding", f"{path}{options}")
    assert plugin.label == path.name + label
    assert list(plugin.options.items()) == list(kept.items())
    assert [type(v) for v in plugin.options.values()] == [type(v) for v in kept.values()]
    assert plugin.cls.__name__ == "Mine"
    again = plugins.load("encoding", plugin.label.replace(path.name, str(path)))
    assert (again.label, again.options) == (plugin.label, plugin.options)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (":bass=1", "no option 'bass' (did you mean 'base'?)"),
        (":zzz=1", f"no option 'zzz'; its options are: {OPTIONS}"),
        (":model=1", "no option 'model'"),
        (":base=big", ":base must be a number, not 'big'"),
        (":size=1.5", ":size must be a whole number, not '1.5'"),
        (":gated=1", ":gated must be true or false, not '1'"),
        (":layout=fur", ":layout must be one of near, far (did you mean 'far'?), not 'fur'"),
        (":limit=few", ":limit must be a whole number, not 'few'"),
        (":base", "is not a spec: write name:key=value"),
        (":base=", "is not a spec: write name:key=value"),
        (":=1", "is not a spec: write name:key=value"),
    ],
)
def test_options_that_do_not_fit(put: Put, options: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        plugins.load("encoding", f"{put(MINE)}{options}")
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "spec", "says"),
    [
        ("encoding", "ropee", "no encoding 'ropee' (did you mean 'rope'?)"),
        ("encoding", "zzz", f"'zzz'; there are: {', '.join(catalogue.names('encoding'))}"),
        ("task", "rope", "there is no task 'rope'"),
        ("encoding", "", "an empty spec names no encoding"),
        ("encoding", "rope:base", "'rope:base' is not a spec: write name:key=value"),
        ("encoding", "nope:base=1", "nope has no option 'base'; its options are: none"),
        ("encoding", "absent/mine.py:a=1", "there is no file absent/mine.py"),
    ],
)
def test_specs_of_nothing(kind: Kind, spec: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        plugins.load(kind, spec)
    assert says in str(caught.value)


BAD_FILES = {
    "syntax error": ("x = 1\ndef (\n", "SyntaxError: invalid syntax, line 2"),
    "raises": ("def f():\n    raise OSError('no')\n\nf()\n", "OSError: no, line 2"),
    "raises elsewhere": ("import json\n\njson.loads('')\n", "JSONDecodeError: .*, line 3"),
    "several lines": ("raise OSError('one\\ntwo')\n", "OSError: one two, line 1"),
    "imports an absent module": ("import absent_module\n", "ModuleNotFoundError: .*, line 1"),
    "leaves": ("import sys\n\nsys.exit(3)\n", "SystemExit: 3, line 3"),
    "no class": ("import torch\n", "exactly one public subclass of Encoding; it has none"),
    "imported only": ("from pe_bench.encodings.rope import RoPE\n", "it has none"),
    "private only": (MINE.replace("class Mine", "class _Mine"), "it has none"),
    "two": (MINE + "\n\nclass Other(Mine):\n    pass\n", "it has Mine, Other"),
}


@pytest.mark.parametrize(("source", "says"), BAD_FILES.values(), ids=BAD_FILES)
@pytest.mark.parametrize("relative", [False, True], ids=["absolute", "relative"])
def test_files_that_are_no_plugin(
    put: Put, monkeypatch: pytest.MonkeyPatch, source: str, says: str, relative: bool
) -> None:
    path = put(source)
    monkeypatch.chdir(path.parent)
    spec = f"./{path.name}" if relative else str(path)
    for _ in range(2):  # a second import does not find a partial module
        with pytest.raises(InputError) as caught:
            plugins.load("encoding", spec)
        assert re.search(says, str(caught.value)) and path.name in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_file_beside_the_plugin_needs_a_folder(put: Put) -> None:
    path = put("import beside\n")
    (path.parent / "beside.py").write_text("", encoding="utf-8")
    with pytest.raises(
        InputError, match=r"No module named 'beside', line 1\): put it and beside.py"
    ):
        plugins.load("encoding", str(path))


@pytest.mark.parametrize(
    "more",
    ["\n\nclass _Helper(Mine):\n    pass\n", "\n\nAlias = Mine\n", "\n\nclass Other:\n    pass\n"],
    ids=["private subclass", "alias", "another class"],
)
def test_one_public_subclass_is_enough(put: Put, more: str) -> None:
    assert plugins.load("encoding", str(put(MINE + more))).cls.__name__ == "Mine"


def test_a_file_from_elsewhere_may_build_on_a_shipped_one(put: Put) -> None:
    source = "from pe_bench.encodings.rope import RoPE\n\n\nclass Mine(RoPE):\n    pass\n"
    plugin = plugins.load("encoding", f"{put(source)}:base=2")
    assert plugin.options == {"base": 2.0}
    assert sys.modules[plugin.cls.__module__].__file__  # pickle and dataclasses look there


@pytest.mark.parametrize(
    ("text", "annotation", "value"),
    [
        ("5e5", float, 500_000.0),
        ("5e5", int, 500_000),
        ("9007199254740993", int, 9007199254740993),  # not converted to a float
        ("-3", int, -3),
        ("TRUE", bool, True),
        ("a b", str, "a b"),
        ("~/x", Path, Path("~/x")),
        ("None", int | None, None),
        ("7", int | None, 7),
        ("off", Literal["on", "off"] | None, "off"),
        ("2", Literal[1, 2], 2),
    ],
)
def test_convert(text: str, annotation: Any, value: object) -> None:
    converted = convert(text, annotation)
    assert (converted, type(converted)) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "annotation", "message"),
    [
        ("x", int, "a whole number"),
        ("inf", int, "a whole number"),
        ("nan", int, "a whole number"),
        ("1.5", int | None, "a whole number"),
        ("x", float, "a number"),
        ("nan", float, "a number"),
        ("none", float, "a number"),
        ("yes", bool, "true or false"),
        ("of", Literal["on", "off"], "one of on, off (did you mean 'off'?)"),
        ("3", Literal[1, 2], "one of 1, 2"),
    ],
)
def test_convert_says_what_would_be_right(text: str, annotation: Any, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        convert(text, annotation)
    assert str(caught.value) == message


FAMILY = """
from typing import Any
from pe_bench.encoding import Encoding

class _Old(Encoding):
    def __init__(self, model, layer=0, *, size: int = 4, base: float = 2.0{old}):
        super().__init__(model, layer{more_old})

class _Middle(_Old):
    pass  # no constructor: that of its parent

class Young(_Middle):
    def __init__(self, model, layer=0, *, gated: bool = False, size: int = 7{young}):
        super().__init__(model, layer, size=size{more_young})
        self.gated = gated
"""
REST = {"old": ", **options: Any", "more_old": ", **options"}
HANDED_ON = {"young": ", **options: Any", "more_young": ", **options"}
NOTHING = dict.fromkeys([*REST, *HANDED_ON], "")
ROOT_OPTIONS = ["train_positions", "max_train_position", "eval_positions"]


@pytest.mark.parametrize(
    ("filled", "names"),
    [
        ({}, ["gated", "size"]),
        (HANDED_ON, ["gated", "size", "base"]),
        (HANDED_ON | REST, ["gated", "size", "base", *ROOT_OPTIONS]),
        (REST, ["gated", "size"]),  # the child accepts only its own options
    ],
)
def test_a_constructor_that_hands_options_on_has_its_parents(
    put: Put, filled: dict[str, str], names: list[str]
) -> None:
    path = put(FAMILY.format(**NOTHING | filled))
    options = plugin_options(plugins.load("encoding", str(path)).cls)
    assert [o.name for o in options] == names
    assert {o.name: o.default for o in options}["size"] == 7  # the child's, not the parent's
    assert {o.name: o.annotation for o in options}["size"] is int


def test_options_of_the_parents_arrive(put: Put) -> None:
    path = put(FAMILY.format(**REST | HANDED_ON))
    plugin = plugins.load(
        "encoding", f"{path}:max_train_position=500,base=3,train_positions=random,gated=true"
    )
    assert (
        plugin.label
        == f"{path.name}:gated=true,base=3,train_positions=random,max_train_position=500"
    )
    made = plugin.make(ModelConfig(), 0)
    assert (made.gated, made.train_positions, made.max_train_position) == (True, "random", 500)
    with pytest.raises(InputError, match="one of contiguous, offset, random, not 'all'"):
        plugins.load("encoding", f"{path}:train_positions=all")
    with pytest.raises(
        InputError, match="its options are: gated=false, size=7, base=2, train_positions"
    ):
        plugins.load("encoding", f"{path}:layer=2")


ADDING = """
from pe_bench.encoding import Encoding
from pe_bench.api import EncodingSpec

class Adding(Encoding):
    def __init__(self, model, layer=0, *, base: EncodingSpec{none} = {default}, size: int = 3):
        super().__init__(model, layer)
        self.base = base
"""


@pytest.mark.parametrize(
    ("none", "default"), [("", "EncodingSpec('nope')"), (" | None", "None")], ids=["nope", "none"]
)
def test_options_that_name_an_encoding(put: Put, none: str, default: str) -> None:
    path = put(ADDING.format(none=none, default=default))
    plugin = plugins.load("encoding", f"{path}:size=4,base=rope:base=5e2")
    base = plugin.make(ModelConfig(), 0).base
    assert isinstance(base, EncodingSpec) and base == "rope:base=5e2"
    assert plugins.load("encoding", f"{path}:base={'None' if none else 'nope'}").label == path.name
    for wrong, says in {
        "ropee": "no encoding 'ropee' (did you mean 'rope'?)",
        "rope:bass=2": "rope has no option 'bass'",
        "rope:base=big": "rope:base must be a number, not 'big'",
    }.items():
        with pytest.raises(InputError) as caught:
            plugins.load("encoding", f"{path}:base={wrong}")
        assert says in str(caught.value)


IN_A_FOLDER = {
    "encoding.py": """
from pe_bench.api import Encoding
from .parts.table import SIZE

class Mine(Encoding):
    size = SIZE
""",
    "parts/table.py": "SIZE = 4\n",
    "words.txt": "one two",
}


@pytest.fixture
def plugin_folder(tmp_path: Path) -> Path:
    """Write a folder with an encoding, a module that it imports, and data."""
    folder = tmp_path / f"mine_{next(unique)}"
    for name, content in IN_A_FOLDER.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    return folder


@pytest.mark.parametrize("end", ["", "/"])
def test_a_folder_is_a_plugin(plugin_folder: Path, end: str) -> None:
    plugin = plugins.load("encoding", f"{plugin_folder}{end}")
    assert plugin.label == plugin_folder.name
    assert plugin.make(ModelConfig(), 0).size == 4
    assert plugins.kinds_of(str(plugin_folder)) == ["encoding"]
    with pytest.raises(InputError, match=r"task\.py: a folder with a plugin has a task\.py"):
        plugins.load("task", str(plugin_folder))


@pytest.mark.parametrize(
    ("file", "content", "same"),
    [
        ("parts/table.py", "# four\nSIZE = (4)\n", True),
        ("parts/table.py", "SIZE = 5\n", False),
        ("parts/new.py", "x = 1\n", False),
        ("words.txt", "one", False),
        (".hidden", "", True),
    ],
)
def test_every_file_of_a_folder_decides_its_version(
    plugin_folder: Path, file: str, content: str, same: bool
) -> None:
    before = plugins.load("encoding", str(plugin_folder)).version
    (plugin_folder / file).write_text(content)
    edited = plugins.load("encoding", str(plugin_folder))
    assert (edited.version == before) is same
    assert edited.make(ModelConfig(), 0).size == (5 if "5" in content else 4)


def test_a_module_beside_a_plugin_that_does_not_import_is_named(plugin_folder: Path) -> None:
    (plugin_folder / "parts" / "table.py").write_text("x = 1\n1 / 0\n")
    says = r"table\.py cannot be imported \(ZeroDivisionError: division by zero, line 2\)"
    with pytest.raises(InputError, match=says):
        plugins.load("encoding", str(plugin_folder))


@pytest.mark.parametrize(
    ("name", "label"),
    [("My RoPE", "My RoPE:size=5"), ("", "{file}:size=5")],
)
def test_an_encoding_names_itself(put: Put, name: str, label: str) -> None:
    body = f'    """Does nothing."""\n    name = {name!r}\n'
    path = put(MINE.replace('    """Does nothing."""\n', body))
    assert plugins.load("encoding", f"{path}:size=5").label == label.format(file=path.name)
    child = put(
        f"from pe_bench.encodings.nope import NoPE\nclass Mine(NoPE):\n    name = {name!r}\n"
    )
    assert plugins.load("encoding", str(child)).label == (name or child.name)


@pytest.mark.parametrize(
    ("name", "says"),
    [("tape", "'tape' is the name of a shipped encoding"), ("a:b", "no colon"), (" ", "no colon")],
)
def test_names_that_cannot_be(put: Put, name: str, says: str) -> None:
    body = f'    """Does nothing."""\n    name = {name!r}\n'
    with pytest.raises(InputError, match=says):
        plugins.load("encoding", str(put(MINE.replace('    """Does nothing."""\n', body))))


def test_an_option_that_is_given_twice(put: Put) -> None:
    with pytest.raises(InputError, match="gives the option 'size' twice"):
        plugins.load("encoding", f"{put(MINE)}:size=5,size=6")


def test_a_module_beside_a_file_decides_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path / "elsewhere"))
    files = {
        "mine.py": "import own_beside\nfrom own_package.inner import y\nimport own_elsewhere\n"
        "from pe_bench.api import Encoding\n\nclass Mine(Encoding):\n    pass\n",
        "own_beside.py": "import torch\nx = 1\n",
        "own_package/__init__.py": "",
        "own_package/inner.py": "from . import deepest\ny = 1\n",
        "own_package/deepest.py": "z = 1\n",
        "elsewhere/own_elsewhere.py": "v = 1\n",
        "unused.py": "w = 1\n",
    }
    for name, source in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    versions = [plugins.load("encoding", str(tmp_path / "mine.py")).version]
    for name, source in files.items():
        (tmp_path / name).write_text(source + "other = 2\n")
        versions.append(plugins.load("encoding", str(tmp_path / "mine.py")).version)
    changed = [a != b for a, b in itertools.pairwise(versions)]
    assert changed == [True] * (len(files) - 1) + [False]
    for name in list(sys.modules):
        if name.startswith("own_"):
            del sys.modules[name]
