"""Import of plugins: shipped ones by name, others by the path of a file or folder, or dotted."""

import hashlib
import importlib
import importlib.machinery
import importlib.metadata
import importlib.util
import re
import sys
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Literal, TypeVar

from pe_bench.errors import InputError, as_exception
from pe_bench.registry.torch_settings import ChangedTorch, keeping_torch_settings

Kind = Literal["encoding", "task"]

Module = TypeVar("Module", types.ModuleType, types.ModuleType | None)

KINDS: tuple[Kind, ...] = ("encoding", "task")
BASES = {"encoding": ("pe_bench.encoding", "Encoding"), "task": ("pe_bench.task", "Task")}


def is_path(where: str) -> bool:
    """Return whether the first part of a spec is the path of a file or folder, not a name."""
    return where.endswith(".py") or "/" in where


def import_shipped(path: Path, module: str) -> types.ModuleType:
    """Return a module of the package.

    Args:
        path: path of the module's file.
        module: dotted name of the module.

    Raises:
        InputError: the module cannot be imported.
    """
    return _importing(path, lambda: importlib.import_module(module))


_trusted: ContextVar[frozenset[Path] | None] = ContextVar("_trusted", default=None)


@contextmanager
def trusting_only(*specs: str | None) -> Iterator[None]:
    """Import only shipped files and the files that these specs name within the context."""
    paths: set[Path] = set()
    for spec in specs:
        if spec is not None:
            paths |= {Path(spec).resolve(), Path(spec.replace(":", ".")).resolve()}
    before = _trusted.set(frozenset(paths))
    try:
        yield
    finally:
        _trusted.reset(before)


def _check_trusted(path: Path) -> None:
    trusted = _trusted.get()
    if trusted is not None and path.resolve() not in trusted:
        raise InputError(
            f"the record names code in {path}, which is run only if you give it: --encoding FILE "
            "or --task FILE"
        )


def import_file(path: Path) -> types.ModuleType:
    """Return the module of any file.

    Raises:
        InputError: there is no such file, or it cannot be imported.
    """
    if not path.is_file():
        raise InputError(f"there is no file {path}: give the path of an existing plugin file")
    _check_trusted(path)
    name = _module_name(path, [path])

    def run() -> types.ModuleType:
        return _load(name, importlib.util.spec_from_file_location(name, path))

    return sys.modules.get(name) or _importing(path, run)


def import_folder(folder: Path, kind: Kind) -> types.ModuleType:
    """Return the module `<kind>.py` of any folder. It may import other modules in the folder.

    Raises:
        InputError: there is no such file, or it cannot be imported.
    """
    path = folder / f"{kind}.py"
    if not path.is_file():
        raise InputError(f"there is no file {path}: a folder with a plugin has a {kind}.py")
    _check_trusted(folder)
    name = _module_name(folder, files_of(folder))

    def run() -> types.ModuleType:
        if name not in sys.modules:
            package = importlib.machinery.ModuleSpec(name, None, is_package=True)
            package.submodule_search_locations = [str(folder.resolve())]
            sys.modules[name] = importlib.util.module_from_spec(package)
        importlib.invalidate_caches()
        return importlib.import_module(f"{name}.{kind}")

    return _importing(folder.resolve(), run)


def entry_points(kind: Kind) -> dict[str, str]:
    """Return the dotted paths of plugins declared by installed packages, by the plugin's name."""
    found = importlib.metadata.entry_points(group=f"pe_bench.{kind}s")
    return {entry.name: entry.value.replace(":", ".") for entry in found}


def import_dotted(where: str, kind: Kind) -> tuple[types.ModuleType, str | None]:
    """Return the module of a dotted path, and the name of the class at its end, if there is one.

    Args:
        where: "package.module", "package.module.Class", or the name of an entry point.
        kind: kind of the plugin.

    Raises:
        InputError: there is no such module or class, or the module cannot be imported.
    """
    dotted = entry_points(kind).get(where, "")
    if not dotted:
        dotted = where
        _check_trusted(Path(where))
    path = Path(*dotted.split("."))
    above, _, last = dotted.rpartition(".")
    module = _importing(path, lambda: _find_module(dotted))
    if module is not None:
        return module, None
    module = _importing(path.parent, lambda: _find_module(above))
    if module is None:
        raise InputError(
            f"Python finds no module '{dotted}' and no module '{above}': install the package of "
            f"the {kind}, put its folder on PYTHONPATH, or give the path of the file"
        )
    if not isinstance(getattr(module, last, None), type):
        raise InputError(f"the module '{above}' has neither a module nor a class '{last}'")
    return module, last


