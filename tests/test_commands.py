"""The command that a page shows for some runs makes these runs."""

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers import some_slow
from test_committed import FOLDERS, RESULTS
from test_committed_grids import plan

from pe_bench.cli import COMMANDS
from pe_bench.commands.parser import parse
from pe_bench.commands.run import make_grid
from pe_bench.config import TrainConfig
from pe_bench.grid import plan as planning
from pe_bench.reporting.page.commands import describe_commands, list_commands
from pe_bench.results.identity import flatten_settings, without_defaults
from pe_bench.results.record import RunRecord
from pe_bench.results.store import read_records
from pe_bench.runs.command_words import command_words
from pe_bench.runs.options import RunOptions
from pe_bench.runs.run import Run
from pe_bench.runs.run_record import make_record
from pe_bench.runs.tuning import Tuning
from pe_bench.task import Preset, Vocabulary
from pe_bench.text.tokenizer import ByteTokenizer

OTHER_CODE = "code of another version"
REASONS = {  # settings that no command can set, by the start of their path
    "versions.": OTHER_CODE,
    "start.versions.": OTHER_CODE,
    "from.version": OTHER_CODE,
    "tune.version": "a search of another version",
    "tune.values": "a search of another version",
    "conditions.": "times of another machine",
    "data": "other data",
}


def runs_of(command: str) -> list[Run]:
    """Return the runs that a command would execute in an empty folder; nothing is trained."""
    program, *words = shlex.split(command)
    assert program == "pe-bench"
    _, (values,) = parse(COMMANDS, words)
    return plan(make_grid(values))


def check(records: Sequence[RunRecord]) -> Counter[str]:
    """Check a table's commands; count their runs, and the other runs by reason."""
    made: dict[tuple[str, int], Run] = {}
    for command in list_commands(records):
        words = shlex.split(command)
        specs = words[words.index("--encoding") + 1 : words.index("--task")]
        assert specs == sorted(specs)  # the page is the same in every process
        for run in runs_of(command):
            assert (run.encoding.label, run.seed) not in made, "two commands make one run"
            made[run.encoding.label, run.seed] = run
    assert made.keys() == {(record.encoding, record.seed) for record in records}
    counts: Counter[str] = Counter()
    for record in records:
        run = made[record.encoding, record.seed]
        old, new = flatten(record.settings), flatten(run.resolved.settings)
        differing = [name for name in old.keys() | new if old.get(name) != new.get(name)]
        reasons = {name: reason_for(name) for name in differing}
        if OTHER_CODE not in reasons.values():  # other code may have other options
            assert None not in reasons.values(), (list_commands([record]), reasons)
        same = run.resolved.digest() == record.settings_digest
        assert same == (not differing)
        counts["the same" if same else ", ".join(sorted({*filter(None, reasons.values())}))] += 1
    return counts


def flatten(settings: Mapping[str, Any]) -> dict[str, Any]:
    return flatten_settings(without_defaults(settings))


def reason_for(name: str) -> str | None:
    return next((why for start, why in REASONS.items() if name.startswith(start)), None)


