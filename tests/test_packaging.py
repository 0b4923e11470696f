"""The shipped files: the wheel, the links, the pins, and a folder with a special name."""

import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from pe_bench.cli import main
from pe_bench.registry import catalogue
from pe_bench.registry.importing import Kind

ROOT = Path(__file__).parents[1]
SOURCE = (
    ".gitignore",
    "pyproject.toml",
    "setup.py",
    "README.md",
    "LICENSE",
    "pe_bench",
    "encodings",
    "tasks",
)
RESULTS = ("records.json", "rows.csv.gz", "items.parquet", "curves.parquet", "grid.toml")
DATA = {
    "pe_bench/py.typed",
    "pe_bench/reporting/page/charts.js",
    "pe_bench/reporting/page/page.css",
    "pe_bench/reporting/page/page.js",
    "pe_bench/reporting/page/downloads.js",
    "pe_bench/reporting/page/templates/macros.html",
    "pe_bench/reporting/page/templates/page.html",
    "pe_bench/reporting/page/vendor/LICENSES.txt",
    "pe_bench/reporting/page/vendor/d3.min.js",
    "pe_bench/reporting/page/vendor/plot.umd.min.js",
    "pe_bench/reporting/known_problems.csv",
    "pe_bench/reporting/families.csv",
    "pe_bench/reporting/published.csv",
    "pe_bench/system/built_from.json",
    "pe_bench/text/python-v1/LICENSE.txt",
    "pe_bench/text/python-v1/README.md",
    "pe_bench/text/python-v1/test.jsonl.gz",
    "pe_bench/text/python-v1/train.jsonl.gz",
}
AUTHOR = "-c user.name=author -c user.email=author@example.org"
LINKS = (("pe_bench", "encodings"), ("pe_bench", "tasks"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def python(*args: str | Path, path: Path | None = None, cwd: Path | None = None) -> str:
    """Return the output of a fresh interpreter with an additional folder on its path."""
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    if path:
        env["PYTHONPATH"] = str(path)
    command = [sys.executable, *map(str, args)]
    done = subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def copy_source(target: Path) -> Path:
    """Copy the source files, and links as links."""
    target.mkdir()
    for path in (ROOT / "results").glob("*/records.json"):
        shutil.copytree(path.parent, target / "results" / path.parent.name)
    skip = shutil.ignore_patterns("__pycache__")
    for name in SOURCE:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target / name, symlinks=True, ignore=skip)
        else:
            shutil.copy2(ROOT / name, target / name)
    return target


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the source distribution and the wheel that is built from it."""
    for needed in ("build", *PROJECT["build-system"]["requires"]):
        requirement = Requirement(needed)
        installed = [d.version for d in metadata.distributions(name=requirement.name)]
        if not any(map(requirement.specifier.contains, installed)):
            pytest.skip(f"{needed} is not installed")
    folder = tmp_path_factory.mktemp("packaging")
    source = copy_source(folder / "source")
    for command in ("init --quiet", "add --all", f"{AUTHOR} commit --quiet --message=all"):
        subprocess.run(["git", "-C", source, *command.split()], check=True)
    python("-m", "build", "--no-isolation", "--outdir", folder / "dist", source)
    (sdist,) = (folder / "dist").glob("*.tar.gz")
    (wheel,) = (folder / "dist").glob("*.whl")
    return sdist, wheel


def modules() -> set[str]:
    """Return the path of every module in the installed package."""
    folders = [ROOT / folder for folder in ("pe_bench", "encodings", "tasks")]
    files = [path.relative_to(ROOT) for folder in folders for path in folder.rglob("*.py")]
    outside = [file for file in files if file.parts[0] != "pe_bench"]
    engine = [file for file in files if file.parts[:2] not in LINKS and file not in outside]
    return {str(file) for file in engine} | {f"pe_bench/{file}" for file in outside}


def committed() -> set[str]:
    """Return the packaged files of committed results that `merge` and `compare` read."""
    place = ROOT / "results"
    files = [path for name in RESULTS for path in place.glob(f"*/{name}")]
    files += place.glob("*/references/*")
    exports = {path.parent for path in place.glob("*/records.json")}
    kept = [path for path in files if exports & {*path.parents}]
    return {f"pe_bench/committed/{path.relative_to(place)}" for path in kept}


@pytest.mark.slow
def test_every_module_is_in_the_wheel_and_nothing_else(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[1]) as wheel:
        names = set(wheel.namelist())
        code = {name for name in names if ".dist-info/" not in name}
        assert code == modules() | DATA | committed()
        nope = (ROOT / "encodings/nope.py").read_bytes()
        assert wheel.read("pe_bench/encodings/nope.py") == nope
        (licence,) = (name for name in names if name.endswith("LICENSE"))
        assert wheel.read(licence) == (ROOT / "LICENSE").read_bytes()


@pytest.mark.slow
def test_every_module_is_in_the_source_distribution_once(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[0]) as sdist:
        files = [name.partition("/")[2] for name in sdist.getnames()]
    code = [f for f in files if f.endswith(".py") and f.startswith(SOURCE) and f != "setup.py"]
    assert sorted(code) == sorted(
        name.removeprefix("pe_bench/") if tuple(name.split("/")[:2]) in LINKS else name
        for name in modules()
    )


@pytest.mark.slow
def test_the_installed_wheel_runs_from_another_folder(
    built: tuple[Path, Path], tmp_path: Path
) -> None:
    if importlib.util.find_spec("pip") is None:
        pytest.skip("pip is not installed")
    site, elsewhere = tmp_path / "site", tmp_path / "elsewhere"
    elsewhere.mkdir()
    quiet = ("--quiet", "--no-deps", "--no-index", "--no-compile", "--disable-pip-version-check")
    python("-m", "pip", "install", *quiet, "--target", site, built[1])
    where = python("-c", "import pe_bench; print(pe_bench.__file__)", path=site, cwd=elsewhere)
    assert Path(where.strip()) == site / "pe_bench" / "__init__.py"
    listed = python("-m", "pe_bench", "list", path=site, cwd=elsewhere).splitlines()
    names = {line.split()[0] for line in listed if line.startswith("  ")}
    assert names == {*catalogue.names("encoding"), *catalogue.names("task")}
    assert (site / "bin" / "pe-bench").exists()
    quick = python("-m", "pe_bench", "results", "quick", path=site, cwd=elsewhere).strip()
    records = (ROOT / "results/quick/records.json").read_bytes()
    assert (Path(quick) / "records.json").read_bytes() == records
    program = "from pe_bench.system.commit import find_commit; print(find_commit())"
    source = built[0].parents[1] / "source"
    head = subprocess.check_output(["git", "-C", source, "rev-parse", "HEAD"], text=True).strip()
    found = python("-c", program, path=site, cwd=elsewhere).strip()
    assert found == f"{{'commit': '{head}', 'dirty': False}}"
    program = (
        "from pe_bench.registry import plugins; "
        "print(plugins.load('encoding', 'tape').cls.__module__)"
    )
    assert python("-c", program, path=site, cwd=elsewhere).strip() == "pe_bench.encodings.tape"


@pytest.mark.parametrize("name", ["encodings", "tasks"])
def test_the_folders_are_linked_into_the_package(name: str) -> None:
    link = ROOT / "pe_bench" / name
    assert link.is_symlink() and link.readlink() == Path("..") / name
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: committed files cannot be listed")
    command = ["git", "ls-files", "--stage", f"pe_bench/{name}"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert listed.stdout.startswith("120000 ")  # git's mode of a link


@pytest.mark.parametrize("kind", ["encoding", "task"])
def test_a_checkout_without_links_says_what_to_do(
    kind: Kind,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("encodings", "tasks"):
        if name != f"{kind}s":
            (tmp_path / name).mkdir()
    broken = tmp_path / f"{kind}s"
    broken.write_text(f"../{kind}s")  # the text that git writes if links are not supported
    monkeypatch.setattr(catalogue, "PACKAGE", tmp_path)
    assert main(["list"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert f"{broken} must be a symbolic link to ../{kind}s" in said
    assert "git clone -c core.symlinks=true" in said


@pytest.mark.slow
def test_python_starts_in_the_checkout_unless_a_folder_becomes_a_package(tmp_path: Path) -> None:
    program = "import encodings; print(encodings.__file__)"
    codecs = python("-c", program, path=ROOT)
    assert not Path(codecs.strip()).is_relative_to(ROOT / "encodings")
    source = copy_source(tmp_path / "source")
    (source / "encodings" / "__init__.py").touch()
    with pytest.raises(AssertionError, match="init_fs_encoding"):
        python("-c", "pass", path=source)


def pins() -> dict[str, str]:
    """Return the versions in constraints.txt by canonical name."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = [line.partition("==") for line in lines if line and not line.startswith("#")]
    found: dict[str, str] = {}
    found.update((canonicalize_name(name), version) for name, equals, version in pairs if equals)
    assert len(found) == len(pairs)  # no line without a pin, no name twice
    return found


def declared() -> list[Requirement]:
    """Return all requirements of pyproject.toml."""
    project = PROJECT["project"]
    extras = [line for lines in project["optional-dependencies"].values() for line in lines]
    lines = [*project["dependencies"], *extras, *PROJECT["build-system"]["requires"]]
    return [Requirement(line) for line in lines]


@pytest.mark.parametrize("requirement", declared(), ids=lambda r: r.name)
def test_every_dependency_is_pinned_within_its_range(requirement: Requirement) -> None:
    version = pins()[canonicalize_name(requirement.name)]
    assert requirement.specifier.contains(version)


def test_pins_are_public_versions() -> None:
    assert pins()["torch"] == "2.13.0"
    assert not [version for version in pins().values() if "+" in version or " " in version]
