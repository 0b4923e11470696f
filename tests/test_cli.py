"""The command line: its output, and the commands that do not import torch."""

import inspect
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn
from unittest.mock import Mock

import pytest

import pe_bench
from pe_bench.cli import COMMANDS, main
from pe_bench.commands import list_plugin
from pe_bench.commands.device import find_device
from pe_bench.commands.parser import parse
from pe_bench.commands.run import GridOptions
from pe_bench.config import ModelConfig, TrainConfig
from pe_bench.registry import catalogue, plugins
from pe_bench.registry.importing import KINDS, Kind
from pe_bench.registry.options import plugin_options
from pe_bench.runs.memory import decoder_parameters
from pe_bench.sequences.length_generalization import LengthGeneralizationTask
from pe_bench.task import Preset, Task


def test_a_failure_of_the_code_is_not_bad_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def train(*_: object, **__: object) -> NoReturn:
        raise AssertionError("it is broken")

    monkeypatch.setattr("pe_bench.train.training.ensure_trained", train)
    monkeypatch.chdir(tmp_path)
    assert main(["run", "--encoding", "nope", "--task", "flipflop"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "nope · flipflop · seed 0 failed, AssertionError: it is broken (" in line
    assert "; see results/runs/flipflop/nope/seed0-" in line


def test_interrupting_says_how_to_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(catalogue, "names", interrupt)
    assert main(["list"]) == 130
    assert "the same command continues from here" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "has", "lacks"),
    [
        (["list"], ["encodings", "  rope", "tasks", "  perplexity"], []),
        (["list", "tasks"], ["tasks", "  perplexity"], ["encodings"]),
        (["list", "alibi"], ["alibi: Linear", "Args:", "  slope_scale = 1  (a number)"], ["tasks"]),
        (
            ["list", "xpos"],
            ["  scale_base = ", "Of RoPE:\n    base: ", "  train_positions = contiguous  (c"],
            ["    model: ", "Of XPos"],
        ),
        (
            ["list", "rope"],
            ["scaling=yarn: By parts, ", "    beta_fast: planes with", "  ramp = "],
            [],
        ),
        (["list", "perplexity"], ["Trains on", "  windows = "], ["encodings"]),
        (
            ["list", "scrolls"],
            ["Fine-tunes a language model ", "  items = 0", "Subsets: qasper, "],
            [],
        ),
        (["list", "mqar"], ["Multi-query", "  length = 32", "quick "], []),
        (["list", "copying"], ["Protocols: strict, paper.", "  max_train_symbols = "], []),
    ],
)
def test_list(
    capsys: pytest.CaptureFixture[str], args: list[str], has: list[str], lacks: list[str]
) -> None:
    assert main(args) == 0
    out = "\n" + capsys.readouterr().out
    assert all(f"\n{word}" in out for word in has)
    assert not any(f"\n{word}\n" in out for word in lacks)


ENCODING = """
from pe_bench.api import Encoding

class Mine(Encoding):
    '''Adds {value}.'''
    name = "Mine"

    def __init__(self, model, layer=0, *, size: int = 4):
        super().__init__(model, layer)

    def embed(self, x, positions):
        return x + {value}
"""


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("1", "Acts on embeddings by default."),
        ("0 * x", "Acts on nothing by default."),
        ("1 / 0", "It cannot be run: ZeroDivisionError: division by zero ("),
    ],
)
def test_list_of_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], value: str, says: str
) -> None:
    (tmp_path / "mine.py").write_text(ENCODING.format(value=value))
    assert main(["list", str(tmp_path / "mine.py")]) == 0
    out = capsys.readouterr().out
    assert "Mine: (no description)" in out
    assert f"Adds {value}." in out
    assert "size = 4  (a whole number)" in out
    assert says in out