def _find_module(name: str) -> types.ModuleType | None:
    """Return a module; None: it does not exist. A module whose imports fail is an error instead."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and f"{name}.".startswith(f"{error.name}."):
            return None
        raise


def files_of(folder: Path) -> list[Path]:
    """Return all files of a plugin's folder in a fixed order, without hidden and compiled ones."""
    found = []
    for path in sorted(folder.rglob("*")):
        inner = path.relative_to(folder).parts
        hidden = any(part.startswith(".") or part == "__pycache__" for part in inner)
        if path.is_file() and not hidden:
            found.append(path)
    return found


def plugin_class(
    kind: Kind, module: types.ModuleType, where: str, name: str | None = None
) -> type[Any]:
    """Return the one public subclass of `Encoding` or `Task` that a module defines.

    Args:
        kind: "encoding" or "task".
        module: the module.
        where: the user's input, for messages.
        name: name of the class; None: the module must define exactly one.

    Raises:
        InputError: it defines none, or several.
    """
    found = plugin_classes(kind, module, name)
    if len(found) == 1:
        return found[0]
    (other,) = (name for name in KINDS if name != kind)
    if not found and len(plugin_classes(other, module)) == 1:
        raise InputError(f"{where} defines {_article(other)}, not {_article(kind)}")
    has = ", ".join(cls.__name__ for cls in found) or "none"
    raise InputError(
        f"{where} must define exactly one public subclass of {BASES[kind][1]}; it has {has}"
    )


def plugin_classes(
    kind: Kind, module: types.ModuleType, name: str | None = None
) -> list[type[Any]]:
    """Return the public subclasses of `Encoding` or `Task` that a module defines.

    With a name, return only the class with that name; it may be defined in another module.
    """
    base = interface(kind)
    if name is not None:
        named: type[Any] = getattr(module, name)
        return [named] if issubclass(named, base) else []
    found: dict[type[Any], None] = {}  # an ordered set, since a class may have an alias
    for name, value in vars(module).items():
        if name.startswith("_") or not isinstance(value, type):
            continue
        if issubclass(value, base) and value.__module__ == module.__name__:
            found[value] = None
    return list(found)


def interface(kind: Kind) -> type[Any]:
    """Return `Encoding` or `Task`. This imports torch."""
    module, name = BASES[kind]
    base: type[Any] = getattr(importlib.import_module(module), name)
    return base


def digest_of(path: Path) -> str:
    """Return twelve hexadecimal digits of the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]


def _module_name(path: Path, files: Sequence[Path]) -> str:
    """Return a name that depends on path and content, so that an edited file is another module."""
    digest = hashlib.sha256(bytes(path.resolve()))
    for file in files:
        digest.update(bytes(file.relative_to(path)) + file.read_bytes())
    stem = re.sub(r"[^0-9A-Za-z_]", "_", path.resolve().stem)
    return f"pe_bench_user_{stem}_{digest.hexdigest()[:8]}"


def _load(name: str, spec: importlib.machinery.ModuleSpec | None) -> types.ModuleType:
    assert spec is not None and spec.loader is not None  # the name ends in .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look up the module of a class there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _importing(where: Path, run: Callable[[], Module]) -> Module:
    """Return the module that `run` imports; convert exceptions to one sentence with the line.

    Args:
        where: file or folder of the plugin.
        run: function that imports the module.

    Raises:
        InputError: the module cannot be imported.
    """
    before = set(sys.modules)
    try:
        with keeping_torch_settings(str(where)):
            return _import_or_explain(where, run)
    except ChangedTorch:
        for name in set(sys.modules) - before:
            file = getattr(sys.modules[name], "__file__", None)
            if file and Path(file).is_relative_to(where.absolute()):
                del sys.modules[name]  # otherwise the next import would find it
        raise


def _import_or_explain(where: Path, run: Callable[[], Module]) -> Module:
    try:
        with as_exception():
            return run()
    except (Exception, SystemExit) as error:
        path = where.absolute()
        frames = traceback.extract_tb(error.__traceback__)
        inner = [f for f in frames if Path(f.filename).absolute().is_relative_to(path)]
        line = inner[-1].lineno if inner else getattr(error, "lineno", None)
        file = inner[-1].filename if inner else getattr(error, "filename", None)
        if path.is_dir() and file:
            where = Path(file)
        at = f", line {line}" if line else ""
        message = error.msg if isinstance(error, SyntaxError) else error
        reason = " ".join(str(message).split())
        advice = "correct that file"
        if isinstance(error, ModuleNotFoundError) and (where.parent / f"{error.name}.py").is_file():
            advice = (
                f"put it and {error.name}.py into a folder with an __init__.py, which imports "
                f"the encoding, write `from . import {error.name}`, and give the folder"
            )
        raise InputError(
            f"{where} cannot be imported ({type(error).__name__}: {reason}{at}): {advice}"
        ) from error


def _article(kind: Kind) -> str:
    return f"an {kind}" if kind == "encoding" else f"a {kind}"
