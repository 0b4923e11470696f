"""The packages import each other in one direction only, and quick commands import little."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "pe_bench"

# From the lowest layer up. A unit imports from units on earlier lines only, and from itself.
LEVELS = [
    {"errors"},
    {"option_table"},
    {"system", "config", "visibility", "batch"},
    {"results", "registry", "positions", "random_ids"},
    {"stats"},
    {"encoding"},
    {"layers"},
    {"wrapper", "decoder", "text"},
    {"train"},  # knows no task
    {"task", "pretrained"},
    {"sequences", "checks"},
    {"runs"},
    {"grid", "reporting"},
    {"commands"},
    {"api"},
    {"cli", "python_api"},
    {"__init__", "__main__"},
]
LEVEL = {unit: level for level, units in enumerate(LEVELS) for unit in units}
PLUGINS = ("encodings", "tasks")


def engine() -> list[Path]:
    """Return every file of the engine, without the linked folders of plugins."""
    found = PACKAGE.rglob("*.py")
    return sorted(path for path in found if path.relative_to(PACKAGE).parts[0] not in PLUGINS)


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def imported(source: str) -> set[str]:
    """Return every module that a file imports, and imported names that may be modules."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def units(source: str) -> set[str]:
    """Return the units of the engine that a file imports: top-level modules and packages."""
    parts = [name.split(".") for name in imported(source)]
    return {p[1] for p in parts if p[0] == "pe_bench" and len(p) > 1 and p[1] != "__version__"}


def modules(path: Path) -> set[str]:
    """Return the imported modules of the file's package."""
    package = ".".join(path.relative_to(ROOT).parent.parts)
    names = imported(read(path))
    inner = [name.removeprefix(f"{package}.") for name in names if name.startswith(f"{package}.")]
    return {name.partition(".")[0] for name in inner}


def test_every_unit_has_a_level() -> None:
    present = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in engine()}
    assert present == set(LEVEL)


@pytest.mark.slow
def test_arrows_run_one_way() -> None:
    for path in engine():
        own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        used = units(read(path))
        assert used.isdisjoint(PLUGINS), f"{path} of the engine imports a plugin"
        wrong = {unit for unit in used - {own} if LEVEL[unit] >= LEVEL[own]}
        assert not wrong, f"{path} of {own} may not import {', '.join(sorted(wrong))}"


def plugin_files() -> list[Path]:
    """Return every file of the shipped plugins and of the examples."""
    folders = [ROOT / folder for folder in (*PLUGINS, "examples")]
    return sorted(path for folder in folders for path in folder.rglob("*.py"))


@pytest.mark.slow
def test_plugins_import_the_public_interface_only() -> None:
    for path in plugin_files():
        wrong = units(read(path)) - {"api", path.relative_to(ROOT).parts[0]}
        assert not wrong, f"{path}: import from pe_bench.api, not from {', '.join(sorted(wrong))}"


@pytest.mark.slow
def test_shipped_code_patches_nothing() -> None:
    for path in (*engine(), *plugin_files()):
        assert "unittest" not in {name.partition(".")[0] for name in imported(read(path))}, path


def test_encodings_read_no_files() -> None:
    """A run is identified by its spec, which would not change with a file."""
    readers = {"pathlib", "os", "io", "importlib"}
    for path in plugin_files():
        if path.relative_to(ROOT).parts[0] == "encodings":
            source = read(path)
            assert not readers & {name.partition(".")[0] for name in imported(source)}, path
            assert "open(" not in source, path


@pytest.mark.slow
def test_no_circle_within_a_package() -> None:
    packages = {path.parent for path in engine()} - {PACKAGE}
    for package in packages:
        waiting = {path.stem: modules(path) for path in package.glob("*.py")}
        waiting = {name: used & set(waiting) - {name} for name, used in waiting.items()}
        while free := {name for name, used in waiting.items() if not used}:
            waiting = {name: used - free for name, used in waiting.items() if name not in free}
        assert not waiting, f"{package.name}: {', '.join(waiting)} import each other"


@pytest.mark.slow
def test_reporting_never_imports_torch() -> None:
    units = ("reporting", "results", "stats", "system")
    light = [path for path in engine() if path.relative_to(PACKAGE).parts[0] in units]
    for path in light:
        names = {name.partition(".")[0] for name in imported(read(path))}
        assert path.name == "environment.py" or "torch" not in names, path


QUICK = (
    "list",
    "list tasks",
    "run --help",
    "report --results {0}",
    "export {0}/a.csv --results results/efficiency",
    "merge results/efficiency --results {0}",
)


PLAN = "run --encoding rope tape fire --task flipflop --dry-run --results {0}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("commands", "heavy"),
    [(QUICK, ("torch", "datasets")), ((PLAN,), ("lightning", "datasets", "torch._dynamo"))],
)
def test_quick_commands_import_nothing_that_takes_seconds(
    tmp_path: Path, commands: tuple[str, ...], heavy: tuple[str, ...]
) -> None:
    arguments = [command.format(tmp_path).split() for command in commands]
    program = (
        "import sys\n"
        "from pe_bench.cli import main\n"
        f"for arguments in {arguments!r}:\n"
        "    try:\n"
        "        main(arguments)\n"
        "    except SystemExit:\n"
        "        pass\n"
        f"    print('HEAVY', arguments, *set({heavy!r}) & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    found = [line for line in done.stdout.splitlines() if line.startswith("HEAVY")]
    assert found == [f"HEAVY {each}" for each in arguments]


def test_the_rules_can_be_broken() -> None:
    assert units("def f():\n    from pe_bench.runs.run import Cell") == {"runs"}
    assert units("import pe_bench.tasks.probes") == {"tasks"}
    assert units("from pe_bench import cli, __version__") == {"cli"}
