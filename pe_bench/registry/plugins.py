"""Search, description and loading of encodings and tasks; the folders are the registry.

`--encoding rope:base=500000` means the single Encoding subclass of `encodings/rope.py`, built with
`base=500000.0`. `--encoding ./mine.py` or `./mine/` loads any file or folder; `package.module` or
`package.module:Class` loads a module that Python can import. Installed packages may declare names
in the entry points `pe_bench.encodings` and `pe_bench.tasks`. A hyphen in a name is an underscore
in the file. This module does not import torch before a plugin is loaded, so `pe-bench list` is
instant. A plugin that cannot be imported affects only runs that use it.
"""

import ast
import inspect
import re
import types
import typing
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, NoReturn

from pe_bench.errors import PACKAGE, PLUGINS, FaultyPlugin, InputError, as_exception, suggest
from pe_bench.registry import importing
from pe_bench.registry.attribute_types import check_attributes, check_counts
from pe_bench.registry.fingerprint import find_sources, fingerprint
from pe_bench.registry.importing import KINDS, Kind
from pe_bench.registry.options import (
    EncodingSpec,
    NestedSpec,
    TaskSpec,
    convert_options,
    members,
    option_of,
    plugin_options,
    show,
    split_spec,
)
from pe_bench.system.schema import is_line
from pe_bench.system.text import printable

__all__ = [
    "EncodingSpec",
    "Kind",
    "Plugin",
    "TaskSpec",
    "describe",
    "expand",
    "kinds_of",
    "load",
    "names",
    "path_of",
    "plugin_options",
]

WITHOUT_PARENT = ("Module.__init__()", "'_parameters'", "'_buffers'", "'_modules'")
"""Parts of torch's messages if the constructor of a module does not call its parent's."""

DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")
# Texts that cannot be names in labels.
UNUSABLE = re.compile(r"[:,=/\\\s.]*|.*[:,=\n].*", re.DOTALL)


@dataclass(frozen=True)
class Plugin:
    """A plugin's class with the options of its spec.

    Attributes:
        kind: "encoding" or "task".
        label: the canonical spec, used in every table: options in the constructor's order, without
            defaults, so that one setting has one label.
        options: keyword arguments of the constructor that differ from the defaults, converted to
            their annotated types.
        cls: the class.
        version: version of the code that determines the numbers. Results and checkpoints of another
            version are not used. It begins with a whole number, computed from the `version` of the
            class, of its parents and of the shipped plugins that it imports from. For a user's file
            follows a digest of its source (without comments and docstrings) and of files that its
            options name. If options name encodings, the versions of these follow after a `+`.
        file: the file of the class.
        given: the spec as the user wrote it, with the path of a file.
    """

    kind: Kind
    label: str
    options: dict[str, Any]
    cls: type[Any]
    version: str
    file: Path
    given: str

    @property
    def spec(self) -> str:
        """The canonical spec."""
        return self.label

    @property
    def starts_from_checkpoint(self) -> bool:
        """Whether its models are those of a pretrained checkpoint."""
        return False

    def make(self, model: Any, layer: int) -> Any:
        """Return an instance of an encoding with the spec's options.

        Raises:
            InputError: the encoding does not fit the model, or see `check_counts`.
            FaultyPlugin: its constructor does not call the constructor of its parent.
        """
        try:
            with as_exception():
                made = self.cls(model, layer, **self.options)
        except AttributeError as error:
            if not any(sign in str(error) for sign in WITHOUT_PARENT):
                raise
            made = None
        if "train_positions" not in getattr(made, "__dict__", {}):
            raise FaultyPlugin(
                f"{self.cls.__name__}.__init__ has to begin with super().__init__(model, layer)"
            )
        check_counts(made)
        made.made_from = self.spec
        return made

    def without_options(self) -> "Plugin":
        """Return the plugin with its default options."""
        return replace(self, options={})


def names(kind: Kind) -> list[str]:
    """Return the names of all shipped plugins of a kind, in alphabetical order.

    Raises:
        InputError: the folder is missing, as in a checkout without symbolic links.
    """
    return list(_names(PACKAGE / f"{kind}s", kind))


