"""Pure functions of the registry: specs, types, sources, names and classes of plugins."""

import dataclasses
import inspect
import types
from pathlib import Path
from typing import Any, Literal

import pytest

from pe_bench.checks.subject import CONFIG
from pe_bench.encoding import Encoding
from pe_bench.errors import FaultyPlugin, InputError
from pe_bench.registry import catalogue, importing, plugins
from pe_bench.registry.attributes import class_name, literal_attributes
from pe_bench.registry.fingerprint import find_sources, fingerprint
from pe_bench.registry.importing import KINDS, Kind, plugin_class, plugin_classes
from pe_bench.registry.options import (
    EncodingSpec,
    TaskSpec,
    convert,
    show,
    show_type,
    split_spec,
    with_option,
)
from pe_bench.task import Task

SHIPPED = [(kind, name) for kind in KINDS for name in catalogue.names(kind)]


@pytest.mark.parametrize(
    ("annotation", "shown"),
    [
        (bool, "true, false"),
        (int, "a whole number"),
        (float, "a number"),
        (str, "a text"),
        (Path, "a text"),
        (EncodingSpec, "an encoding"),
        (TaskSpec, "a task"),
        (int | None, "a whole number or none"),
        (float | Literal["auto"], "a number or auto"),
        (Literal["b", "a", 3], "b, a, 3"),
    ],
)
def test_a_type_is_shown(annotation: Any, shown: str) -> None:
    assert show_type(annotation) == shown


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (False, "false"),
        (None, "None"),
        (3, "3"),
        (500_000.0, "500000"),
        (1 / 3, "0.3333333333333333"),
        (0.1 + 0.2, "0.30000000000000004"),
        (1e-9, "1e-09"),
        ("a b", "a b"),
    ],
)
def test_a_value_is_shown_and_read_again(value: Any, text: str) -> None:
    assert show(value) == text
    again = convert(text, int | None if value is None else type(value))
    assert again == value


