"""The folders are the registry: find, describe and load encodings and tasks.

`--encoding rope:base=500000` means the one Encoding subclass of `encodings/rope.py`, built with
`base=500000.0`; `--encoding ./mine.py` loads a file from anywhere. A hyphen in a name is an
underscore in the file. Nothing here imports torch, so that listing what there is stays instant,
and a plugin that does not import hurts only those who ask for it.
"""

import ast
import dataclasses
import hashlib
import importlib
import importlib.util
import inspect
import math
import re
import sys
import traceback
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pe_bench.errors import InputError, suggest
from pe_bench.registry.fingerprint import fingerprint

Kind = Literal["encoding", "task"]

PACKAGE = Path(__file__).parents[1]
BASES = {"encoding": ("pe_bench.encoding", "Encoding"), "task": ("pe_bench.task", "Task")}


@dataclass(frozen=True)
class Plugin:
    """A plugin's class with the options of its spec.

    Attributes:
        kind: "encoding" or "task".
        label: the canonical spec, used in every table: options in the constructor's order,
            defaults left out, so that one setting has one label.
        options: keyword arguments of the constructor, converted to their annotated types, without
            those that have their default.
        cls: the class itself.
        source: fingerprint of the code that decides the numbers, comments and docstrings left
            out, as it was when it was loaded. It covers every plugin file that this one imports
            and those that its options name: editing one makes its results and checkpoints new.
    """

    kind: Kind
    label: str
    options: dict[str, Any]
    cls: type[Any]
    source: str

    def make(self, model: Any, layer: int) -> Any:
        """An instance of an encoding with the spec's options."""
        return self.cls(model, layer, **self.options)


class EncodingSpec(str):
    """Type of an option that names an encoding, for one that adds to another.

    Colons are between its options, where a spec has commas: `abacus:base=rope:base=5e5:rotary=0.5`.
    """

    kind: Kind = "encoding"


def names(kind: Kind) -> list[str]:
    """Names of all shipped plugins of a kind, in alphabetical order."""
    folder = PACKAGE / f"{kind}s"
    files = [path.stem for path in folder.glob("*.py")]
    folders = [path.parent.name for path in folder.glob(f"*/{kind}.py")]
    return sorted(stem.replace("_", "-") for stem in files + folders)


def describe(kind: Kind, name: str) -> str:
    """The first sentence of a shipped plugin's docstring, read without importing it."""
    try:
        doc = ast.get_docstring(ast.parse(path_of(kind, name).read_text(encoding="utf-8")))
    except (OSError, SyntaxError, UnicodeDecodeError) as error:
        return f"(cannot be read: {error})"
    return doc.split("\n\n")[0].replace("\n", " ") if doc else "(no description)"


def load(kind: Kind, spec: str, preset: str = "") -> Plugin:
    """Imports the plugin that a spec names and checks its options.

    Args:
        kind: "encoding" or "task".
        spec: "name", "path/to/file.py", or either followed by ":key=value,key=value".
        preset: of a task; what it sets takes the place of the constructor's defaults.

    Raises:
        InputError: unknown name or option, a value of the wrong type, a file that does not import.
    """
    where, given = _split(spec)
    if where.endswith(".py"):
        cls = _plugin_class(kind, _import_file(Path(where)), where)
        label = Path(where).name
    else:
        if where not in names(kind):
            hint = suggest(where, names(kind))
            raise InputError(
                f"there is no {kind} '{where}'{hint}; there are: {', '.join(names(kind))}, "
                "or give a path that ends in .py"
            )
        cls = _plugin_class(kind, _import_shipped(kind, where), where)
        label = where
    options = _convert(kind, where, cls, given)
    defaults = {p.name: p.default for p in options_of(cls)}
    if preset in getattr(cls, "presets", {}):
        defaults |= cls.presets[preset].options
    shown = {n: v for n in defaults if n in options and not _same(v := options[n], defaults[n])}
    if shown:
        label += ":" + ",".join(f"{name}={_show(value)}" for name, value in shown.items())
    chosen = (defaults | options).values()
    parts = [load(value.kind, value).source for value in chosen if isinstance(value, EncodingSpec)]
    parts += [_digest(path) for path in _files(options)]
    source = fingerprint(_own_files(cls, _base(kind)), parts, PACKAGE)
    return Plugin(kind, label, shown, cls, source)


