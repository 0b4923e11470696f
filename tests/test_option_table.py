"""One table of options: each field exists on the command line, in grid files and in Python."""

import inspect
import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import numpy as np
import pytest

import pe_bench
from pe_bench.cli import COMMANDS
from pe_bench.commands.command import Command, OptionGroup, results_option
from pe_bench.commands.device import device_option
from pe_bench.commands.parser import parse
from pe_bench.commands.run import COMMAND, GROUPS, GridOptions
from pe_bench.commands.values import Values, signature, take_keywords
from pe_bench.config import TrainConfig
from pe_bench.errors import InputError
from pe_bench.grid.execution import ExecutionOptions
from pe_bench.grid.shard import Shard
from pe_bench.option_table import Option, argument, option, option_names, options_of
from pe_bench.runs.options import RunOptions
from pe_bench.runs.rebuild import _changed
from pe_bench.runs.tuning import SEEDS, Tuning

PAIR = {"encodings": ("nope",), "tasks": ("mqar",)}
WORDS = ["--encoding", "nope", "--task", "mqar"]
KEYS = 'encoding = "nope"\ntask = "mqar"\n'
KEYWORDS = [one for group in GROUPS for one in group.options]


def read(command: Command, words: list[str]) -> Values:
    _, (values,) = parse([command], ["run", *words])
    return values


def read_file(command: Command, folder: Path, text: str) -> Values:
    path = folder / "grid.toml"
    path.write_text(KEYS + text)
    return read(command, [str(path)])


@dataclass(frozen=True)
class WiderTrain(TrainConfig):
    momentum: float = option(0.5, "of the optimizer")


@dataclass(frozen=True, kw_only=True)
class WiderRun(RunOptions):
    train: Mapping[str, Any] = option(dict, "training", config=WiderTrain)


@dataclass(frozen=True)
class WiderTuning(Tuning):
    rounds: int = option(2, "of the search")


@dataclass(frozen=True, kw_only=True)
class WiderTune(RunOptions):
    tune: WiderTuning | None = option(None, "search", config=WiderTuning)


@dataclass(frozen=True, kw_only=True)
class Wider(ExecutionOptions):
    patience: int = option(3, "runs that may fail")
    time_limit: float | None = option(None, "hours")
    queue: Literal["short", "long"] = option("short", "where runs wait")
    mail: bool = option(False, "send a mail")
    colour: bool = option(True, "print plain text")
    hosts: tuple[str, ...] = option((), "machines", flag="host")
    log: Path | None = option(None, "where lines go")


# New options as a class, the class that it replaces, words, TOML, keyword, value.
NEW = [
    (Wider, ["--patience", "5"], "patience = 5", {"patience": 5}, 5),
    (Wider, ["--time-limit=2.5"], "time-limit = 2.5", {"time_limit": 2.5}, 2.5),
    (Wider, ["--queue", "long"], "queue = 'long'", {"queue": "long"}, "long"),
    (Wider, ["--mail"], "mail = true", {"mail": True}, True),
    (Wider, ["--no-colour"], "no-colour = true", {"colour": False}, False),
    (Wider, ["--host", "a", "b"], "host = ['a', 'b']", {"hosts": ["a", "b"]}, ("a", "b")),
    (Wider, ["--log", "none"], "log = 'none'", {"log": "none"}, Path("none")),
    (
        WiderRun,
        ["--train.momentum", "0.9"],
        "train.momentum = 0.9",
        {"train": {"momentum": 0.9}},
        {"momentum": 0.9},
    ),
    (
        WiderTune,
        ["--tune", "--tune.rounds", "4"],
        "[tune]\nrounds = 4",
        {"tune": {"rounds": 4}},
        WiderTuning(rounds=4),
    ),
]


@pytest.mark.parametrize(("cls", "words", "toml", "keyword", "value"), NEW)
def test_a_new_field_is_a_new_option_everywhere(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    cls: type[Any],
    words: list[str],
    toml: str,
    keyword: dict[str, Any],
    value: Any,
) -> None:
    groups = [OptionGroup(cls) if issubclass(cls, g.cls) else g for g in COMMAND.groups]
    command = replace(COMMAND, groups=groups)
    (name,) = keyword
    default = options_of(cls)[option_names(cls).index(name)].default

    assert read(command, [*WORDS, *words]).given == {**PAIR, name: value}
    assert read_file(command, tmp_path, toml).given == {**PAIR, name: value}
    assert take_keywords("run", command.options, keyword) == {name: value}

    assert getattr(Values({name: value}).make(cls), name) == value
    assert getattr(Values({}).make(cls), name) == default != value
    with pytest.raises(SystemExit):
        read(command, ["--help"])
    assert all(f"{word.partition('=')[0]} " in capsys.readouterr().out for word in words[:1])


