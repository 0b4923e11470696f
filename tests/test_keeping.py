"""Trained models kept by `--keep`, and `pe-bench checkpoint`."""

from pathlib import Path

import pytest
import torch

from pe_bench.cli import main
from pe_bench.pretrained.checkpoint import open_checkpoint
from pe_bench.results.store import read_records
from pe_bench.runs import evaluation

SHAPE = ["--model.layers", "2", "--model.width", "32"]
TINY = ["--no-report", "--train.steps", "3", "--train.batch_size", "4", *SHAPE, "--keep"]
FLIPFLOP = ["run", "--encoding", "tape", "--task", "flipflop:samples=5", *TINY]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PE_BENCH_CACHE", str(tmp_path / "cache"))


def run_folder() -> Path:
    (record,) = read_records(Path("results"))
    assert record.folder is not None
    return record.folder


@pytest.mark.slow
def test_a_model_that_serves_all_subsets(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(FLIPFLOP) == 0
    assert main(["checkpoint", "tape/flipflop:samples=5/0", "saved"]) == 0
    assert 'from_pretrained("saved", trust_remote_code=True)' in capsys.readouterr().out
    checkpoint = open_checkpoint("saved")
    assert checkpoint.encoding == "tape"
    model = checkpoint.load()
    assert not list(Path("cache/checkpoints").rglob("*.safetensors"))  # the run has them now
    assert main(["checkpoint", str(run_folder()), "saved"]) == 2
    assert "saved is not empty: give a new folder" in capsys.readouterr().err
    weights = dict(model.state_dict())
    moved = [p.abs().max() for name, p in weights.items() if name.endswith("sigma")]
    assert moved and all(moved)
    assert model.config.vocab_size == weights["embed_tokens.weight"].shape[0]


@pytest.mark.slow
def test_a_run_that_is_done_keeps_its_model_later(monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(FLIPFLOP[:-1]) == 0
    assert main(["checkpoint", str(run_folder()), "saved"]) == 2
    monkeypatch.setattr(evaluation, "average_draws", None)  # nothing is measured again
    assert main(FLIPFLOP) == 0
    assert main(["checkpoint", str(run_folder()), "saved"]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["torn weights", "torn configuration", "no configuration"])
def test_a_damaged_model_is_made_again(damage: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(FLIPFLOP) == 0
    place = run_folder() / "model"
    weights = open_checkpoint(str(place)).load().lm_head.weight
    if damage == "torn weights":
        file = place / "model.safetensors"
        file.write_bytes(file.read_bytes()[:1000])
    elif damage == "torn configuration":
        (place / "config.json").write_text("{")
    else:
        (place / "config.json").unlink()
    capsys.readouterr()
    assert main(FLIPFLOP) == 0
    assert "model is incomplete or damaged: made again, kept as model.damaged1" in (
        capsys.readouterr().err
    )
    assert torch.equal(open_checkpoint(str(place)).load().lm_head.weight, weights)


@pytest.mark.slow
def test_a_model_that_starts_from_a_trained_one(capsys: pytest.CaptureFixture[str]) -> None:
    adapted = [*FLIPFLOP, "--from", "rope", "--adapt.steps", "1"]
    assert main(adapted) == 0
    assert main(["checkpoint", str(run_folder()), "saved"]) == 0
    assert 'from_pretrained("saved", trust_remote_code=True)' in capsys.readouterr().out
    checkpoint = open_checkpoint("saved")
    assert checkpoint.encoding == "tape"
    assert checkpoint.load().encoding.made_from == "tape"
    assert "its outputs may differ" not in capsys.readouterr().err


@pytest.mark.slow
def test_a_model_for_each_subset(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["run", "--encoding", "rope", "--task", "copying:samples=5", *TINY]
    assert main([*command, "--subsets", "copy", "reverse"]) == 0
    run = str(run_folder())
    capsys.readouterr()
    assert main(["checkpoint", run, "saved"]) == 2
    assert "models of these subsets: copy, reverse; write --subset NAME" in capsys.readouterr().err
    assert main(["checkpoint", run, "saved", "--subset", "reverse"]) == 0
    assert 'from_pretrained("saved")' in capsys.readouterr().out
    assert main(["checkpoint", run, "other", "--subset", "copy"]) == 0
    weights = [open_checkpoint(name).load().lm_head.weight for name in ("saved", "other")]
    assert not torch.equal(*weights)
    assert not (run_folder() / "work").exists()


@pytest.mark.slow
def test_text_has_its_tokenizer() -> None:
    command = ["run", "--encoding", "rope", "--task", "perplexity", *TINY]
    assert main([*command, "--train.length", "64"]) == 0
    assert main(["checkpoint", str(run_folder()), "saved"]) == 0
    assert open_checkpoint("saved").tokenizer().encode("né").tolist() == list("né".encode())


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (["checkpoint", "absent/flipflop/0", "saved"], "there is no run 'absent/flipflop/0'"),
        (["checkpoint"], "required: RUN, DIR"),
        (
            ["run", "--encoding", "nope", "--task", "efficiency", "--keep"],
            "--keep has no effect: efficiency trains nothing",
        ),
    ],
)
def test_bad_input(command: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main(command)
    except SystemExit as end:
        code = int(str(end.code))
    assert code == 2
    assert sentence in capsys.readouterr().err