@cache  # the files of the package do not change while a process runs
def _names(folder: Path, kind: Kind) -> list[str]:
    if not folder.is_dir():
        raise InputError(
            f"{folder} must be a symbolic link to ../{folder.name}, but this copy has no such "
            "link: clone the repository with `git clone -c core.symlinks=true`, or create the link"
        )
    files = [path.stem for path in folder.glob("*.py")]
    folders = [path.parent.name for path in folder.glob(f"*/{kind}.py")]
    return sorted(stem.replace("_", "-") for stem in files + folders)


def names_of_all(kind: Kind) -> list[str]:
    """Return the names that "all" stands for in a grid.

    A name `<other>-<more>` is left out if `<other>` is shipped too: such a plugin adds options to
    `<other>`, and is the same without them.
    """
    every = names(kind)
    found = []
    for name in every:
        adds_options = any(name.startswith(f"{other}-") for other in every)
        if not adds_options:
            found.append(name)
    return found


def expand(specs: Sequence[str], kind: Kind) -> list[str]:
    """Return the distinct specs, with "all" replaced by the names that it stands for."""
    found: dict[str, None] = {}
    for spec in specs:
        found |= dict.fromkeys(names_of_all(kind) if spec == "all" else [spec])
    return list(found)


def path_of(kind: Kind, name: str) -> Path:
    """Return the file of a shipped plugin's class: `<name>.py`, or `<name>/<kind>.py`."""
    path = PACKAGE / f"{kind}s" / name.replace("-", "_")
    return path / f"{kind}.py" if path.is_dir() else path.with_suffix(".py")


def describe(kind: Kind, name: str) -> str:
    """Return the first paragraph of a shipped plugin's docstring, without importing it."""
    return describe_file(path_of(kind, name))


def describe_file(path: Path) -> str:
    """Return the first paragraph of a file's docstring, without importing it."""
    try:
        doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    except (OSError, SyntaxError, UnicodeDecodeError) as error:
        return f"(cannot be read: {error})"
    return doc.split("\n\n")[0].replace("\n", " ") if doc else "(no description)"


def kinds_of(where: str) -> list[Kind]:
    """Return the kinds of plugin that a name, file or folder contains: one, or none.

    Raises:
        InputError: a file cannot be imported.
    """
    path = Path(where)
    if not _is_path(where):
        named = [kind for kind in KINDS if where in [*names(kind), *importing.entry_points(kind)]]
        if named or not DOTTED.fullmatch(where):
            return named
        module, name = importing.import_dotted(where, "encoding")
        return [kind for kind in KINDS if importing.plugin_classes(kind, module, name)]
    if path.is_dir():
        return [kind for kind in KINDS if (path / f"{kind}.py").is_file()]
    module = importing.import_file(path)
    return [kind for kind in KINDS if importing.plugin_classes(kind, module)]


def load(kind: Kind, spec: str, preset: str = "") -> Plugin:
    """Return the plugin that a spec names, imported, with its options.

    Args:
        kind: "encoding" or "task".
        spec: "name", "path/to/file.py" or "path/to/folder/", each with or without
            ":key=value,key=value".
        preset: preset of a task; its options replace the constructor's defaults.

    Raises:
        InputError: unknown name or option, a value or class attribute of the wrong type, or an
            import that fails.
    """
    where, given = split_spec(spec)
    cls = _class_of(kind, where)
    check_attributes(cls, _interfaces(kind, cls), where)
    known = {p.name: p for p in plugin_options(cls)}
    _refer_to_related(kind, where, known, given)
    _refuse_positional(where, cls, known, given)
    options = convert_options(where, known, given)
    paths = _may_name_files(cls, known, options)
    defaults = {name: p.default for name, p in known.items()}
    if preset in getattr(cls, "presets", {}):
        of_preset = cls.presets[preset]
        if not hasattr(of_preset, "options"):
            raise InputError(f"{where}: presets['{preset}'] must be a Preset, not {of_preset!r}")
        defaults |= of_preset.options
    changed = {}
    shown = []
    for name, default in defaults.items():
        value = _canonical(options.get(name, default), preset)
        if value != _canonical(default, preset):
            changed[name] = options[name]
            shown.append(f"{option_of(name)}={show(value)}")
    label = _name(kind, where, cls)
    if shown:
        label += ":" + ",".join(shown)
    version = _version(cls, kind, where, {**defaults, **options}, paths)
    return Plugin(kind, label, changed, cls, version, _file_of(cls), spec)


