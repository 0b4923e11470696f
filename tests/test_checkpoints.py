"""Checkpoints contain no executable code, and damaged ones are trained again."""

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from helpers import weights
from safetensors.torch import load_file
from test_training import make_model, run, stopped_at
from torch import Tensor

from pe_bench.errors import SavingError
from pe_bench.system.sealed import DamagedError
from pe_bench.train.checkpoint_store import FORMAT
from pe_bench.train.checkpoints import read_checkpoint, write_checkpoint

ENGINE = Path(__file__).parents[1] / "pe_bench"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tensor, Path]:
    """Return the final weights of an uninterrupted run, and its folder."""
    model, folder = make_model(), tmp_path_factory.mktemp("whole")
    run(model, folder)
    return weights(model), folder


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "one.safetensors"
    tensors = [torch.randn(2, 3), torch.tensor(3.5), torch.empty(0, 4), torch.arange(3)]
    content: dict[str, Any] = {
        "state": {0: {"exp_avg": tensors[0].bfloat16()}, 1: tensors},
        "betas": (0.9, 1 / 3),
        "none": None,
        "flag": True,
    }
    write_checkpoint(path, content, owner="it")
    found = read_checkpoint(path, owner="it")
    assert found["betas"] == [0.9, 1 / 3]
    assert found["none"] is None and found["flag"] is True
    assert found["state"][0]["exp_avg"].dtype is torch.bfloat16
    for one, other in zip(found["state"][1], tensors, strict=True):
        assert one.dtype is other.dtype and torch.equal(one, other)


def test_a_tensor_of_two_names_is_written_twice(tmp_path: Path) -> None:
    tied = torch.randn(2, 3)
    write_checkpoint(tmp_path / "one.safetensors", {"a": tied, "b": [tied]}, owner="it")
    found = read_checkpoint(tmp_path / "one.safetensors", owner="it")
    assert torch.equal(found["a"], tied) and torch.equal(found["b"][0], tied)


def test_a_full_disk_is_an_error_of_saving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library has an error of its kind for it."""

    def full(*args: Any) -> None:
        raise safetensors.SafetensorError("I/O error: No space left on device (os error 28)")

    path = tmp_path / "some.safetensors"
    write_checkpoint(path, {"a": torch.ones(3)}, owner="x")
    before = path.read_bytes()
    monkeypatch.setattr(safetensors.torch, "save_file", full)
    with pytest.raises(SavingError, match=r"cannot save .*some.safetensors \(.*No space left"):
        write_checkpoint(path, {"a": torch.zeros(3)}, owner="x")
    assert path.read_bytes() == before and [*tmp_path.iterdir()] == [path]


def test_the_safetensors_library_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "one.safetensors"
    write_checkpoint(path, {"weights": {"a": torch.ones(2, 3), "b": torch.arange(5)}}, owner="it")
    found = load_file(path)
    assert torch.equal(found["/weights/a"], torch.ones(2, 3))
    assert torch.equal(found["/weights/b"], torch.arange(5))


def test_it_belongs_to_one_run_only(tmp_path: Path) -> None:
    path = tmp_path / "one.safetensors"
    write_checkpoint(path, {"a": 1}, owner="seed 0")
    with pytest.raises(DamagedError, match="belongs to seed 0, not to seed 1"):
        read_checkpoint(path, owner="seed 1")


def dump(content: Any, path: Path) -> None:
    path.write_bytes(pickle.dumps(content))


class Attack:
    """An object that creates a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.folder),)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resume.safetensors", "final.safetensors"])
@pytest.mark.parametrize("save", [torch.save, dump])
def test_a_pickle_is_never_run(
    tmp_path: Path,
    whole: tuple[Tensor, Path],
    capsys: pytest.CaptureFixture[str],
    name: str,
    save: Callable[[Any, Path], None],
) -> None:
    save({"state_dict": Attack(tmp_path / "executed")}, tmp_path / name)
    model = make_model()
    run(model, tmp_path)
    assert not (tmp_path / "executed").exists()
    assert torch.equal(weights(model), whole[0])
    assert (tmp_path / f"{name}.damaged1").exists()
    assert f"{tmp_path / name} is" in capsys.readouterr().err


def test_nothing_in_the_engine_reads_pickles() -> None:
    for path in ENGINE.rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        for word in ("torch.load(", "import pickle", "allow_pickle", "joblib", "dill"):
            assert word not in source, f"{path} has {word}"


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "half": lambda content: content[: len(content) // 2],
    "garbage": lambda content: b"\xff\xfe not this" * 99,
    "empty": lambda content: b"",
    "one byte": lambda content: content[:-40] + bytes([content[-40] ^ 1]) + content[-39:],
    "deep": lambda content: (200_000).to_bytes(8, "little") + b"[" * 200_000,
}


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", ["resume", "final"])
def test_what_is_damaged_is_set_aside_and_trained_again(
    tmp_path: Path,
    whole: tuple[Tensor, Path],
    capsys: pytest.CaptureFixture[str],
    damage: str,
    name: str,
) -> None:
    path = tmp_path / f"{name}.safetensors"
    if name == "final":
        path.write_bytes((whole[1] / path.name).read_bytes())
    else:
        with pytest.raises(RuntimeError, match="power cut"):
            run(make_model(), tmp_path, data=stopped_at(5))
    path.write_bytes(DAMAGE[damage](path.read_bytes()))
    model = make_model()
    run(model, tmp_path)
    assert torch.equal(weights(model), whole[0])
    said = capsys.readouterr().err
    assert f"pe-bench: {path} " in said
    assert f"made again, kept as {path.name}.damaged1" in said
    run(make_model(), tmp_path, data=stopped_at(0))  # it has been repaired: nothing is trained


@pytest.mark.slow
def test_a_folder_in_its_place_is_set_aside(tmp_path: Path) -> None:
    (tmp_path / "resume.safetensors").mkdir()
    run(make_model(), tmp_path)
    assert (tmp_path / "resume.safetensors.damaged1").is_dir()
    assert (tmp_path / "final.safetensors").is_file()


@pytest.mark.slow
def test_the_model_of_another_seed_is_not_taken(
    tmp_path: Path, whole: tuple[Tensor, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "final.safetensors"
    content = read_checkpoint(whole[1] / path.name, owner="test")
    write_checkpoint(path, content, owner="another seed")
    with pytest.raises(RuntimeError, match="power cut"):
        run(make_model(), tmp_path, data=stopped_at(0))
    assert "belongs to another seed, not to test" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resume", "final"])
def test_a_model_of_another_shape_is_set_aside(
    tmp_path: Path,
    whole: tuple[Tensor, Path],
    capsys: pytest.CaptureFixture[str],
    name: str,
) -> None:
    path = tmp_path / f"{name}.safetensors"
    form = {"final": {}, "resume": {"format": FORMAT}}[name]
    write_checkpoint(path, {**form, "weights": {"norm.weight": torch.ones(3)}}, owner="test")
    model = make_model()
    run(model, tmp_path)
    assert torch.equal(weights(model), whole[0])
    assert f"{path} belongs to a model of another shape" in capsys.readouterr().err


@pytest.mark.slow
def test_a_checkpoint_of_an_earlier_version_is_set_aside(
    tmp_path: Path, whole: tuple[Tensor, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "resume.safetensors"
    content = {"global_step": 5, "state_dict": {"model.norm.weight": torch.ones(16)}}
    write_checkpoint(path, content, owner="test")
    model = make_model()
    run(model, tmp_path)
    assert torch.equal(weights(model), whole[0])
    assert f"{path} was written by another version of pe-bench" in capsys.readouterr().err