def test_a_new_field_of_a_training_is_repeated_by_rerun() -> None:
    """A record has all values, and `rerun` passes the values that differ from the preset."""
    recorded = {**vars(TrainConfig()), "momentum": 0.9, "optimizer": "adamw"}
    assert _changed(recorded, WiderTrain()) == {"momentum": 0.9}


# Options with their own function to read words, or with limited values.
SAMPLES = {
    "seeds": ["3", "0-1"],
    "device": ["cuda:1"],
    "data": ["folder", "mqar=other"],
    "shard": ["2/8"],
    "tune.seeds": ["5-6"],
    "tune.lr": ["1e-3", "3e-3"],
}
ALL = [one for option in COMMAND.options for one in (option, *option.inner)]
SINGLE = [one for one in ALL if not one.is_changes]


def sample(option: Option) -> list[str]:
    if option.flag in SAMPLES:
        return SAMPLES[option.flag]
    if option.is_switch:
        return []
    if get_origin(option.item) is Literal:
        return [str(get_args(option.item)[-1])]
    words = {bool: "true", int: "2", float: "0.5", str: "some", Path: "some/folder"}
    return [words[option.item]]


@pytest.mark.parametrize("option", SINGLE, ids=lambda option: option.flag)
def test_every_option_has_one_value_on_the_command_line_in_a_file_and_in_python(
    tmp_path: Path, option: Option
) -> None:
    given = {"encoding": ["nope"], "task": ["mqar"], option.flag: sample(option)}
    searches = option.flag.startswith("tune.")
    words = ["--tune"] if searches else []
    for flag, values in given.items():
        words += [f"--{flag}", *values]
    found = read(COMMAND, words).given

    lines = []
    for flag, values in given.items():
        several = flag in ("encoding", "task") or option.is_tuple or option.is_mapping
        content = values if several else repr(values[0]) if values else "true"
        lines.append(f"{flag} = {content}")
    if searches:  # the table implies --tune
        lines[-1] = f"[tune]\n{lines[-1].removeprefix('tune.')}"
    path = tmp_path / "grid.toml"
    path.write_text("\n".join(lines))
    assert read(COMMAND, [str(path)]).given == found

    keywords = {one.name for one in KEYWORDS}
    known = {name: value for name, value in found.items() if name in keywords}
    assert take_keywords("run", KEYWORDS, known) == known


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_option_of_a_command_has_a_name_of_its_own(command: Command) -> None:
    every = [one for option in command.options for one in (option, *option.inner)]
    assert len({one.flag for one in every}) == len(every)
    assert len({one.name for one in command.options}) == len(command.options)
    assert all(one.help.strip() for one in every)


def test_python_has_the_options_of_the_command_as_keywords() -> None:
    parameters = inspect.signature(pe_bench.run).parameters
    assert [*parameters][:2] == ["encodings", "tasks"]
    assert {*parameters} == {one.name for one in KEYWORDS}
    assert parameters["preset"].default == RunOptions.preset
    assert parameters["jobs"].annotation == int | None


def test_a_signature_has_the_options_after_its_own_parameters() -> None:
    def own(encodings: str, tasks: str | None = None, **options: Any) -> float:
        return 0.5

    found = signature(own, KEYWORDS)
    first, second, *others = found.parameters.values()
    assert [first, second] == [*inspect.signature(own).parameters.values()][:2]
    assert found.return_annotation is float
    expected = [one for one in KEYWORDS if one.name not in ("encodings", "tasks")]
    assert [one.name for one in others] == [one.name for one in expected]
    for parameter, one in zip(others, expected, strict=True):
        assert parameter.kind is inspect.Parameter.KEYWORD_ONLY
        assert (parameter.default, parameter.annotation) == (one.default, one.annotation)