def _is_path(where: str) -> bool:
    return where.endswith(".py") or "/" in where


def _class_of(kind: Kind, where: str) -> type[Any]:
    """Return the class for the name, path or dotted path of a spec.

    Raises:
        InputError: there is none, or it cannot be imported.
    """
    if where in names(kind) or _is_path(where):
        return importing.plugin_class(kind, _import(kind, where), where)
    if where not in importing.entry_points(kind) and not DOTTED.fullmatch(where):
        _refuse_unknown(kind, where)
    module, name = importing.import_dotted(where, kind)
    return importing.plugin_class(kind, module, where, name)


def _import(kind: Kind, where: str) -> types.ModuleType:
    """Return the module of a shipped plugin, a file or a folder.

    Raises:
        InputError: it cannot be imported.
    """
    if _is_path(where):
        path = Path(where)
        return importing.import_folder(path, kind) if path.is_dir() else importing.import_file(path)
    path = path_of(kind, where)
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return importing.import_shipped(path, ".".join(["pe_bench", *parts]))


def _refuse_unknown(kind: Kind, where: str) -> NoReturn:
    """Raise an InputError for an unknown name."""
    known = ", ".join([*names(kind), *importing.entry_points(kind)])
    listed = where.split(",")
    if len(listed) > 1 and set(listed) <= set(names(kind)):
        raise InputError(f"'{where}' contains several {kind}s: write {' '.join(listed)}")
    if not where:
        raise InputError(f"an empty spec names no {kind}; there are: {known}")
    hint = suggest(where, names(kind))
    if Path(where).is_dir():
        hint = f" (for the folder write ./{where}/)"
    raise InputError(
        f"there is no {kind} '{where}'{hint}; there are: {known}, or give a path that ends in .py, "
        "or package.module"
    )


def _refer_to_related(
    kind: Kind, where: str, known: Mapping[str, Any], given: Mapping[str, str]
) -> None:
    """Refuse an option that only a shipped extension of this plugin has.

    Raises:
        InputError: there is such an extension; the message names it.
    """
    for key in given:
        for name in names(kind) if key not in known else ():
            if name.startswith(f"{where}-"):
                cls = importing.plugin_class(kind, _import(kind, name), name)
                if any(option.name == key for option in plugin_options(cls)):
                    raise InputError(
                        f"{where} has no option '{key}': write {name}:{key}={given[key]}"
                    )


def _refuse_positional(
    where: str, cls: type[Any], known: Mapping[str, Any], given: Mapping[str, str]
) -> None:
    """Refuse an option that is a parameter of the constructor, but not keyword-only.

    Raises:
        InputError: there is such a parameter; the message says how to make it an option.
    """
    parameters = inspect.signature(cls.__init__).parameters
    for key in given:
        if key in parameters and key not in known and key not in ("self", "model", "layer"):
            raise InputError(
                f"{where}: {key} is not an option, as it is not keyword-only: write * before it in "
                f"{cls.__name__}.__init__"
            )


def _name(kind: Kind, where: str, cls: type[Any]) -> str:
    """Return a plugin's name in tables.

    Raises:
        InputError: it equals the name of a shipped plugin.
    """
    if where in names(kind):
        return where
    path = Path(where)
    name = path.resolve().name if path.is_dir() else path.name
    if kind == "encoding" and vars(cls).get("name"):
        name = str(vars(cls)["name"])
        usable = not UNUSABLE.fullmatch(name)
    else:
        usable = True
    if not usable or not is_line(name):
        raise InputError(
            f"{printable(where)}: the name '{printable(name)}' must have a letter or digit, and "
            "no colon, comma, equals sign or control character"
        )
    if name.replace("_", "-") in names(kind):
        raise InputError(f"{where}: '{name}' is the name of a shipped {kind}: give another name")
    return name


