"""Loading of encodings and tasks.

`--encoding rope:base=500000` means the single Encoding subclass of `encodings/rope.py`, built with
`base=500000.0`. `--encoding ./mine.py` or `./mine/` loads any file or folder; `package.module` or
`package.module:Class` loads a module that Python can import. Installed packages may declare names
in the entry points `pe_bench.encodings` and `pe_bench.tasks`. A plugin that cannot be imported
affects only runs that use it.
"""

import contextlib
import inspect
import re
import typing
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NoReturn

from pe_bench.errors import FaultyPlugin, InputError, as_exception, suggest
from pe_bench.registry import catalogue, importing
from pe_bench.registry.attribute_types import check_attributes, check_counts
from pe_bench.registry.constructors import (
    check_constructor,
    check_required,
    refuse_positional,
)
from pe_bench.registry.importing import KINDS, Kind, is_path
from pe_bench.registry.options import (
    TABLES,
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
from pe_bench.registry.versions import file_of, is_plugin, is_shipped, version_of
from pe_bench.system.schema import is_line
from pe_bench.system.text import printable

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
    def uses_files(self) -> bool:
        """Whether its version contains the digest of a user's file, see `version_of`."""
        return "-" in self.version

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


def kinds_of(where: str) -> list[Kind]:
    """Return the kinds of plugin that a name, file or folder contains: one, or none.

    Raises:
        InputError: a file cannot be imported, or has no plugin.
    """
    path = Path(where)
    if not is_path(where):
        named = [kind for kind in KINDS if where in _known_names(kind)]
        if named or not DOTTED.fullmatch(where):
            return named
        module, name = importing.import_dotted(where, "encoding")
        return [kind for kind in KINDS if importing.plugin_classes(kind, module, name)]
    if path.is_dir():
        return [kind for kind in KINDS if (path / f"{kind}.py").is_file()]
    module = importing.import_file(path)
    found: list[Kind] = [kind for kind in KINDS if importing.plugin_classes(kind, module)]
    if not found:
        raise InputError(f"{where} must define a public subclass of Encoding or Task; it has none")
    return found


def kind_of(where: str, words: Sequence[str] = ()) -> Kind:
    """Return whether a name, file or folder is an encoding or a task.

    Args:
        where: the name or path, without options.
        words: other words that the user could have meant.

    Raises:
        InputError: it is neither.
    """
    kinds = kinds_of(where)
    if kinds:
        return kinds[0]
    known = [*words]
    for kind in KINDS:
        known += catalogue.names(kind)
    hint = _suggest_option("encoding", where) or suggest(where, known)
    raise InputError(
        f"there is no encoding or task '{where}'{hint}; see pe-bench list, or give the path of a "
        "file with one"
    )


def load(kind: Kind, spec: str, preset: str = "", *, complete: bool = True) -> Plugin:
    """Return the plugin that a spec names, imported, with its options.

    Args:
        kind: "encoding" or "task".
        spec: "name", "path/to/file.py" or "path/to/folder/", each with or without
            ":key=value,key=value".
        preset: preset of a task; its options replace the constructor's defaults.
        complete: whether every option without a default needs a value.

    Raises:
        InputError: unknown name or option, a value or class attribute of the wrong type, or an
            import that fails.
    """
    where, given = split_spec(spec)
    cls = _class_of(kind, where)
    check_attributes(cls, _interfaces(kind, cls), where)
    check_constructor(kind, cls)
    known = {p.name: p for p in plugin_options(cls)}
    _refer_to_related(kind, where, known, given)
    refuse_positional(where, cls, known, given)
    options = convert_options(where, known, given)
    paths = _may_name_files(cls, known, options)
    defaults = {name: p.default for name, p in known.items()}
    has_preset = preset in getattr(cls, "presets", {})
    if has_preset:
        of_preset = cls.presets[preset].options
        refuse_positional(where, cls, known, of_preset)
        for name in of_preset:
            if name not in known:
                option = option_of(name)
                hint = suggest(option, list(map(option_of, known)))
                raise InputError(
                    f"{where}: presets['{preset}'] sets the option '{option}', which does not exist"
                    f"{hint}"
                )
        defaults |= of_preset
    every = {**defaults, **options}
    # A preset may give what the constructor requires.
    if complete and (kind == "encoding" or has_preset):
        check_required(where, cls, every)
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
    nested = [value for value in every.values() if isinstance(value, EncodingSpec)]
    versions = [version_of(cls, kind, where, every, paths)]
    versions += [load("encoding", value).version for value in nested]
    return Plugin(kind, label, changed, cls, "+".join(versions), file_of(cls), spec)


def _class_of(kind: Kind, where: str) -> type[Any]:
    """Return the class for the name, path or dotted path of a spec.

    Raises:
        InputError: there is none, or it cannot be imported.
    """
    if where in catalogue.names(kind):
        return importing.plugin_class(kind, catalogue.import_plugin(kind, where), where)
    if is_path(where):
        path = Path(where)
        if path.is_dir():
            imported = importing.import_folder(path, kind)
        else:
            imported = importing.import_file(path)
        return importing.plugin_class(kind, imported, where)
    if where not in importing.entry_points(kind) and not DOTTED.fullmatch(where):
        _refuse_unknown(kind, where)
    module, name = importing.import_dotted(where, kind)
    return importing.plugin_class(kind, module, where, name)


def _known_names(kind: Kind) -> list[str]:
    """Return the names of the shipped plugins, then those of installed packages."""
    return [*catalogue.names(kind), *importing.entry_points(kind)]


def _refuse_unknown(kind: Kind, where: str) -> NoReturn:
    """Raise an InputError for an unknown name."""
    known = ", ".join(_known_names(kind))
    listed = [name.lower() for name in where.split(",") if name]
    if listed and "," in where and set(listed) <= set(catalogue.names(kind)):
        raise InputError(f"{kind}s are separated by spaces, as in {' '.join(listed)}")
    if not where:
        raise InputError(f"an empty spec names no {kind}; there are: {known}")
    hint = _suggest_option(kind, where) or suggest(where.lower(), catalogue.names(kind))
    with contextlib.suppress(OSError):  # the name may be too long for a file
        if Path(where).is_dir():
            hint = f" (for the folder write ./{where}/)"
        elif Path(f"{where}.py").is_file():
            hint = f" (for the file write ./{where}.py)"
    if hint:
        raise InputError(f"there is no {kind} '{where}'{hint}; see pe-bench list")
    raise InputError(
        f"there is no {kind} '{where}'; there are: {known}, or give a path that ends in .py, "
        "or package.module"
    )


def _suggest_option(kind: Kind, where: str) -> str:
    """Return a suggestion if a name is a value of a shipped plugin's option, else "".

    For example, YaRN is `rope:scaling=yarn`.
    """
    for name in catalogue.names(kind):
        if TABLES not in catalogue.path_of(kind, name).read_text(encoding="utf-8"):
            continue  # importing all plugins takes seconds
        cls = importing.plugin_class(kind, catalogue.import_plugin(kind, name), name)
        for option, table in vars(cls).get(TABLES, {}).items():
            default = next(one.default for one in plugin_options(cls) if one.name == option)
            if where.lower() in table and where.lower() != default:
                return f" (did you mean '{name}:{option}={where.lower()}'?)"
    return ""


def _refer_to_related(
    kind: Kind, where: str, known: Mapping[str, Any], given: Mapping[str, str]
) -> None:
    """Refuse an option that only a shipped extension of this plugin has.

    Raises:
        InputError: there is such an extension; the message names it.
    """
    for key in given:
        for name in catalogue.names(kind) if key not in known else ():
            if name.startswith(f"{where}-"):
                cls = importing.plugin_class(kind, catalogue.import_plugin(kind, name), name)
                if any(option.name == key for option in plugin_options(cls)):
                    raise InputError(
                        f"{where} has no option '{key}': write {name}:{key}={given[key]}"
                    )


def _name(kind: Kind, where: str, cls: type[Any]) -> str:
    """Return a plugin's name in tables.

    Raises:
        InputError: it equals the name of a shipped plugin.
    """
    if where in catalogue.names(kind):
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
    if name.replace("_", "-") in catalogue.names(kind):
        raise InputError(f"{where}: '{name}' is the name of a shipped {kind}: give another name")
    return name


def _canonical(value: Any, preset: str) -> Any:
    """Return the canonical form of a value: the label of a named plugin."""
    if isinstance(value, NestedSpec):
        kind: Kind = "task" if isinstance(value, TaskSpec) else "encoding"
        return type(value)(load(kind, value, preset).label.replace(",", ":"))
    return value


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


def _interfaces(kind: Kind, cls: type[Any]) -> list[type[Any]]:
    """Return the interface of a class and the engine's extensions of it that it inherits from."""
    base = importing.interface(kind)
    return [c for c in cls.__mro__ if issubclass(c, base) and not is_plugin(c)]
