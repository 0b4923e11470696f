"""The command line: what needs no torch, and one sentence for every kind of bad input."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

import pe_bench
from pe_bench.cli import main
from pe_bench.registry import plugins

ABSENT = "absent_folder"
RUN = ["run", "--task", "perplexity"]
NOPE = [*RUN, "--encoding", "nope"]
SCROLLS = ["run", "--encoding", "nope", "--task", "scrolls"]

BAD_INPUT = [
    # arguments                                  what the sentence must contain
    ([], "required: COMMAND"),
    (["repot"], "'repot' (choose from"),
    (["list", "encoding"], "no encoding or task 'encoding' (did you mean 'encodings'?)"),
    (["list", "--kind"], "no option '--kind'"),
    (["list", "tasks", "more"], "more"),
    (["run", "--encoding", "nope"], "required: --task"),
    (RUN, "required: --encoding"),
    ([*RUN, "--encoding"], "--encoding: expected at least one argument"),
    ([*NOPE, "--encodin", "rope"], "'--encodin' (did you mean '--encoding'?)"),
    ([*NOPE, "--enc", "rope"], "no option '--enc'"),
    ([*NOPE, "--train.lrr=1"], "'--train.lrr' (did you mean '--train.lr'?)"),
    ([*NOPE, "--train.vocab_size", "9"], "no option '--train.vocab_size'"),
    ([*NOPE, "--train.lr", "x"], "--train.lr: must be a number, not 'x'"),
    ([*NOPE, "--train.steps", "1.5"], "--train.steps: must be a whole number, not '1.5'"),
    ([*NOPE, "--train.schedule", "cosin"], "cosine, linear, constant (did you mean 'cosine'?)"),
    ([*NOPE, "--train.steps", "-1"], "train.steps must not be negative, not -1"),
    ([*NOPE, "--train.batch_size", "0"], "train.batch_size must be at least 1, not 0"),
    ([*NOPE, "--train.warmup", "2"], "train.warmup is a share from 0 to 1, not 2.0"),
    ([*NOPE, "--train.beta2", "1"], "train.beta2 must be from 0 to below 1, not 1.0"),
    ([*NOPE, "--model.heads", "3"], "model.width must be a multiple of model.heads"),
    ([*NOPE, "--model.kv_heads", "3"], "model.kv_heads must divide model.heads"),
    ([*NOPE, "--model.layers", "0"], "model.layers must be at least 1, not 0"),
    ([*NOPE, "--seeds", "a"], "--seeds: "),
    ([*NOPE, "--device", "tpu"], "'tpu' (choose from"),
    ([*NOPE, "--device", "cuda"], "there is no CUDA device here: use --device cpu or auto"),
    ([*NOPE, "--precision", "fp8"], "'fp8' (choose from"),
    ([*NOPE, "--preset", "quik"], "no preset 'quik'; it has quick, small, paper"),
    ([*NOPE, "--preset", "paper"], "give a folder of its text with --data perplexity=DIR"),
    ([*NOPE, "--protocol", "strickt"], "no protocol 'strickt'; it has strict"),
    ([*NOPE, "--tokenizer", "bpee"], "no tokenizer 'bpee'; give bytes, bpe:SIZE"),
    ([*NOPE, "--results", "file"], "cannot write to file (File exists): give another folder"),
    ([*NOPE, "--results", "/proc/new"], "cannot write to /proc/new"),
    ([*NOPE, "--data", ABSENT], f"no folder {ABSENT}; give a folder of"),
    ([*NOPE, "--data", "file"], "no folder file; give a folder of"),
    ([*NOPE, "--data", "=x"], "write --data DIR or --data task=DIR"),
    ([*SCROLLS, "--data", ABSENT], f"{ABSENT} is not a folder: expected one that holds"),
    ([*SCROLLS, "--subsets", "qaspar"], "no subset 'qaspar' (did you mean 'qasper'?)"),
    ([*NOPE, "--subsets", "tests"], "no subset 'tests' (did you mean 'test'?)"),
    ([*RUN, "--encoding", "ropee"], "no encoding 'ropee' (did you mean 'rope'?)"),
    ([*RUN, "--encoding", "rope:bas=3"], "no option 'bas' (did you mean 'base'?)"),
    ([*RUN, "--encoding", "rope:base=x"], "rope:base must be a number, not 'x'"),
    ([*RUN, "--encoding", "rope:base=0"], "must be greater than 1, not 0.0"),
    ([*RUN, "--encoding", "rope:base"], "write name:key=value"),
    ([*RUN, "--encoding", "absent.py"], "there is no file absent.py"),
    ([*RUN, "--encoding", "broken.py"], "broken.py does not import (SyntaxError: invalid syntax"),
    (["run", "--encoding", "nope", "--task", "perplexit"], "(did you mean 'perplexity'?)"),
    (["report", "--results", "empty"], "no runs in empty: use pe-bench run first"),
    (["report", "--results", ABSENT], f"no runs in {ABSENT}"),
    (["report", "--results", "torn"], "run.json is not the record of a run"),
    (["check"], "required: SPEC"),
    (["check", "ropee"], "no encoding 'ropee' (did you mean 'rope'?)"),
    (["check", "broken.py"], "broken.py does not import"),
    (["check", "rope", "--device", "cuda"], "there is no CUDA device here"),
]
# What was found to be accepted, ignored, or refused with the wrong exit code or a traceback.
FOUND_WANTING = [
    ([*RUN, "--encodin", "nope"], "'--encodin' (did you mean '--encoding'?)"),
    (["list", "--seeds", "1"], "no option '--seeds'"),
    ([*NOPE, "--seeds", "a"], "must be a whole number, not 'a'"),
    ([*NOPE, "--seeds", "-1"], "must not be negative"),
    ([*NOPE, "--data", "perplexty=empty"], "perplexty"),
    ([*NOPE, "--data", "scrolls=empty"], "--data scrolls"),  # another task's
    ([*NOPE, "--pretrain.steps", "9"], "pretrain"),
    ([*SCROLLS, "--pretrain.steps", "-1"], "pretrain.steps must not be negative"),
    ([*NOPE, "--train.lr", "nan"], "must be a number, not 'nan'"),
    ([*RUN, "--encoding", "several_lines.py"], "several_lines.py does not import"),
    (["report", "--results", "blocked"], "cannot write to blocked"),
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with files that bad input may refer to; nothing is ever trained."""
    import torch

    import pe_bench.running.run

    def train(*_: object, **__: object) -> NoReturn:
        raise AssertionError("accepted: training begins")

    monkeypatch.setattr(pe_bench.running.run, "train", train)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "broken.py").write_text("def (\n")
    (tmp_path / "several_lines.py").write_text("raise OSError('one\\ntwo')\n")
    failed = dict(status="failed", task="t", encoding="e", seed=0, settings_digest="0", reason="")
    for name, run in {"blocked": json.dumps(failed), "torn": "[]"}.items():
        path = tmp_path / name / "runs" / "task" / "encoding" / "seed0-0" / "run.json"
        path.parent.mkdir(parents=True)
        path.write_text(run)
    (tmp_path / "blocked" / "plots").touch()
    return tmp_path