def _own_files(cls: type[Any], base: type[Any]) -> list[Path]:
    """Those of a plugin's class and of its ancestors below the interface."""
    own = [c for c in cls.__mro__ if issubclass(c, base) and c.__module__ != base.__module__]
    return [Path(inspect.getsourcefile(c) or "") for c in own]


def convert(text: str, annotation: Any) -> Any:
    """Converts text to the type that an annotation names.

    Knows bool, int (also as 5e5), float, str, Path, Literal and unions of these with None.

    Raises:
        ValueError: the text is no such value; the message names what would be.
    """
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        if text.lower() == "none":
            return None
        return convert(text, next(arg for arg in args if arg is not type(None)))
    if origin is Literal:
        values = {str(arg): arg for arg in args}
        if text not in values:
            raise ValueError(f"one of {', '.join(values)}{suggest(text, list(values))}")
        return values[text]
    if annotation is bool:
        if text.lower() not in ("true", "false"):
            raise ValueError("true or false")
        return text.lower() == "true"
    if annotation is int:
        try:
            number = float(text)
            if number == int(number):
                return int(text) if text.lstrip("+-").isdigit() else int(number)
        except (ValueError, OverflowError):
            pass
        raise ValueError("a whole number")
    if annotation is float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if math.isnan(value):
            raise ValueError("a number")
        return value
    return annotation(text)


def _split(spec: str) -> tuple[str, dict[str, str]]:
    # A path comes before the first "=": the one in name:base=./mine.py is the value of an option.
    match = re.fullmatch(r"(?P<where>[^=]*?\.py|[^:]*)(?::(?P<options>.*))?", spec, re.DOTALL)
    where, options = (match["where"], match["options"]) if match else (spec, None)
    separator = ":" if isinstance(spec, EncodingSpec) else ","
    pairs = [pair.partition("=") for pair in (options or "").split(separator) if pair]
    for key, equals, value in pairs:
        if not (key and equals and value):
            example = f"name:key=value{separator}key=value"
            raise InputError(f"'{spec}' is not a spec: write {example}")
    return where, {key.strip(): value.strip() for key, _, value in pairs}


def path_of(kind: Kind, name: str) -> Path:
    """Return the file of a shipped plugin's class: `<name>.py`, or `<name>/<kind>.py`."""
    place = PACKAGE / f"{kind}s" / name.replace("-", "_")
    return place / f"{kind}.py" if place.is_dir() else place.with_suffix(".py")


def _import_shipped(kind: Kind, name: str) -> types.ModuleType:
    path = path_of(kind, name)
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    module = ".".join(["pe_bench", *parts])
    return _importing(path, lambda: importlib.import_module(module))


def _import_file(path: Path) -> types.ModuleType:
    if not path.is_file():
        raise InputError(f"there is no file {path}: give the path of an existing plugin file")
    # By path and content: an edited file is another module, an unchanged one is loaded once.
    digest = hashlib.sha256(bytes(path.resolve()) + path.read_bytes()).hexdigest()[:8]
    name = f"pe_bench_user_{re.sub(r'[^0-9A-Za-z_]', '_', path.stem)}_{digest}"

    def run() -> types.ModuleType:
        found = importlib.util.spec_from_file_location(name, path)
        assert found is not None and found.loader is not None  # the name ends in .py
        module = importlib.util.module_from_spec(found)
        sys.modules[name] = module  # dataclasses and pickle look a class's module up there
        try:
            found.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        return module

    return sys.modules.get(name) or _importing(path, run)


def _files(options: dict[str, Any]) -> list[Path]:
    """Options that name a file: what is in it decides numbers."""
    texts = [value for value in options.values() if isinstance(value, str)]
    return [Path(text) for text in texts if len(text) < 256 and Path(text).is_file()]


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]


