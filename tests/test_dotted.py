"""Plugins of packages: by dotted path, and by names of entry points."""

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from pe_bench.cli import main
from pe_bench.errors import InputError
from pe_bench.registry import plugins
from pe_bench.registry.importing import trusting_only
from pe_bench.runs.options import read_data

unique = itertools.count()

ENCODING = """from pe_bench.encoding import Encoding

from .shared import RATE


class Decay(Encoding):
    \"\"\"Decays.\"\"\"

    def __init__(self, model, layer=0, *, rate: float = RATE):
        super().__init__(model, layer)


class _Hidden(Encoding):
    pass
"""
SEVERAL = ENCODING + "\n\nclass Growth(Encoding):\n    name = 'growth'\n"

Make = Callable[..., str]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Write a package that no test has imported before, and return its name."""

    def make(site: str = "lab", declared: str = "", **modules: str) -> str:
        name = f"lab{next(unique)}"
        place = tmp_path / site / name
        place.mkdir(parents=True)
        for module, source in {"__init__": "", "shared": "RATE = 0.5", **modules}.items():
            (place / f"{module}.py").write_text(source.replace("PACKAGE", name))
        if declared:
            info = tmp_path / site / f"{name}-1.0.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
            (info / "entry_points.txt").write_text(declared.replace("PACKAGE", name))
        monkeypatch.syspath_prepend(str(tmp_path / site))
        return name

    return make


@pytest.mark.slow
def test_a_module_and_a_class(package: Make) -> None:
    name = package(mine=ENCODING, both=SEVERAL)
    module = plugins.load("encoding", f"{name}.mine:rate=2")
    assert module.label == f"{name}.mine:rate=2" and module.options == {"rate": 2.0}
    assert plugins.load("encoding", f"{name}.mine:rate=0.5").label == f"{name}.mine"
    for spec in (f"{name}.both:Decay:rate=2", f"{name}.both.Decay:rate=2"):
        plugin = plugins.load("encoding", spec)
        assert plugin.cls.__name__ == "Decay" and plugin.label == f"{name}.both.Decay:rate=2"
    assert plugins.load("encoding", f"{name}.both:Growth").label == "growth"
    nested = plugins.load("encoding", f"hybrid:local={name}.mine:rate=2,every=2")
    assert nested.label == f"hybrid:local={name}.mine:rate=2,every=2"
    assert (
        plugins.kinds_of(f"{name}.mine") == plugins.kinds_of(f"{name}.both.Decay") == ["encoding"]
    )
    assert read_data([f"{name}.tasks=folder"]) == {f"{name}.tasks": Path("folder")}


def test_names_of_entry_points(package: Make, capsys: pytest.CaptureFixture[str]) -> None:
    declared = "[pe_bench.encodings]\nlab-decay = PACKAGE.both:Decay\nlab-plain = PACKAGE.mine\n"
    package(declared=declared, mine=ENCODING, both=SEVERAL)
    assert plugins.load("encoding", "lab-decay:rate=2").label == "lab-decay:rate=2"
    assert plugins.load("encoding", "lab-plain").cls.__name__ == "Decay"
    assert plugins.kinds_of("lab-decay") == ["encoding"]
    with pytest.raises(InputError, match=r"there are: .*, lab-decay, lab-plain, or give a path"):
        plugins.load("encoding", "lab-growth")
    assert main(["list", "lab-decay"]) == 0
    assert "rate = 0.5  (a number)" in capsys.readouterr().out


@pytest.mark.parametrize("site", ["lab", "site-packages"])
def test_the_version_covers_what_the_module_imports(
    package: Make, tmp_path: Path, site: str
) -> None:
    absolute = ENCODING.replace("from .shared", "from PACKAGE.shared")
    for source in (ENCODING, absolute):
        name = package(site, mine=source)
        spec = f"{name}.mine"
        before = plugins.load("encoding", spec).version
        shared = tmp_path / site / name / "shared.py"
        shared.write_text("RATE = 0.5  # the same")
        assert plugins.load("encoding", spec).version == before
        shared.write_text("RATE = 0.6")
        assert plugins.load("encoding", spec).version != before


def test_a_record_imports_no_package_that_the_user_does_not_name(package: Make) -> None:
    declared = "[pe_bench.encodings]\nlab-installed = PACKAGE.mine"
    name = package(mine=ENCODING, both=SEVERAL, declared=declared)
    with trusting_only(f"{name}.both:Decay"):
        plugins.load("encoding", f"{name}.both.Decay")
        plugins.load("encoding", "lab-installed")
        for spec in (f"{name}.mine", f"hybrid:local={name}.mine"):
            with pytest.raises(InputError, match="which is run only if you give it"):
                plugins.load("encoding", spec)


WRONG = {
    "nowhere.at.all": "Python finds no module 'nowhere.at.all' and no module 'nowhere.at'",
    "PACKAGE.mine:Growth": "the module 'PACKAGE.mine' has neither a module nor a class 'Growth'",
    "PACKAGE.shared": "must define exactly one public subclass of Encoding; it has none",
    "PACKAGE.both": "must define exactly one public subclass of Encoding; it has Decay, Growth",
    "PACKAGE.broken": "cannot be imported \\(ZeroDivisionError: division by zero",
    "PACKAGE.lacks": "cannot be imported \\(ModuleNotFoundError: No module named 'nowhere'",
    "PACKAGE.mine:speed=2": "has no option 'speed'",
}


@pytest.mark.parametrize("spec", WRONG)
def test_what_is_wrong_is_one_sentence(package: Make, spec: str) -> None:
    name = package(mine=ENCODING, both=SEVERAL, broken="1 / 0", lacks="import nowhere")
    with pytest.raises(InputError, match=WRONG[spec].replace("PACKAGE", name)) as error:
        plugins.load("encoding", spec.replace("PACKAGE", name))
    assert "\n" not in str(error.value)