def test_an_option_is_a_field_with_its_details() -> None:
    @dataclass(frozen=True)
    class Own:
        file: str = argument("a file", "FILE")
        folder: str | None = argument("a folder", "DIR", default=None)
        sizes: Mapping[str, int] = option(dict, "sizes")
        rate: float = option(0.5, "a rate", above=0.25, below=0.75, short="r")
        device: str | None = device_option("cpu", "the CPU")
        results: Path = results_option("where runs are")
        unknown: int = 3

    file, folder, sizes, rate, device, results = options_of(Own)
    assert (file.is_required, file.positional, file.metavar, file.help) == (
        True, True, "FILE", "a file"
    )  # fmt: skip
    assert (folder.default, folder.positional, folder.metavar) == (None, True, "DIR")
    assert (sizes.default, sizes.positional, sizes.is_mapping) == ({}, False, True)
    assert (rate.above, rate.below, rate.short, rate.default) == (0.25, 0.75, "r", 0.5)
    assert device.read is not None and device.read(["cuda:1"]) == "cuda:1"
    assert (device.default, device.help[-18:]) == ("cpu", "; default: the CPU")
    assert (results.default, results.metavar) == (Path("results"), "DIR")
    assert results.help == "where runs are"


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_the_help_of_a_command_has_every_option_below_its_heading(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as error:
        parse(COMMANDS, [command.name, "--help"])
    assert error.value.code == 0
    _, *parts = re.split(r"^(\S.*):$", capsys.readouterr().out, flags=re.MULTILINE)
    blocks = dict(zip(parts[::2], parts[1::2], strict=True))
    for group in command.groups:
        for one in group.options:
            block = blocks[group.title or ("positional arguments" if one.positional else "options")]
            inner = block
            if one.config is not None:
                inner = blocks[f"--{one.flag}.*" if one.is_changes else f"--{one.flag}"]
            if not one.is_changes:
                word = one.metavar if one.positional else f"--{one.flag}"
                assert word and re.search(rf"^  .*{re.escape(word)}\b", inner, re.MULTILINE)
            assert all(f"  --{each.flag} " in inner for each in one.inner)


@pytest.mark.parametrize(
    ("keyword", "value"),
    [
        ({"seeds": 3}, (3,)),
        ({"seeds": range(2)}, (0, 1)),
        ({"seeds": "0-2"}, (0, 1, 2)),
        ({"encodings": "rope"}, ("rope",)),
        ({"results": "some/folder"}, Path("some/folder")),
        ({"data": "folder"}, {"": Path("folder")}),
        ({"data": Path("folder")}, {"": Path("folder")}),
        ({"data": {"mqar": "folder"}}, {"mqar": Path("folder")}),
        ({"data": None}, {}),
        ({"subsets": []}, None),
        ({"subsets": "test"}, ("test",)),
        ({"subsets": ["test", "train"]}, ("test", "train")),
        ({"subsets": None}, None),
        ({"encodings": []}, ()),
        ({"train": None}, {}),
        ({"tune": False}, None),
        ({"tune": True}, Tuning(seeds=SEEDS)),
        ({"tune": Tuning(seeds=(7,))}, Tuning(seeds=(7,))),
        ({"tune": {"lr": [3e-3, 1e-3], "seeds": [7]}}, Tuning((1e-3, 3e-3), (7,))),
        ({"shard": "2/8"}, Shard(2, 8)),
        ({"jobs": "2"}, 2),
        ({"keep": "true"}, True),
    ],
)
def test_values_of_python(keyword: dict[str, Any], value: Any) -> None:
    (name,) = keyword
    assert take_keywords("run", KEYWORDS, keyword) == {name: value}


@pytest.mark.parametrize(
    ("keyword", "says"),
    [
        ({"prest": "quick"}, r"run has no 'prest' \(did you mean 'preset'\?\); it has encodings,"),
        ({"wide": True}, "run has no 'wide'"),
        ({"precision": "fp8"}, "precision must be one of auto, fp32, bf16, not 'fp8'"),
        ({"executor": "rya"}, r"one of local, ray \(did you mean 'ray'\?\), not 'rya'"),
        ({"seeds": "x"}, "seeds must be a whole number, not 'x'"),
        ({"device": "tpu"}, "device must be auto, cpu, cuda or cuda:1, not 'tpu'"),
        ({"shard": "9/8"}, "shard must be a shard such as 2/8, from 1/8 to 8/8, not '9/8'"),
        ({"data": "mqra=x"}, r"there is no task 'mqra' \(did you mean 'mqar'\?\)"),
        ({"tune": {"lrs": [1]}}, r"tune has no 'lrs' \(did you mean 'lr'\?\); it has lr, seeds"),
        ({"train": {"stpes": 1}}, r"train has no 'stpes' \(did you mean 'steps'\?\)"),
        ({"train": "steps"}, "train must be a mapping of options to values, not 'steps'"),
        ({"tune": 3}, "tune must be a mapping of options to values, not 3"),
        ({"precision": 8}, "precision must be one of auto, fp32, bf16, not '8'"),
        ({"jobs": "two"}, "jobs must be a whole number, not 'two'"),
        ({"jobs": 0}, "jobs must be at least 1, not 0"),
        ({"seeds": 10**15}, f"seeds must be from 0 to {10**15 - 1}, not {10**15}"),
        ({"preset": 3}, "preset must be text, not 3"),
        ({"subsets": [3]}, "subsets must be text, not 3"),
        ({"shard": (1, 2)}, r"shard must be text as on the command line, not \(1, 2\)"),
        ({"origin": Path("nowhere.py")}, "nowhere.py"),
        ({"like": Path("nowhere")}, "nowhere"),
        ({"train": {"steps": 10**22}}, "train.steps must be at most 1,000,000,000,000, not 1"),
        ({"seeds": []}, "seeds is empty: give at least one"),
        (
            {"train": {"schedule": "cosin"}},
            "train.schedule must be one of cosine, linear, constant",
        ),
        ({"train": {"recompute": "no"}}, "train.recompute must be true or false, not 'no'"),
        ({"model": {"qk_norm": "foo"}}, "model.qk_norm must be one of none, rms, width, not 'foo'"),
    ],
)
def test_what_is_wrong_in_python_is_one_sentence(
    tmp_path: Path, keyword: dict[str, Any], says: str
) -> None:
    with pytest.raises(InputError, match=says) as error:
        pe_bench.run("nope", "flipflop", results=tmp_path / "results", **keyword)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "results").exists()