@pytest.mark.parametrize("folder", some_slow(FOLDERS, []))
def test_committed_runs(folder: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(planning, "describe_depths", lambda *_: [])  # takes most of the time
    monkeypatch.chdir(tmp_path)
    tables: dict[str, list[RunRecord]] = {}
    for record in read_records(RESULTS / folder):
        tables.setdefault(record.settings_digest, []).append(record)
    counts: Counter[str] = Counter()
    for records in tables.values():
        counts += check(records)
    print(folder, dict(counts))


TINY = "--train.steps 3 --train.lr 0.0001234567890123 --model.width 16 --model.mlp_width 8"
OPTIONS = {
    "a preset": "--encoding nope --task flipflop --preset small --seeds 3",
    "precision": "--encoding nope --task flipflop --precision bf16",
    "changed values": f"--encoding rope:base=500 --task copying:samples=3 --seeds 0-2 {TINY}",
    "a switch": "--encoding rope --task flipflop --train.recompute true --train.save_every 1",
    "protocol": "--encoding rope --task perplexity --protocol paper",
    "subsets": "--encoding rope --task scrolls --data {data}/scrolls --subsets quality",
    "two phases": "--encoding rope --task scrolls --data {data}/scrolls --pretrain.steps 2",
    "tokenizer": "--encoding rope --task perplexity --tokenizer bpe:300",
    "data": "--encoding rope --task scrolls --data {data}/scrolls",
    "data of each phase": "--encoding rope --task scrolls --data scrolls={data}/scrolls",
    "a search": f"--encoding rope --task flipflop --tune {TINY}",
    "options of a search": "--encoding rope --task mqar --tune --tune.lr 0.01 0.1 --tune.seeds 7",
    "another start": f"--encoding tape --from rope:base=500 --task flipflop {TINY}",
    "adaptation": f"--encoding tape --from rope --task flipflop --adapt.steps 4 {TINY}",
    "adapters": "--encoding rope --from rope --task mqar --adapt.steps 4 --adapt.method lora",
    "further trained parameters": "--encoding tape --from rope --task mqar --adapt.steps 4 "
    "--adapt.method none --adapt.also embeddings+norms",
    "no training": "--encoding rope --task properties --model.layers 1",
}


@pytest.mark.parametrize("earlier", [False, True])
@pytest.mark.parametrize("name", some_slow(OPTIONS, ["changed values", "adaptation", "a search"]))
def test_commands_of_records(
    name: str, earlier: bool, real_documents: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Records of earlier versions do not contain the requested values and subsets."""
    monkeypatch.chdir(tmp_path)
    asked = runs_of(f"pe-bench run {OPTIONS[name].format(data=real_documents)}")
    records = []
    for run in asked:
        record = make_record("done", run.resolved, run.phases, run.seed, 0)
        records.append(replace(record, options=None) if earlier else record)
    (command,) = list_commands(records)
    made = runs_of(command)
    if earlier and name == "subsets":
        assert "nor a choice of subsets" in describe_commands(records, [command])
        return
    assert [run.folder for run in made] == [run.folder for run in asked], command
    assert [run.precision for run in made] == [run.precision for run in asked]
    if not earlier:
        assert len(command) < 120 + len(OPTIONS[name])


def test_words_have_what_changes_the_task_and_nothing_else(tmp_path: Path) -> None:
    """Paths have placeholders, and what equals the preset or has no effect is left out."""

    def task(label: str, vocabulary: Any, **train: Any) -> Any:
        config = TrainConfig(steps=train.pop("steps", 9), **train)

        def preset(name: str, data: Path | None) -> Preset:
            assert (name, data) == ("mid", Path("own"))
            return Preset(config)

        context = SimpleNamespace(preset="mid", data=Path("own"))
        own = SimpleNamespace(vocabulary=vocabulary, context=context, preset=preset)
        return SimpleNamespace(label=label, task=own, start=None)

    text = ByteTokenizer()
    numbers = task("mqar:pairs=3", Vocabulary(9), lr=0.5)
    questions = task("scrolls:items=5", Vocabulary(9), steps=0, length=64)
    questions.start = task("perplexity:corpus=pg19", text, batch_size=8)
    options = RunOptions(
        subsets=("b", "a"),
        tokenizer="bpe:300",
        data={"": Path("x"), "mqar": Path("y"), "other": Path("z"), "perplexity": Path("v")},
        tune=Tuning((0.25, 0.5), (7, 8)),
        train={"steps": 7, "batch_size": 2, "length": 64, "recompute": True},
        pretrain={"steps": 9, "batch_size": 16, "lr": 0.25},
        model={"layers": 3, "qk_norm": "rms"},
        origin="rope",
        adapt={"steps": 4, "also": "norms"},
    )
    shape = "--model.layers 3 --model.qk_norm rms --adapt.steps 4 --adapt.also norms"
    train = "--train.steps 7 --train.batch_size 2 --train.length 64 --train.recompute true"
    assert " ".join(command_words(options, numbers, is_searched=False)) == (
        f"--subsets b a --data DIR mqar=DIR {train} {shape}"
    )
    changed = replace(options, train={"steps": 9}, data={})
    words = command_words(changed, numbers, is_searched=True)
    assert " ".join(words) == f"--subsets b a --tune --tune.lr 0.25 0.5 --tune.seeds 7 8 {shape}"
    usual = {**options.train, "lr": 0.5}
    other = replace(options, tune=Tuning(), subsets=None, data={}, train=usual)
    words = command_words(other, numbers, is_searched=True)
    assert " ".join(words) == f"--tune {train} {shape}"
    before = "--pretrain.batch_size 16 --pretrain.lr 0.25"
    assert " ".join(command_words(options, questions, is_searched=False)) == (
        f"--subsets b a --tokenizer bpe:300 --data DIR perplexity=DIR {before} {shape}"
    )
    (tmp_path / "own.json").touch()
    own = replace(options, tokenizer=str(tmp_path / "own.json"), train={"length": 96, "steps": 1})
    places = "--tokenizer FILE --data DIR perplexity=DIR"
    assert " ".join(command_words(own, questions, is_searched=False)) == (
        f"--subsets b a {places} --train.length 96 {before} {shape}"
    )


@pytest.mark.slow
def test_an_export_names_no_paths(
    real_documents: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (run,) = runs_of(f"pe-bench run {OPTIONS['data'].format(data=real_documents)}")
    record = make_record("done", run.resolved, run.phases, run.seed, 0)
    assert f"--data {real_documents}/scrolls" in list_commands([record])[0]
    sent = [replace(record, sources={})]
    assert list_commands(sent)[0].endswith("--data DIR")
    assert "DIR: the folder with the data" in describe_commands(sent, list_commands(sent))