@pytest.mark.slow
def test_list_of_a_task_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = "from pe_bench.tasks.flipflop import Flipflop\nclass Mine(Flipflop): pass\n"
    (tmp_path / "task.py").write_text(source)
    assert main(["list", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{tmp_path.name}: ")
    assert "pairs = 32  (a whole number)" in out and "quick   900    64          64" in out


@pytest.mark.parametrize("kind", KINDS)
def test_every_option_is_described_once(kind: Kind) -> None:
    """By the plugin, by the class that defines it, or by the values that have further options."""
    for name in catalogue.names(kind):
        cls = plugins.load(kind, name).cls
        found: Counter[str] = Counter()
        for part in (inspect.cleandoc(cls.__doc__ or ""), *list_plugin._inherited(cls)):
            found.update(entry["name"] for entry in list_plugin.ENTRY.finditer(part))
        of_values = " ".join(list_plugin._choices(cls))
        for option in plugin_options(cls):
            if not found[option.name]:
                assert f" {option.name}: " in of_values, f"{name}: {option.name}"
            assert found[option.name] < 2, f"{name}: {option.name}"


def test_values_with_options_are_described_with_those_that_they_have() -> None:
    _, pi, *_, yarn = list_plugin._choices(plugins.load("encoding", "xpos").cls)[:4]
    assert re.fullmatch(r"scaling=pi: theta / s .*\n    factor: s\.", pi)
    entries = [entry["name"] for entry in list_plugin.ENTRY.finditer(yarn)]
    assert yarn.startswith("scaling=yarn: By parts, with an attention factor (Peng et al. 2023")
    assert {"factor", "truncate", "ramp", "beta_fast"} < {*entries} and len({*entries}) == len(
        entries
    )
    inherited = list_plugin._inherited(plugins.load("encoding", "xpos").cls)
    assert [part.partition("\n")[0] for part in inherited] == ["Of RoPE:", "Of Encoding:"]
    assert inherited[1].endswith('else contiguous ids; "contiguous": always contiguous ids.')


def test_presets_are_listed_with_all_that_decides_them(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = ModelConfig(layers=2, width=64, heads=4, mlp_width=128)
    long = TrainConfig(steps=7, batch_size=3, length=96, lr=1e-3, recompute=True)
    small = ModelConfig(layers=3, width=32, heads=2, mlp_width=16)

    class Mine(LengthGeneralizationTask):
        presets = {
            "quick": Preset(TrainConfig(steps=900, lr=0.002), shape, {"pairs": 4, "dense": True}),
            "small": Preset(long, starts_from="perplexity"),
            "paper": Preset(long, small, tokenizer="bpe:4096"),
        }
        protocols = ("strict", "paper")

    class Text(Task):
        presets = {
            "quick": Preset(TrainConfig(length=None), shape),
            "small": Preset(long, small, tokenizer="bpe:512"),
        }

    def resolved(where: str, preset: str) -> Any:
        assert where == "./mine.py"
        if preset == "paper":
            return None  # its data are missing
        model = shape.changed(vocab_size=50, train_length=40)
        found = SimpleNamespace(all_subsets=("near", "far"))
        return SimpleNamespace(model=model, train=TrainConfig(length=None, steps=901), task=found)

    monkeypatch.setattr(list_plugin, "_resolved", resolved)
    head, columns, *rows, started, with_tokenizer, again, protocols, subsets = [
        " ".join(line.split()) for line in list_plugin._presets(Mine, "./mine.py").splitlines()
    ]
    assert head == "Presets:" and columns.startswith("preset steps batch_size length lr layers")
    start = plugins.load("task", "perplexity").cls.presets["small"]
    before = start.model.changed(vocab_size=int(start.tokenizer.removeprefix("bpe:")))
    shapes = [shape.changed(vocab_size=50), before, small.changed(vocab_size=4096)]
    trains = [f"901 {TrainConfig.batch_size} 40 {TrainConfig.lr:g}", *["7 3 96 0.001"] * 2]
    for name, line, model, train in zip(Mine.presets, rows, shapes, trains, strict=True):
        numbers = f"{model.layers} {model.width} {model.heads} {model.mlp_width}"
        options = " pairs=4, dense=true" if name == "quick" else ""
        assert line == f"{name} {train} {numbers} {decoder_parameters(model):,}{options}"
    assert started == "Trained from the model of the task perplexity under the same preset: small."
    assert with_tokenizer == "Trained with activation checkpointing: small, paper."
    assert again == "Trained with the tokenizer bpe:4096: paper."
    assert (protocols, subsets) == ("Protocols: strict, paper.", "Subsets: near, far.")
    text = list_plugin._presets(Text, "./mine.py").splitlines()[2:4]
    shapes = [shape.changed(vocab_size=50), small.changed(vocab_size=512)]
    trains = [f"quick 300 {TrainConfig.batch_size} None", "small 7 3 96"]
    for line, train, model in zip(text, trains, shapes, strict=True):
        cells = line.split()
        assert (" ".join(cells[:4]), cells[-1]) == (train, f"{decoder_parameters(model):,}")


def test_seeds_are_numbers_and_ranges() -> None:
    run = ["run", "--encoding", "nope", "--task", "flipflop", "--seeds"]
    _, (given,) = parse(COMMANDS, [*run, "7", "0-4"])
    assert given.make(GridOptions).seeds == (7, 0, 1, 2, 3, 4)
    _, (default,) = parse(COMMANDS, run[:-1])
    assert default.make(GridOptions).seeds == (0,)


@pytest.mark.parametrize(("before", "after"), [(None, "1"), ("4,6", "6"), ("GPU-a,GPU-b", "GPU-b")])
def test_one_of_several_gpus(
    monkeypatch: pytest.MonkeyPatch, before: str | None, after: str
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("pe_bench.system.environment.set_up", Mock())
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if before is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", before)
    for _ in range(2):  # a grid file calls it for each table
        assert find_device("cuda:1") == "cuda" and os.environ["CUDA_VISIBLE_DEVICES"] == after


HELP = ["--encoding", "--train.lr ", "--pretrain.steps ", "--model.width ", "examples:"]
LIGHT: dict[str, list[str]] = {
    "--help": ["run", "list", "report", "check"],
    "--version": [f"pe-bench {pe_bench.__version__}"],
    "list": catalogue.names("encoding") + catalogue.names("task"),
    "run --help": HELP,
    "report --help": ["--results"],
    "export --help": ["FILE.parquet", "--results"],
    "rerun --help": ["encoding/task/seed", "--keep"],
    "merge --help": ["DIR", "folder to copy the runs to"],
    "checkpoint --help": ["encoding/task/seed", "--subset"],
    "import --help": ["GGUF", "DIR"],
    "status --help": ["--all"],
    "results quick": ["results/quick"],
    "show --help": ["encoding/task/seed"],
    "prune --help": ["stale, replaced", "--dry-run"],
    "compare --help": ["--all", "--task"],
    "check --help": ["--device", "--verbose", "--kv-heads"],
}


@pytest.fixture(scope="module")
def without_torch() -> Callable[[str], str]:
    """Run a command in a process in which importing torch is an error; return its output."""
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


@pytest.mark.slow
@pytest.mark.parametrize("command", LIGHT)
def test_what_needs_no_torch(without_torch: Callable[[str], str], command: str) -> None:
    out = without_torch(command)
    assert all(word in out for word in LIGHT[command])


@pytest.mark.slow
def test_module_is_the_command() -> None:
    env = os.environ | {"PYTHONPATH": str(Path(pe_bench.__file__).parents[1])}
    command = [sys.executable, "-m", "pe_bench", "repot"]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("pe-bench: ")