def test_numbers_of_numpy_become_those_of_python() -> None:
    steps: Any = np.int64(3)
    lr: Any = np.float32(0.5)
    config = TrainConfig(steps=steps, lr=lr)
    given = {"encodings": "rope", "tasks": "mqar", "seeds": np.arange(2)}
    found = Values(take_keywords("run", KEYWORDS, given)).make(GridOptions)
    tune = take_keywords("run", KEYWORDS, {"tune": {"lr": np.array([0.25, 0.5])}})["tune"]
    numbers = [config.steps, config.lr, *found.seeds, *tune.lr]
    assert list(map(type, numbers)) == [int, float, int, int, float, float]
    assert json.dumps(numbers) == "[3, 0.5, 0, 1, 0.25, 0.5]"


def test_a_whole_number_for_a_float_makes_the_same_digest() -> None:
    whole, exact = (TrainConfig(encoding_lr_factor=number, clip=0) for number in (10, 10.0))
    assert json.dumps(asdict(whole)) == json.dumps(asdict(exact))
    assert type(whole.encoding_lr_factor) is type(whole.clip) is float and type(whole.steps) is int


@pytest.mark.slow
def test_a_dry_run_of_python_runs_nothing(tmp_path: Path) -> None:
    rows = pe_bench.run("nope", "flipflop", results=tmp_path / "results", dry_run=True)
    assert rows.empty and not (tmp_path / "results").exists()


def test_a_setting_of_the_search_needs_the_search() -> None:
    with pytest.raises(InputError, match=r"--tune\.lr has no effect without --tune"):
        read(COMMAND, [*WORDS, "--tune.lr", "1", "2"])


DATACLASSES = {group.cls for command in COMMANDS for group in command.groups}
DATACLASSES |= {one.config for cls in list(DATACLASSES) for one in options_of(cls) if one.config}
NUMBERS = [
    pytest.param(cls, one, id=f"{cls.__name__}.{one.name}")
    for cls in sorted(DATACLASSES, key=lambda cls: cls.__name__)
    for one in options_of(cls)
    if one.item in (int, float)
]


@pytest.mark.parametrize(("cls", "one"), NUMBERS)
def test_no_number_is_infinite_or_negative(cls: type[Any], one: Option) -> None:
    needed = {each.name: ("nope",) for each in options_of(cls) if each.is_required}
    for number in (math.inf, -math.inf, math.nan, -1, "1"):
        value = (one.item(1), number) if one.is_tuple else number
        with pytest.raises(InputError, match=rf"{one.name} must "):
            cls(**needed | {one.name: value})


@pytest.mark.parametrize("words", [["--wide", "--wide"], ["--seeds", "1", "--seeds", "2"]])
def test_an_option_is_given_once(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    with pytest.raises(SystemExit) as error:
        read(COMMAND, [*WORDS, *words])
    assert error.value.code == 2
    assert f"{words[0]} is given twice: leave one of them out" in capsys.readouterr().err


def test_defaults_are_those_of_the_dataclasses() -> None:
    given = read(COMMAND, WORDS)
    assert given.given == PAIR
    assert given.make(RunOptions) == RunOptions()
    assert given.make(ExecutionOptions) == ExecutionOptions()
    assert given.make(GridOptions).results == Path("results")
