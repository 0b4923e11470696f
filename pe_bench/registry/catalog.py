"""What `pe-bench list encodings` says of each encoding, read from its file without importing it."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pe_bench.registry import plugins

# Where a hook lets positions in, in the order of a forward pass.
PLACES = {
    "positions": "ids",
    "embed": "embeddings",
    "transform_qk": "q and k",
    "separable_bias": "bias",
    "bias": "bias",
    "rewrite_logits": "logits",
    "extra_values": "values",
    "update_state": "state",
}
SOURCE = re.compile(r"(?P<what>.*?) \((?P<paper>[^()]*?) (?P<year>\d{4})(?P<where>, [^()]*)?\)\.?")


@dataclass(frozen=True)
class Card:
    """One encoding at a glance.

    Attributes:
        what: what it does, in a line.
        paper: its authors, and where to find it.
        year: of the paper.
        acts_on: the places where positions come in.
        parameters: their number per layer under the default options.
        prefix_consistent, shift_invariant: "yes", "no" or "by option".
    """

    name: str
    what: str
    paper: str
    year: str
    acts_on: str
    parameters: str
    prefix_consistent: str
    shift_invariant: str


def card(name: str) -> Card:
    """The card of a shipped encoding. What cannot be read is left empty."""
    line = plugins.describe("encoding", name)
    source = SOURCE.fullmatch(line)
    what, paper, year = (line, "", "")
    if source:
        what, year = source["what"], source["year"]
        paper = source["paper"] + (source["where"] or "")
    path = plugins.path_of("encoding", name)
    lineage = list(_lineage(path, None))
    classes = [cls for _, cls in lineage]
    folder = plugins.PACKAGE / "encodings"
    own = [cls for file, cls in lineage if file.is_relative_to(folder)]  # not what hands hooks on
    hooks = {m.name for cls in own for m in cls.body if isinstance(m, ast.FunctionDef)}
    places = dict.fromkeys(place for hook, place in PLACES.items() if hook in hooks)
    return Card(
        name,
        what,
        paper,
        year,
        ", ".join(places) or "nothing",
        _attribute(classes, "parameters_per_layer", "0"),
        _fact(classes, "prefix_consistent", True),
        _fact(classes, "shift_invariant", False),
    )


def table(names: list[str]) -> str:
    """The cards, a line each."""
    head = ("name", "what it does", "paper", "year", "acts on", "parameters per layer")
    rows = [(*head, "prefix-consistent", "shift-invariant")]
    for name in names:
        c = card(name)
        facts = (c.prefix_consistent, c.shift_invariant)
        rows.append((c.name, c.what, c.paper, c.year, c.acts_on, c.parameters, *facts))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return "\n".join(lines)


def manual(kind: plugins.Kind, name: str) -> str:
    """All that a shipped plugin's file says to its users: docstrings, options with defaults."""
    path = plugins.path_of(kind, name)
    classes = [cls for _, cls in _lineage(path, None)]
    interface, name_of_interface = plugins.BASES[kind]
    classes += _classes(plugins.PACKAGE / f"{interface.partition('.')[2]}.py", name_of_interface)
    parts = [f"{name}: {plugins.describe(kind, name)}", ast.get_docstring(classes[0]) or ""]
    for cls in classes:
        constructor = next((m for m in cls.body if getattr(m, "name", "") == "__init__"), None)
        if not isinstance(constructor, ast.FunctionDef):
            continue
        given = constructor.args
        if options := [
            f"  {arg.arg}: {ast.unparse(arg.annotation)} = {ast.unparse(default)}"
            for arg, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)
            if arg.annotation and default
        ]:
            parts.append("\n".join([f"Options of {cls.name}:", *options]))
        if not given.kwarg:
            break
    return "\n\n".join(filter(None, parts))


def _classes(file: Path, name: str) -> list[ast.ClassDef]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == name]


def _lineage(file: Path, name: str | None) -> Iterator[tuple[Path, ast.ClassDef]]:
    """A class and its ancestors in the project, each with its file, the nearest first.

    None is the only public one of the file. The interface, at the end, is not among them.
    """
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, UnicodeDecodeError):
        return
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    imports = {
        alias.asname or alias.name: (node.module or "", alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    if name is None:
        name = next((n for n, c in classes.items() if c.bases and n[0] != "_"), "")
    if name not in classes:
        return
    yield file, classes[name]
    for base in classes[name].bases:
        if not isinstance(base, ast.Name):
            continue
        if base.id in classes:
            yield from _lineage(file, base.id)
            continue
        module, original = imports.get(base.id, ("", ""))
        package, *rest = module.split(".")
        if package == plugins.PACKAGE.name and rest != ["encoding"]:
            place = plugins.PACKAGE.joinpath(*rest)
            file = place / "encoding.py" if place.is_dir() else place.with_suffix(".py")
            yield from _lineage(file, original)


def _attribute(classes: list[ast.ClassDef], name: str, default: str) -> str:
    for cls in classes:
        for node in cls.body:
            targets = node.targets if isinstance(node, ast.Assign) else []
            if isinstance(node, ast.AnnAssign):
                targets = [node.target]
            if any(isinstance(t, ast.Name) and t.id == name for t in targets):
                value = getattr(node, "value", None)
                return str(value.value) if isinstance(value, ast.Constant) else ""
    return default


def _fact(classes: list[ast.ClassDef], name: str, default: bool) -> str:
    for cls in classes:
        stored = [n for n in ast.walk(cls) if isinstance(n, ast.Attribute) and n.attr == name]
        if any(isinstance(node.ctx, ast.Store) for node in stored):
            return "by option"
        if value := _attribute([cls], name, ""):
            return {"True": "yes", "False": "no"}[value]
    return "yes" if default else "no"