@pytest.mark.parametrize(
    ("spec", "where", "options"),
    [
        ("rope", "rope", {}),
        ("rope:", "rope", {}),
        ("rope:base=5e5,rotary=0.5", "rope", {"base": "5e5", "rotary": "0.5"}),
        ("rope: base = 3 ,", "rope", {"base": "3"}),
        ("hybrid:global=rope:base=3,every=2", "hybrid", {"global_": "rope:base=3", "every": "2"}),
        (EncodingSpec("rope:base=3:rotary=0.5"), "rope", {"base": "3", "rotary": "0.5"}),
        ("a:b/mine.py:x=1", "a:b/mine.py", {"x": "1"}),
        ("abacus:base=./mine.py:x=1", "abacus", {"base": "./mine.py:x=1"}),
        ("package.module:Class:x=1", "package.module.Class", {"x": "1"}),
        ("package.module:x=1", "package.module", {"x": "1"}),
    ],
)
def test_a_spec_is_split(spec: str, where: str, options: dict[str, str]) -> None:
    assert split_spec(spec) == (where, options)
    bare = type(spec)(spec.rstrip(" ,:"))
    more = type(spec)(with_option(bare, "last", "9"))
    assert split_spec(more) == (where, {**options, "last": "9"})


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("rope:base", "is not a spec: write name:key=value,key=value"),
        ("rope:=3", "is not a spec: write"),
        ("rope:base=", "is not a spec: write"),
        (EncodingSpec("rope:base"), "write name:key=value:key=value"),
        ("rope:base=1,base=2", "gives the option 'base' twice"),
        ("x" * 256, "is too long for a name or a path"),
        ("a/" + "é" * 128 + "/b.py", "is too long for a name or a path"),
    ],
)
def test_specs_that_are_refused(spec: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        split_spec(spec)


@pytest.mark.parametrize(("kind", "name"), SHIPPED)
def test_attributes_are_read_without_an_import(kind: Kind, name: str) -> None:
    cls = plugins.load(kind, name).cls
    assert class_name(kind, name) == cls.__name__
    found = literal_attributes(kind, name)
    assert found == {key: value for key, value in vars(cls).items() if key in found}
    if "version" in vars(cls):
        assert "version" in found


@pytest.mark.parametrize("name", catalogue.names("encoding"))
def test_an_encoding_is_of_the_first_layer_by_default(name: str) -> None:
    """A call without a layer, as in a notebook, makes the encoding of layer 0."""
    parameters = inspect.signature(plugins.load("encoding", name).cls.__init__).parameters
    assert list(parameters)[:3] == ["self", "model", "layer"]
    assert parameters["layer"].default == 0


def module_with(**classes: type[Any]) -> types.ModuleType:
    """Return a module that defines classes."""
    made = types.ModuleType("made")
    for name, cls in classes.items():
        if not cls.__module__.startswith("pe_bench"):
            cls.__module__ = "made"
        setattr(made, name, cls)
    return made


def of_encoding() -> type[Any]:
    return type("E", (Encoding,), {})


def of_task() -> type[Any]:
    return type("T", (Task,), {})


def test_the_class_of_a_module() -> None:
    one, other, task = of_encoding(), of_encoding(), of_task()
    from_elsewhere = plugins.load("encoding", "rope").cls
    module = module_with(One=one, Alias=one, _Other=other, RoPE=from_elsewhere, T=task)
    assert plugin_classes("encoding", module) == [one]
    assert plugin_class("encoding", module, "x.py") is one
    assert plugin_class("task", module, "x.py") is task
    assert plugin_class("encoding", module, "x.py", "RoPE") is from_elsewhere
    assert plugin_classes("task", module, "RoPE") == []


@pytest.mark.parametrize(
    ("classes", "sentence"),
    [
        ({"T": of_task()}, "x.py defines a task, not an encoding"),
        ({}, "must define exactly one public subclass of Encoding; it has none"),
        ({"A": of_encoding(), "B": of_encoding()}, "of Encoding; it has E, E"),
        ({"A": of_encoding(), "B": of_encoding(), "T": of_task()}, "of Encoding; it has E, E"),
        ({"S": of_task(), "T": of_task()}, "of Encoding; it has none"),
    ],
)
def test_modules_without_the_one_class(classes: dict[str, type[Any]], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        plugin_class("encoding", module_with(**classes), "x.py")


SOURCES = {
    "lab/__init__.py": "",
    "lab/config.py": "from lab.encodings import far",
    "lab/encodings/rope/__init__.py": "",
    "lab/encodings/rope/encoding.py": "from lab.tasks.probe_it import X\nfrom .scale import Y",
    "lab/encodings/rope/scale.py": "import math",
    "lab/encodings/far.py": "",
    "lab/encodings/near_by.py": "import lab.encodings.far",
    "lab/tasks/probe_it.py": "",
    "mine/own.py": (
        "import beside\nfrom . import level\nfrom .sub import thing\nimport lab.config\n"
        "from lab.encodings.rope.encoding import R\nfrom lab.encodings import near_by\n"
        "def late():\n    from late_one import z"
    ),
    "mine/beside.py": "import own",
    "mine/level.py": "",
    "mine/late_one.py": "",
    "mine/sub/__init__.py": "from ..up import a",
    "mine/sub/thing.py": "",
    "mine/up.py": "",
    "mine/unused.py": "",
    "up.py": "",
}


def test_the_files_and_plugins_of_a_plugin(tmp_path: Path) -> None:
    for name, text in SOURCES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found = find_sources([tmp_path / "mine" / "own.py"], tmp_path / "lab")
    own = ["own", "beside", "level", "late_one", "sub/__init__", "sub/thing", "up"]
    assert found.own[0] == tmp_path / "mine" / "own.py"
    assert {path.relative_to(tmp_path) for path in found.own} == {
        Path("mine", f"{name}.py") for name in own
    }
    shipped = {("encodings", "rope"), ("encodings", "near-by"), ("encodings", "far")}
    assert set(found.shipped) == {*shipped, ("tasks", "probe-it")}
    assert len(found.shipped) == 4


def test_a_fingerprint_is_of_code_in_order(tmp_path: Path) -> None:
    def digest(*sources: str, parts: tuple[str, ...] = ()) -> str:
        files = []
        for number, source in enumerate(sources):
            files.append(tmp_path / f"{len(sources)}-{number}.py")
            files[-1].write_text(source)
        return fingerprint(files, parts)

    plain = digest("x = 1\n")
    assert len(plain) == 12 and plain == digest('"""Says."""\n\nx  =  1  # one')
    body = "class A:\n    '''Says.'''\n    def f(self):\n        '''Says.'''\n        return 'a'"
    assert digest(body) == digest("class A:\n    def f(self):\n        return 'a'")
    others = [digest("x = 2"), digest("x = 1", "y = 1"), digest("y = 1", "x = 1")]
    others += [digest("x = 1", parts=parts) for parts in (("a", "b"), ("b", "a"), ("a",))]
    assert len({plain, *others}) == 7


def test_files_of_a_folder(tmp_path: Path) -> None:
    names = ["b.py", "a/c.txt", "a/.hidden", ".git/d.py", "__pycache__/e.pyc", "a/__pycache__/f"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    assert importing.files_of(tmp_path) == [tmp_path / "a/c.txt", tmp_path / "b.py"]
    name = importing._module_name(tmp_path, importing.files_of(tmp_path))
    assert name != importing._module_name(tmp_path, [tmp_path / "b.py"])
    (tmp_path / "b.py").rename(tmp_path / "d.py")
    assert name != importing._module_name(tmp_path, importing.files_of(tmp_path))


class Faulty(Encoding):
    """An encoding whose constructor has an error."""

    def __init__(self, model: Any, layer: int = 0) -> None:
        super().__init__(model, layer)
        self.number = self.absent + 1  # type: ignore[operator]


class WithoutParent(Encoding):
    def __init__(self, model: Any, layer: int = 0) -> None:
        self.number = 3


def test_an_error_of_a_constructor_is_told_from_a_missing_super() -> None:
    plugin = plugins.load("encoding", "nope")
    with pytest.raises(AttributeError, match="has no attribute 'absent'"):
        dataclasses.replace(plugin, cls=Faulty).make(CONFIG, 0)
    with pytest.raises(FaultyPlugin, match=r"WithoutParent.__init__ has to begin with super"):
        dataclasses.replace(plugin, cls=WithoutParent).make(CONFIG, 0)


def test_an_option_of_a_related_plugin_is_named() -> None:
    sentence = "tape has no option 'mlp_mix': write tape-ablations:mlp_mix=false"
    with pytest.raises(InputError, match=sentence):
        plugins.load("encoding", "tape:mlp_mix=false")
    with pytest.raises(InputError, match=r"tape has no option 'mlp_mx'; its options are: "):
        plugins.load("encoding", "tape:mlp_mx=false")


def test_the_content_of_a_file_that_an_option_names_is_part_of_the_version(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from pathlib import Path\nfrom pe_bench.api import Encoding\n\n\n"
        "class Mine(Encoding):\n"
        "    def __init__(self, model, layer=0, *, table: Path = Path('none'), text: str = 'a'):\n"
        "        super().__init__(model, layer)\n"
    )

    def version(options: str) -> str:
        return plugins.load("encoding", f"{tmp_path / 'mine.py'}{options}").version

    table = tmp_path / "table.txt"
    without = version(f":table={table}")
    assert without == version("") == version(":text=b")
    found = set()
    for content in ("1", "2"):
        table.write_text(content)
        found |= {version(f":table={table}"), version(f":text={table}")}
    assert len(found) == 2 and without not in found
    assert version(f":text={'long' * 99}") == without


def test_all_is_expanded_in_its_place() -> None:
    every = catalogue.names_of_all("encoding")
    assert "tape" in every and "tape-ablations" not in every
    first, *rest = [name for name in every if name != "rope"]
    found = catalogue.expand(["rope", "tape-ablations", "all", first], "encoding")
    assert found == ["rope", "tape-ablations", first, *rest]
    assert catalogue.expand(["rope", "rope"], "encoding") == ["rope"]


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ("sizes: list[int] = [1, 2]", r"has the type list\[int\]: annotate it with bool, int"),
        ("sizes: tuple[int, ...] = (1,)", "has the type tuple"),
        ("table: dict | None = None", "has the type"),
        ("x: float = float('nan')", "has the default nan, which a spec cannot contain"),
        ("x: int = (3,)", "has the default"),
    ],
)
def test_an_option_that_a_spec_cannot_write_is_refused(
    option: str, sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=sentence):
        plugins.load("encoding", write_option(tmp_path, option))


def write_option(folder: Path, option: str) -> str:
    """Write an encoding with one option."""
    file = folder / "mine.py"
    file.write_text(
        "from typing import *\nfrom pe_bench.api import Encoding\n\nclass Mine(Encoding):\n"
        f"    def __init__(self, model, layer=0, *, {option}):\n"
        "        super().__init__(model, layer)\n"
    )
    return str(file)


@pytest.mark.parametrize(
    ("text", "value"), [("3", 3), ("2.5", 2.5), ("learned", "learned"), ("none", None)]
)
def test_an_option_may_have_one_of_several_types(text: str, value: Any, tmp_path: Path) -> None:
    spec = write_option(tmp_path, "x: int | float | str | None = 1")
    assert plugins.load("encoding", f"{spec}:x={text}").options["x"] == value


def test_only_names_of_files_are_read_for_the_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    version = plugins.load("encoding", "rope:scaling=yarn,factor=2").version
    (tmp_path / "yarn").write_text("a file with the name of a choice")
    assert plugins.load("encoding", "rope:scaling=yarn,factor=2").version == version
    of_tasks = [plugins.load("task", task).version for task in ("ruler", "recall")]
    for name in ("all", "niah-multikey", "latest+first+reverse"):  # defaults and presets
        (tmp_path / name).write_text("a file with the name of a default")
    assert [plugins.load("task", task).version for task in ("ruler", "recall")] == of_tasks
    table = tmp_path / "slopes.txt"
    table.write_text("1")
    spec = write_option(tmp_path, f"table: str = {str(table)!r}")
    before = plugins.load("encoding", spec).version
    table.write_text("42")
    assert plugins.load("encoding", spec).version != before


def test_a_file_name_with_a_control_character_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a\nb.py"
    file.write_text(
        "from pe_bench.api import Encoding\n\nclass Mine(Encoding):\n    shared = True\n"
    )
    with pytest.raises(InputError, match="control character"):
        plugins.load("encoding", str(file))