def exit_code(args: list[str]) -> int | str | None:
    """Of a command, whether it returns or argparse exits."""
    try:
        return main(args)
    except SystemExit as stop:
        return stop.code


@pytest.mark.parametrize(
    ("args", "says"),
    [pytest.param(*case, id=" ".join(case[0])) for case in [*BAD_INPUT, *FOUND_WANTING]],
)
def test_bad_input(
    folder: Path, capsys: pytest.CaptureFixture[str], args: list[str], says: str
) -> None:
    code = exit_code(args)
    err = capsys.readouterr().err
    assert code == 2, err
    (line,) = err.splitlines()
    assert line.startswith("pe-bench")
    assert says in line
    assert "Traceback" not in line


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_results_folder_without_permission(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "empty").chmod(0o500)
    assert main([*NOPE, "--results", "empty/results"]) == 2
    assert "cannot write to empty/results (Permission denied)" in capsys.readouterr().err


def test_all_that_is_wrong_is_said_once_each(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["--encoding", "ropee", "broken.py", "--task", "perplexit", "--seeds", "0", "1"]
    assert main(["run", *args]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert all(w in line for w, line in zip(["ropee", "broken", "perplexit"], lines, strict=True))


def test_a_failure_of_the_code_is_not_bad_input(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(NOPE) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "failed, see results/runs/perplexity/nope/seed0-" in line


def test_interrupting_says_how_to_go_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(plugins, "names", interrupt)
    assert main(["list"]) == 130
    assert "the same command goes on from here" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "has", "lacks"),
    [
        (["list"], ["encodings", "  rope", "tasks", "  perplexity"], []),
        (["list", "encodings"], ["name ", "rope "], ["tasks", "encodings"]),
        (["list", "tasks"], ["tasks", "  perplexity"], ["encodings"]),
        (["list", "alibi"], ["alibi: Linear", "Args:", "  slope_scale: float = 1.0"], ["tasks"]),
        (["list", "xpos"], ["  scale_base:", "Options of RoPE:", "  train_positions: Literal"], []),
        (["list", "perplexity"], ["Trains on", "  windows:"], ["encodings"]),
    ],
)
def test_list(
    capsys: pytest.CaptureFixture[str], args: list[str], has: list[str], lacks: list[str]
) -> None:
    assert main(args) == 0
    out = "\n" + capsys.readouterr().out
    assert all(f"\n{word}" in out for word in has)
    assert not any(f"\n{word}\n" in out for word in lacks)


HELP = ["--encoding", "--train.lr ", "--pretrain.steps ", "--model.width ", "examples:"]
LIGHT: dict[str, list[str]] = {
    "--help": ["run", "list", "report", "check"],
    "--version": [f"pe-bench {pe_bench.__version__}"],
    "list": plugins.names("encoding") + plugins.names("task"),
    "run --help": HELP,
    "report --help": ["--results"],
    "check --help": ["--device"],
}


@pytest.fixture(scope="module")
def without_torch() -> Callable[[str], str]:
    """Runs a command where importing torch is an error, and returns what it prints."""
    program = (
        "import sys; sys.modules['torch'] = None; from pe_bench.cli import main; "
        "sys.exit(main(sys.argv[1:]))"
    )

    def run(command: str) -> str:
        env = os.environ | {"PYTHONPATH": str(Path(pe_bench.__file__).parents[1])}
        done = subprocess.run(
            [sys.executable, "-c", program, *command.split()],
            env=env,
            capture_output=True,
            text=True,
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    return run


@pytest.mark.parametrize("command", LIGHT)
def test_what_needs_no_torch(without_torch: Callable[[str], str], command: str) -> None:
    out = without_torch(command)
    assert all(word in out for word in LIGHT[command])


def test_module_is_the_command() -> None:
    env = os.environ | {"PYTHONPATH": str(Path(pe_bench.__file__).parents[1])}
    command = [sys.executable, "-m", "pe_bench", "repot"]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("pe-bench: ")