def _canonical(value: Any, preset: str) -> Any:
    """Return the canonical form of a value: the label of a named plugin."""
    if isinstance(value, NestedSpec):
        kind: Kind = "task" if isinstance(value, TaskSpec) else "encoding"
        return type(value)(load(kind, value, preset).label.replace(",", ":"))
    return value


def _version(
    cls: type[Any],
    kind: Kind,
    where: str,
    options: Mapping[str, Any],
    paths: Container[str],
) -> str:
    """Return the version of the code, and of the encodings and files that options name.

    Args:
        cls, kind, where: the plugin.
        options: all options with their values.
        paths: names of the options that may name files.
    """
    classes = dict.fromkeys(_ancestors(kind, cls))
    sources = find_sources([_file_of(c) for c in classes if _is_plugin(c)], PACKAGE)
    for folder, name in sources.shipped:
        other: Kind = "encoding" if folder == "encodings" else "task"
        imported = importing.plugin_class(other, _import(other, name), name)
        classes |= dict.fromkeys(_ancestors(other, imported))
    # A sum instead of a list: splitting or joining code does not change its version.
    number = 1 + sum(vars(c).get("version", 1) - 1 for c in classes)
    own = sources.own
    parts = []
    for name, value in options.items():
        if isinstance(value, NestedSpec) or name not in paths:
            continue  # encodings are handled below; a task is part of the settings
        if isinstance(value, str | Path) and len(str(value)) < 256 and Path(value).is_file():
            parts.append(importing.digest_of(Path(value)))
    if _is_path(where) and Path(where).is_dir():
        inner = importing.files_of(Path(where).resolve())
        own += [path for path in inner if path.suffix == ".py" and path not in own]
        parts += [importing.digest_of(path) for path in inner if path.suffix != ".py"]
    versions = [f"{number}-{fingerprint(own, parts)}" if own or parts else str(number)]
    for value in options.values():
        if isinstance(value, EncodingSpec):
            versions.append(load("encoding", value).version)
    return "+".join(versions)


def _may_name_files(
    cls: type[Any], known: Mapping[str, inspect.Parameter], given: Container[str]
) -> set[str]:
    """Return the options whose values may be files: given ones, paths, and those of a user's class.

    Options with fixed choices never name files.
    """
    found = set()
    for name, option in known.items():
        kinds = members(option.annotation)
        has_choices = any(typing.get_origin(kind) is Literal for kind in kinds)
        if not has_choices and (name in given or Path in kinds or not is_shipped(cls)):
            found.add(name)
    return found


def _ancestors(kind: Kind, cls: type[Any]) -> list[type[Any]]:
    """Return a class and its ancestors below the interface."""
    base = importing.interface(kind)
    return [c for c in cls.__mro__ if issubclass(c, base) and c.__module__ != base.__module__]


def _interfaces(kind: Kind, cls: type[Any]) -> list[type[Any]]:
    """Return the interface of a class and the engine's extensions of it that it inherits from."""
    base = importing.interface(kind)
    return [c for c in cls.__mro__ if issubclass(c, base) and not _is_plugin(c)]


def is_shipped(cls: type[Any]) -> bool:
    """Return whether a class belongs to a plugin of this package."""
    parts = cls.__module__.split(".")
    return parts[0] == "pe_bench" and parts[1] in PLUGINS


def _is_plugin(cls: type[Any]) -> bool:
    """Return whether a class belongs to a plugin, not to the engine."""
    parts = cls.__module__.split(".")
    return parts[0] != "pe_bench" or parts[1] in PLUGINS


def _file_of(cls: type[Any]) -> Path:
    return Path(inspect.getsourcefile(cls) or "")