def _importing(where: Path, run: Callable[[], types.ModuleType]) -> types.ModuleType:
    try:
        return run()
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [f.lineno for f in frames if Path(f.filename).absolute() == where.absolute()]
        line = lines[-1] if lines else getattr(error, "lineno", None)
        at = f", line {line}" if line else ""
        message = error.msg if isinstance(error, SyntaxError) else error
        reason = " ".join(str(message).split())  # one line
        raise InputError(
            f"{where} does not import ({type(error).__name__}: {reason}{at}): mend that file"
        ) from error


def _base(kind: Kind) -> type[Any]:
    module, name = BASES[kind]
    base: type[Any] = getattr(importlib.import_module(module), name)
    return base


def _plugin_class(kind: Kind, module: types.ModuleType, where: str) -> type[Any]:
    base = _base(kind)
    found = {
        value: None  # a dict: in the file's order, and a second name for a class is no second class
        for name, value in vars(module).items()
        if isinstance(value, type)
        and issubclass(value, base)
        and value.__module__ == module.__name__
        and not name.startswith("_")
    }
    if len(found) != 1:
        has = ", ".join(cls.__name__ for cls in found) or "none"
        raise InputError(
            f"{where} must define exactly one public subclass of {base.__name__}; it has {has}"
        )
    return next(iter(found))


def options_of(cls: type[Any]) -> list[inspect.Parameter]:
    """A plugin's options, annotations resolved: the keyword-only parameters of its constructor.

    Where it hands `**options` on to its parent, the parent's follow. Where the class attribute
    `option_tables` has dataclasses for an option's values, their fields with a default follow it.
    """
    found: dict[str, inspect.Parameter] = {}
    tables: Mapping[str, Mapping[str, type[Any]]] = getattr(cls, "option_tables", {})
    for ancestor in cls.__mro__:
        constructor = vars(ancestor).get("__init__")
        if constructor is None:
            continue
        parameters = inspect.signature(constructor).parameters.values()
        hints = typing.get_type_hints(constructor)
        for p in parameters:
            if p.kind is inspect.Parameter.KEYWORD_ONLY:
                found.setdefault(p.name, p.replace(annotation=hints.get(p.name, str)))
                for choice in tables.get(p.name, {}).values():
                    for field in _fields(choice):
                        found.setdefault(field.name, field)
        if all(p.kind is not inspect.Parameter.VAR_KEYWORD for p in parameters):
            break
    return list(found.values())


def _fields(cls: type[Any]) -> list[inspect.Parameter]:
    """Return the fields of a dataclass that have a default, as parameters."""
    hints = typing.get_type_hints(cls)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=hints[field.name],
        )
        for field in dataclasses.fields(cls)
        if field.default is not dataclasses.MISSING
    ]


def _convert(kind: Kind, where: str, cls: type[Any], given: dict[str, str]) -> dict[str, Any]:
    known = {p.name: p for p in options_of(cls)}
    options: dict[str, Any] = {}
    for key, text in given.items():
        if key not in known:
            has = ", ".join(f"{n}={_show(p.default)}" for n, p in known.items()) or "none"
            if other := _related(kind, where, key):
                raise InputError(f"{where} has no option '{key}': write {other}:{key}={text}")
            hint = suggest(key, list(known))
            raise InputError(f"{where} has no option '{key}'{hint}; its options are: {has}")
        try:
            options[key] = convert(text, known[key].annotation)
        except ValueError as error:
            raise InputError(f"{where}:{key} must be {error}, not '{text}'") from None
    return options


def _related(kind: Kind, where: str, key: str) -> str:
    """Return the shipped plugin that extends `where`, by its name, and has this option, or ''."""
    for name in names(kind):
        if name.startswith(f"{where}-"):
            cls = _plugin_class(kind, _import_shipped(kind, name), name)
            if any(option.name == key for option in options_of(cls)):
                return name
    return ""


def _same(value: Any, default: Any) -> bool:
    return bool(value == default) or (
        isinstance(value, EncodingSpec)
        and isinstance(default, EncodingSpec)
        and _show(value) == _show(default)
    )


def _show(value: Any) -> str:
    if isinstance(value, EncodingSpec):
        # As canonical as the rest of a label, colons between the options.
        return load(value.kind, value).label.replace(",", ":")
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.12g}" if isinstance(value, float) else str(value)
