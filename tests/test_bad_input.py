"""Bad input gives one sentence and exit code 2 before anything is trained."""

import json
import os
from pathlib import Path
from typing import Any, NoReturn

import pytest
from test_runner import TASK

from pe_bench.cli import main
from pe_bench.config import ModelConfig
from pe_bench.errors import InputError
from pe_bench.results.store import owner_of
from pe_bench.system.sealed import write_sealed
from pe_bench.task import Vocabulary

ABSENT = "absent_folder"
LONG = "x" * 300
RUN = ["run", "--task", "perplexity"]
NOPE = [*RUN, "--encoding", "nope"]
SCROLLS = ["run", "--encoding", "nope", "--task", "scrolls"]
SMALL_SCROLLS = [*SCROLLS, "--preset", "small"]
PROPERTIES = ["run", "--encoding", "nope", "--task", "properties"]
FLIPFLOP = ["run", "--encoding", "nope", "--task", "flipflop"]
SEED = "99999999999999999999999"

BAD_INPUT = [
    # arguments                                  required part of the message
    ([], "required: COMMAND"),
    (["repot"], "no command 'repot' (did you mean 'report'?)"),
    (["list", "encoding"], "no encoding or task 'encoding' (did you mean 'encodings'?)"),
    (["list", "--kind"], "no option '--kind'"),
    (["list", "tasks", "more"], "more"),
    (["run", "--encoding", "nope"], "required: --task, or --like; see pe-bench run --help"),
    (["cost", "--encoding", "nope"], "required: --task; see pe-bench cost --help"),
    (RUN, "required: --encoding"),
    ([*RUN, "--encoding"], "--encoding: expected at least one argument"),
    ([*NOPE, "--enc", "rope"], "no option '--enc'"),
    ([*NOPE, "--train.lrr=1"], "'--train.lrr' (did you mean '--train.lr'?)"),
    ([*NOPE, "--train.vocab_size", "9"], "no option '--train.vocab_size'"),
    ([*NOPE, "--train.lr", "x"], "--train.lr: must be a number, not 'x'"),
    ([*NOPE, "--train.steps", "1.5"], "--train.steps: must be a whole number, not '1.5'"),
    ([*NOPE, "--train.schedule", "cosin"], "cosine, linear, constant (did you mean 'cosine'?)"),
    ([*NOPE, "--train.steps", "-1"], "train.steps must not be negative, not -1"),
    ([*NOPE, "--train.batch_size", "0"], "train.batch_size must be at least 1, not 0"),
    ([*NOPE, "--train.warmup", "2"], "train.warmup must be from 0 to 1, not 2.0"),
    ([*NOPE, "--train.beta2", "1"], "train.beta2 must be from 0 to below 1, not 1.0"),
    ([*NOPE, "--model.heads", "3"], "model.width must be a multiple of model.heads"),
    ([*NOPE, "--model.kv_heads", "3"], "model.kv_heads must divide model.heads"),
    ([*NOPE, "--model.layers", "0"], "model.layers must be at least 1, not 0"),
    ([*NOPE, "--train.lr", "inf"], "train.lr must be a finite number, not inf"),
    ([*NOPE, "--model.init_std", "-1"], "model.init_std must not be negative, not -1.0"),
    ([*RUN, "--encoding", LONG], "is too long for a name or a path"),
    ([*RUN, "--encoding", f"./{LONG}.py"], "is too long for a name or a path"),
    ([*RUN, "--encoding", "nope", "--results", LONG], "the path, or a name in it, is too long"),
    ([*RUN, "--encoding", "nope", "--data", LONG], "the path, or a name in it, is too long"),
    (["report", "--results", LONG], "the path, or a name in it, is too long"),
    (["list", f"{LONG}.py"], "is too long for a name or a path: names have at most 255 bytes"),
    (
        [*SCROLLS, "--data", "records", "--results", "records/new"],
        "records/new is inside the folder with data records",
    ),
    ([*NOPE, "--device", "tpu"], "must be auto, cpu, cuda or cuda:1, not 'tpu'"),
    ([*NOPE, "--device", "cuda"], "there is no CUDA device here: use --device cpu or auto"),
    ([*NOPE, "--precision", "fp8"], "--precision: must be one of auto, fp32, bf16, not 'fp8'"),
    (
        [*NOPE, "--preset", "quik"],
        "no preset 'quik' (did you mean 'quick'?); there are quick, small, mid, paper",
    ),
    ([*NOPE, "--preset", "paper", "--tokenizer", "bytes"], "needs tokens of several bytes"),
    (
        [*NOPE, "--protocol", "strickt"],
        "no protocol 'strickt' (did you mean 'strict'?); there is",
    ),
    ([*NOPE, "--tokenizer", "bpee"], "there is no tokenizer 'bpee': give bytes, bpe:SIZE"),
    ([*NOPE, "--results", "file"], "cannot write to file (Not a directory): give another folder"),
    ([*NOPE, "--results", "file", "--dry-run"], "file is not a folder: give a folder with --res"),
    ([*NOPE, "--results", "/proc/new"], "cannot write to /proc/new"),
    ([*NOPE, "--data", ABSENT], f"no folder {ABSENT}: give a folder of"),
    ([*NOPE, "--data", "file"], "there is no folder file: give a folder of"),
    ([*NOPE, "--data", "empty", "records"], "two folders for all tasks, empty and records"),
    ([*NOPE, "--data", "=x"], "write --data DIR or --data task=DIR"),
    ([*SCROLLS, "--data", ABSENT], f"{ABSENT} is not a folder: give a folder with"),
    ([*SCROLLS, "--subsets", "qaspar"], "no subset 'qaspar' (did you mean 'qasper'?)"),
    ([*NOPE, "--subsets", "tests"], "no subset 'tests' (did you mean 'test'?)"),
    ([*RUN, "--encoding", "ropee"], "no encoding 'ropee' (did you mean 'rope'?)"),
    ([*RUN, "--encoding", "rope:bas=3"], "no option 'bas' (did you mean 'base'?)"),
    ([*RUN, "--encoding", "rope:base=x"], "rope:base must be a number, not 'x'"),
    ([*RUN, "--encoding", "rope:base=0"], "must be greater than 1, not 0.0"),
    ([*RUN, "--encoding", "rope:base"], "write name:key=value"),
    ([*RUN, "--encoding", "absent.py"], "there is no file absent.py"),
    (
        [*RUN, "--encoding", "broken.py"],
        "broken.py cannot be imported (SyntaxError: invalid syntax",
    ),
    (["run", "--encoding", "nope", "--task", "perplexit"], "(did you mean 'perplexity'?)"),
    (["report", "--results", "empty"], "no runs in empty: use pe-bench run first"),
    (["report", "--results", ABSENT], f"no runs in {ABSENT}"),
    (["report", "--results", "torn"], "run.json is not a JSON object"),
    (["check"], "required: SPEC"),
    (["check", "ropee"], "no encoding or task 'ropee' (did you mean 'rope'?)"),
    (["check", "YaRN"], "no encoding or task 'YaRN' (did you mean 'rope:scaling=yarn'?)"),
    (["list", "hope"], "no encoding or task 'hope' (did you mean 'rope:scaling=hope'?)"),
    (["list", "none"], "no encoding or task 'none' (did you mean 'nope'?)"),
    ([*RUN, "--encoding", "llama3"], "no encoding 'llama3' (did you mean 'rope:scaling=llama3'?)"),
    (["check", "rope", "--device", "cuda"], "there is no CUDA device here"),
    (["check", "rope", "--kv-heads", "3"], "kv_heads must divide model.heads"),
    (["check", "flipflop", "--kv-heads", "2"], "--kv-heads has no effect"),
    ([*RUN, "--encodin", "nope"], "'--encodin' (did you mean '--encoding'?)"),
    (["list", "--seeds", "1"], "no option '--seeds'"),
    ([*NOPE, "--seeds", "a"], "must be a whole number, not 'a'"),
    ([*NOPE, "--seeds", "-1"], "must be from 0 to 999999999999999, not -1"),
    (
        [*NOPE, "--seeds", "2-0"],
        "must be an increasing range of at most 1000 seeds, such as 0-4, not '2-0'",
    ),
    (
        [*NOPE, "--seeds", "0-2,5"],
        "must be numbers and ranges separated by spaces, as in 0-2 5, not '0-2,5'",
    ),
    (["run", "grid.yaml"], "'grid.yaml' is not a file of runs, whose name ends in .toml: write"),
    (["run", "rope", "mqar"], "'rope' is not a file of runs, whose name ends in .toml: write"),
    ([*NOPE, "--seeds", "0-9999"], "must be an increasing range of at most 1000 seeds"),
    ([*NOPE, "--seeds", SEED], f"from 0 to 999999999999999, not {SEED}"),
    ([*NOPE, "--data", "perplexty=empty"], "perplexty"),
    ([*NOPE, "--data", "scrolls=empty"], "--data scrolls"),  # another task's
    ([*NOPE, "--pretrain.steps", "9"], "pretrain"),
    ([*SMALL_SCROLLS, "--pretrain.steps", "-1"], "pretrain.steps must not be negative"),
    ([*NOPE, "--train.lr", "nan"], "must be a number, not 'nan'"),
    ([*RUN, "--encoding", "several_lines.py"], "several_lines.py cannot be imported"),
    (["report", "--results", "blocked"], "cannot write to blocked"),
    (["report", "empty"], "there are no runs in empty: use pe-bench run first"),
    (["report", "empty", "empty"], "empty is given twice"),
    (["report", "empty", "--results", "empty"], "leave out --results"),
    (["runn"], "no command 'runn' (did you mean 'run'?)"),
    ([*NOPE, "--steps", "9"], "no option '--steps' (did you mean '--train.steps'?)"),
    ([*NOPE, "--resume"], "no option '--resume': runs resume automatically"),
    (["run", "-e", "nope", "-t", "flipflop"], "no option '-e' (did you mean '--encoding'?)"),
    (["list", "presets"], "write pe-bench list TASK"),
    (["list", "absent.py"], "there is no file absent.py"),
    (["check", "nothing.py"], "nothing.py must define a public subclass of Encoding or Task"),
    (["list", "nothing.py"], "nothing.py must define a public subclass of Encoding or Task"),
    (["list", "rope:base=4"], "list takes a name without options: write pe-bench list rope"),
    (["list", "task.py:a=4"], "list takes a name without options: write pe-bench list task.py"),
    (["check", "task.py"], "task.py does not state its headline and presets"),
    ([*RUN, "--encoding", "task.py"], "task.py defines a task, not an encoding"),
    (["run", "--encoding", "nope", "--task", "no_headline.py"], "no_headline.py has no headline"),
    (
        ["run", "--encoding", "nope", "--task", "wrong_presets.py"],
        "presets['quick'] must be a Preset, not {'steps': 3}",
    ),
    ([*RUN, "--encoding", "dots.py"], "the name '..' must have a letter or digit"),
    (
        [*RUN, "--encoding", "rope,alibi"],
        "encodings are separated by spaces, as in rope alibi",
    ),
    ([*RUN, "--encoding", ""], "an empty spec names no encoding; there are: abacus"),
    (["run", "--encoding", "nope", "--task", ""], "an empty spec names no task"),
    ([*RUN, "--encoding", "nope", "rpoe"], "no encoding 'rpoe' (did you mean 'rope'?)"),
    ([*RUN, "--encoding", "nope", "rope:base=-5"], "must be greater than 1, not -5.0"),
    ([*RUN, "--encoding", "nope", "learned:rows=10"], "learned:rows must be at least"),
    ([*RUN, "--encoding", "learned:rows=1e12"], "for its own weights, but this machine has"),
    ([*RUN, "--encoding", "rope:base=2,base=3"], "gives the option 'base' twice"),
    ([*NOPE, "--train.lr", "1", "--train.lr", "2"], "--train.lr is given twice"),
    ([*NOPE, "--encoding", "rope"], "--encoding is given twice"),
    ([*RUN, "--encoding", "a/mine.py", "b/mine.py"], "have the same name 'mine.py' in tables"),
    ([*RUN, "--encoding", "named.py"], "'rope' is the name of a shipped encoding"),
    ([*RUN, "--encoding", "empty/"], "there is no file empty/encoding.py"),
    ([*RUN, "--encoding", "empty"], "(for the folder write ./empty/)"),
    ([*FLIPFLOP, "--device", "cuda:1"], "there is no cuda:1 here"),
    ([*FLIPFLOP, "--preset", "medium"], "flipflop: there is no preset 'medium'; there are quick"),
    ([*FLIPFLOP, "probes", "--preset", "medium"], "flipflop, probes: there is no preset 'medium'"),
    ([*FLIPFLOP, "--protocol", "papr"], "flipflop: there is no protocol 'papr'; there is strict"),
    ([*FLIPFLOP, "--tokenizer", "bpe:8192"], "--tokenizer has no effect: flipflop reads no text"),
    (
        [*FLIPFLOP, "--model.layers", "100000000"],
        "a model of 100,000,000 layers and width 64",
    ),
    ([*FLIPFLOP, "--model.width", "10000000"], "width 10,000,000 needs"),
    (
        [*FLIPFLOP, "--train.batch_size", "100000000"],
        "batch of 100,000,000 sequences of 64 tokens",
    ),
    ([*SCROLLS, "--pretrain.steps", "9"], "none of the tasks starts from another one"),
    (
        [*SCROLLS, "--data", "records", "--pretrain.batch_size", "100000000"],
        "a batch of 100,000,000 sequences",
    ),
    ([*PROPERTIES, "--train.steps", "3"], "--train.steps has no effect: properties trains nothing"),
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current folder, with files that bad input refers to; nothing is trained."""
    import torch

    import pe_bench.train.training

    def train(*_: object, **__: object) -> NoReturn:
        raise AssertionError("accepted: training begins")

    monkeypatch.setattr(pe_bench.train.training, "ensure_trained", train)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "records" / "qasper").mkdir(parents=True)
    record = json.dumps({"id": "0", "input": "Who?\n\nA document.", "output": "Ann"})
    for split in ("train", "validation"):
        (tmp_path / "records" / "qasper" / f"{split}.jsonl").write_text(f"{record}\n")
    (tmp_path / "broken.py").write_text("def (\n")
    (tmp_path / "task.py").write_text("from pe_bench.api import Task\nclass Mine(Task): pass\n")
    (tmp_path / "nothing.py").write_text("class Mine: pass\n")
    encoding = "from pe_bench.api import Encoding\nclass Mine(Encoding):\n    "
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine.py").write_text(f"{encoding}pass\n")
    (tmp_path / "named.py").write_text(f"{encoding}name = 'rope'\n")
    (tmp_path / "dots.py").write_text(f"{encoding}name = '..'\n")
    (tmp_path / "no_headline.py").write_text(TASK.replace("headline =", "other ="))
    presets = "class Toy(Task):\n    presets = {'quick': {'steps': 3}}"
    (tmp_path / "wrong_presets.py").write_text(f"from pe_bench.api import Task\n{presets}\n")
    (tmp_path / "several_lines.py").write_text("raise OSError('one\\ntwo')\n")
    failed = dict(status="failed", task="t", encoding="e", seed=0, settings_digest="0", reason="")
    for name in ("blocked", "torn"):
        path = tmp_path / name / "runs" / "task" / "encoding" / "seed0-0" / "run.json"
        path.parent.mkdir(parents=True)
        write_sealed(path, failed, owner=owner_of(path.parent))
    path.write_text("[]")
    (tmp_path / "blocked" / "plots").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("args", "says"),
    [
        pytest.param(
            *case,
            id=" ".join(case[0]),
            marks=pytest.mark.slow if "scrolls" in case[0] else (),  # which reads documents
        )
        for case in BAD_INPUT
    ],
)
def test_bad_input(
    folder: Path, capsys: pytest.CaptureFixture[str], args: list[str], says: str
) -> None:
    code: int | str | None
    try:
        code = main(args)
    except SystemExit as stop:  # of argparse
        code = stop.code
    err = capsys.readouterr().err
    assert code == 2, err
    (line,) = err.splitlines()
    assert line.startswith("pe-bench")
    assert says in line
    assert "Traceback" not in line
    assert not (folder / "results").exists()


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
    args = ["--encoding", "ropee", "broken.py", "rope:base=-5", "--seeds", "0", "1"]
    args += ["--task", "perplexit", "flipflop", "--model.layers", "100000000"]
    assert main(["run", *args]) == 2
    lines = capsys.readouterr().err.splitlines()
    wrong = ["ropee", "broken", "perplexit", "100,000,000 layers", "greater than 1, not -5.0"]
    assert len(lines) == len(wrong)
    assert all(word in line for word, line in zip(wrong, lines, strict=True))


@pytest.mark.parametrize("args", [FLIPFLOP, NOPE], ids=["keeps nothing", "keeps its text"])
def test_a_cache_that_cannot_be_written_to_is_named(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    args: list[str],
) -> None:
    monkeypatch.setenv("PE_BENCH_CACHE", "/proc/nope")
    assert main(args) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "cannot write to /proc/nope" in line and "with PE_BENCH_CACHE" in line


@pytest.mark.parametrize("name", ["digit_ids", "separator_ids"])
@pytest.mark.parametrize("wrong", [-1, 13, 500, "1", 1.5, True])
@pytest.mark.parametrize("make", [ModelConfig, Vocabulary])
def test_ids_are_in_the_vocabulary(make: Any, wrong: Any, name: str) -> None:
    for right in ((), (0, 12)):
        make(vocab_size=13, **{name: right})
    expected = f"{name} has the token id {wrong!r}, but a vocabulary of 13 tokens has the ids 0 to"
    with pytest.raises(InputError, match=expected):
        make(vocab_size=13, **{name: (0, wrong)})
