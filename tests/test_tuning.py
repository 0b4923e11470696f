"""The search, equal for all encodings: on separate draws, stored, resumed and shown."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import pe_bench
from pe_bench.cli import main
from pe_bench.config import IGNORE, show_rate
from pe_bench.errors import InputError
from pe_bench.registry import catalogue, plugins
from pe_bench.reporting.tuning_notes import describe_tuning
from pe_bench.runs.options import RunOptions
from pe_bench.runs.resolve import resolve
from pe_bench.runs.tuning import Tuning, default_rates
from pe_bench.task import HELD_OUT_SEED
from pe_bench.train.loop import train
from pe_bench.train.training_setup import Training

TASK = '''
"""Counting up, a letter more at each step."""
import os
from pathlib import Path
import numpy as np
import torch
from pe_bench.api import (
    Batch, Column, Evaluation, Headline, Measurement, ModelConfig, Preset, Task, TrainConfig,
    Vocabulary
)

class Toy(Task):
    headline = Headline("score", "a")
    all_subsets = ("a", "b")
    views = (Column("a", "score"),)
    vocabulary = Vocabulary(8)
    presets = {"quick": Preset(TrainConfig(steps=4, batch_size=4, length=8, lr=3e-3),
                               ModelConfig(layers=1, heads=2, width=16, mlp_width=16))}

    def batch(self, subset, seed, step):
        with Path(os.environ["TOY_LOG"]).open("a") as file:
            file.write(f"{seed} {subset}\\n")
        rng = np.random.default_rng([seed, step])
        tokens = torch.from_numpy(rng.integers(0, 8, (4, 8)))
        return Batch(tokens, (tokens + 1) % 8)

    def evaluate(self, model, subset, seed, journal):
        return Evaluation([Measurement(subset, "score", 1.0, 5, 0.1, 8)])
'''
EACH = TASK.replace("    views", "    trains_each_subset = True\n    views")
Toy = Callable[..., tuple[int, list[str]]]
RATES = [1e-3, 3e-3, 1e-2]


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, untested: None) -> Toy:
    """Run the toy task; return the exit code and the rate and seed of each training."""
    monkeypatch.setenv("TOY_LOG", str(tmp_path / "log"))
    monkeypatch.setenv("PE_BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "toy.py").write_text(TASK)
    trained: list[str] = []

    def noting(training: Training, **more: Any) -> Any:
        trained.append(f"{show_rate(training.config.lr)} {training.seed}")
        if len(trained) == int(os.environ.get("TOY_STOP", "0")):
            raise KeyboardInterrupt
        return train(training, **more)

    monkeypatch.setattr("pe_bench.train.training.train", noting)

    def run(
        *more: str, encodings: tuple[str, ...] = ("nope",), task: str = "./toy.py"
    ) -> tuple[int, list[str]]:
        (tmp_path / "log").write_text("")
        trained.clear()
        code = main(["run", "--no-report", "--encoding", *encodings, "--task", task, *more])
        return code, [*trained]

    return run


def records(tmp_path: Path) -> list[dict[str, Any]]:
    return [json.loads(p.read_text()) for p in sorted(tmp_path.glob("results/runs/*/*/*/run.json"))]


def kept(tmp_path: Path, encoding: str = "nope") -> dict[str, Any]:
    (path,) = (tmp_path / "results/tuning/toy.py").glob(f"{encoding}-*.json")
    content: dict[str, Any] = json.loads(path.read_text())
    return content


@pytest.mark.parametrize(
    ("lr", "rates"),
    [
        (3e-3, ["1e-3", "3e-3", "1e-2"]),
        (1e-3, ["3e-4", "1e-3", "3e-3"]),
        (6e-4, ["2e-4", "6e-4", "2e-3"]),
        (1e-4, ["3e-5", "1e-4", "3e-4"]),
        (1e-2, ["3e-3", "1e-2", "3e-2"]),
        (2e-3, ["7e-4", "2e-3", "6e-3"]),
        (5e-3, ["2e-3", "5e-3", "2e-2"]),
        (2.5e-3, ["8e-4", "2.5e-3", "8e-3"]),
    ],
)
def test_default_rates(lr: float, rates: list[str]) -> None:
    assert list(map(show_rate, default_rates(lr))) == rates


def trials(tmp_path: Path, encoding: str = "nope") -> list[str]:
    """Return the trials of the search in the notation of `toy`."""
    tried = kept(tmp_path, encoding)["tried"]
    return [f"{show_rate(trial['lr'])} {trial['seed']}" for trial in tried]


@pytest.mark.slow
def test_the_best_held_out_loss_chooses(toy: Toy, tmp_path: Path) -> None:
    code, trained = toy("--tune", "--seeds", "0", "1")
    found = kept(tmp_path)
    worst: dict[float, float] = {}
    for trial in found["tried"]:
        worst[trial["lr"]] = max(trial["loss"], worst.get(trial["lr"], 0.0))
    best = found["lr"]["all"]
    seeds = [trial["seed"] for trial in found["tried"] if trial["lr"] == best]
    assert code == 0 and found["rates"] == RATES and seeds == [1000, 1001, 1002]
    assert best > 1e-2 and worst[best] < worst[3e-3]  # in four steps, faster than the grid
    expected = ["3e-3 1000", "1e-3 1000", "1e-2 1000", "3e-2 1000"]  # beyond the edge
    assert trials(tmp_path)[:4] == expected
    runs = [f"{show_rate(best)} 0", f"{show_rate(best)} 1"]
    assert trained == [*trials(tmp_path), *runs]
    for record in records(tmp_path):
        assert record["tuning"]["task"]["lr"] == {"all": best}
        assert record["tuning"]["task"]["values"] == {"all": None}
        assert record["settings"]["tune"]["lr"] == RATES
        assert record["settings"]["train"]["lr"] == 3e-3


@pytest.mark.slow
def test_a_value_of_the_encoding_is_chosen_and_shown(
    toy: Toy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The row keeps its name. Model, record and a repeated run have the value."""
    toy("--tune", "--tune.seeds", "7", "--keep", encodings=("rope", "rope:base=50"))
    (record, other) = sorted(records(tmp_path), key=lambda r: len(r["encoding"]))
    tried = {trial["value"] for trial in record["tuning"]["task"]["tried"]}
    assert tried == {None, "100", "1000"}
    assert {trial["value"] for trial in other["tuning"]["task"]["tried"]} == {None}
    chosen = record["tuning"]["task"]["values"]["all"]
    assert record["encoding"] == "rope" and chosen in tried
    (folder,) = (tmp_path / "results/runs/toy.py/rope").glob("*/model")
    config = json.loads((folder / "config.json").read_text())
    assert config["rope_parameters"]["rope_theta"] == float(chosen or 10_000)
    assert main(["report"]) == 0
    text = (tmp_path / "results/leaderboard.md").read_text()
    rate = show_rate(record["tuning"]["task"]["lr"]["all"])
    assert f"rope {rate}{f', base={chosen}' if chosen else ''}" in text


@pytest.mark.slow
def test_held_out_draws_are_of_a_seed_of_their_own(toy: Toy, tmp_path: Path) -> None:
    toy("--tune")
    seeds = [line.split()[0] for line in (tmp_path / "log").read_text().splitlines()]
    tried = kept(tmp_path)["tried"]
    for seed in (1000, 1001, 1002):
        expected = sum(trial["steps"] for trial in tried if trial["seed"] == seed)
        assert seeds.count(str(seed)) == expected > 0
    assert seeds.count("0") == 4
    assert seeds.count(str(HELD_OUT_SEED)) == len(tried) * 16
    assert {*seeds} == {"0", "1000", "1001", "1002", str(HELD_OUT_SEED)}


@pytest.mark.slow
def test_what_is_chosen_is_not_chosen_again(toy: Toy, tmp_path: Path) -> None:
    toy("--tune")
    best = show_rate(kept(tmp_path)["lr"]["all"])
    assert toy("--tune") == (0, [])
    assert toy("--tune", "--seeds", "0", "5") == (0, [f"{best} 5"])
    assert toy("--train.lr", best) == (0, [])  # the same model, however its rate was chosen
    assert toy()[1] == ["3e-3 0"]


@pytest.mark.slow
@pytest.mark.parametrize("stop", [1, 2, 4, 7])
def test_an_interrupted_search_goes_on(
    toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: int
) -> None:
    monkeypatch.setenv("TOY_STOP", str(stop))
    code, before = toy("--tune")
    assert code == 130 and len(before) == stop
    monkeypatch.delenv("TOY_STOP")
    code, after = toy("--tune")
    assert code == 0
    best = show_rate(kept(tmp_path)["lr"]["all"])
    assert [*before[:-1], *after] == [*trials(tmp_path), f"{best} 0"]


@pytest.mark.slow
def test_a_rate_that_diverges_is_out(toy: Toy, tmp_path: Path) -> None:
    code, trained = toy("--tune", "--tune.lr", "1e30", "1e-4", "--train.steps", "9")
    found = kept(tmp_path)
    assert code == 0 and trained[-1] == f"{show_rate(found['lr']['all'])} 0"
    assert found["lr"]["all"] < 1.0
    losses = {trial["lr"]: trial["loss"] for trial in found["tried"]}
    assert losses[1e30] is None and losses[1e-4] is not None


@pytest.mark.slow
def test_no_rate_is_left(toy: Toy, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _ = toy("--tune", "--tune.lr", "1e30", "1e31", "--train.steps", "9")
    assert code == 1
    assert "not finite with any learning rate of 1e28, 1e29, 1e30" in capsys.readouterr().err
    assert records(tmp_path)[0]["status"] == "failed"


@pytest.mark.parametrize(("seeds", "rule"), [((7,), "seed 7"), ((7, 8), "the worst of seeds 7, 8")])
def test_a_line_says_how_rates_were_chosen(seeds: tuple[int, ...], rule: str) -> None:
    search = {"lr": {"all": 1e-3}, "trainings": {"all": 3.5}}
    record = SimpleNamespace(encoding="nope", tuning={"task": search})
    tune = {"version": 2, "lr": [1e-3, 3e-3], "seeds": seeds}
    about = SimpleNamespace(settings={"train": {"steps": 9}, "tune": tune})
    ranking = SimpleNamespace(order=["nope"])
    table: Any = SimpleNamespace(about=about, records=[record], ranking=ranking, origin="")
    assert describe_tuning(table) == [
        "Learning rate: tuned for every encoding, beginning with 1e-3, 3e-3, by the loss on "
        f"held-out batches ({rule}, not reported): nope 1e-3. A search took up to 3.5 trainings."
    ]


def _adapted(label: str, steps: int, lr: float, tuning: dict[str, Any] | None = None) -> Any:
    config = {"steps": steps, "lr": lr}
    return SimpleNamespace(encoding=label, adaptation={"config": config}, tuning=tuning)


def test_rates_of_an_adaptation_are_apart_from_those_of_the_source_model() -> None:
    settings: dict[str, Any] = {"train": {"steps": 9, "lr": 2e-3}}
    rows = [_adapted("rope -> rope", 0, 2e-3), _adapted("rope -> nope", 5, 5e-4)]
    about = SimpleNamespace(settings=settings, tuning=None)
    table: Any = SimpleNamespace(about=about, records=rows, origin="rope")
    source = "Learning rate of the source model rope: 2e-3 (not tuned)."
    assert describe_tuning(table) == [
        "Learning rate of the adaptation: 5e-4 for every encoding (not tuned).",
        source,
    ]
    rows.append(_adapted("rope -> tape", 5, 1e-4))
    assert describe_tuning(table) == [
        "Learning rate of the adaptation (not tuned): rope -> nope 5e-4; rope -> tape 1e-4.",
        source,
    ]
    table.records = rows[:1]
    assert describe_tuning(table) == [source]


def test_an_adaptation_has_the_rates_of_its_own_search() -> None:
    own = {"lr": {"all": 3e-4}, "rates": [1e-4, 3e-4, 1e-3], "trainings": {"all": 4.0}}
    tuning = {"task": own, "start": {"lr": {"all": 1e-2}}}
    settings: dict[str, Any] = {
        "train": {"steps": 9, "lr": 2e-3},
        "tune": {"version": 2, "lr": [1e-3, 3e-3], "seeds": [7]},
    }
    about = SimpleNamespace(settings=settings, tuning=tuning)
    record = _adapted("rope -> nope", 5, 3e-4, tuning)
    ranking = SimpleNamespace(order=["rope -> nope"])
    table: Any = SimpleNamespace(about=about, records=[record], ranking=ranking, origin="rope")
    assert describe_tuning(table) == [
        "Learning rate of the adaptation: tuned for every encoding, beginning with 1e-4, 3e-4, "
        "1e-3, by the loss on held-out batches (seed 7, not reported): rope -> nope 3e-4. A search "
        "took up to 4 trainings.",
        "Learning rate of the source model rope: tuned, beginning with 1e-3, 3e-3: 1e-2.",
    ]


@pytest.mark.slow
def test_encodings_share_a_table_and_tuned_ones_none_with_others(
    toy: Toy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    toy("--tune", encodings=("nope", "rope"))
    printed = " ".join(capsys.readouterr().out.split())
    toy(encodings=("nope", "rope"))
    digests: dict[bool, set[str]] = {True: set(), False: set()}
    for record in records(tmp_path):
        digests[bool(record["tuning"])].add(record["settings_digest"])
    assert len(digests[True]) == len(digests[False]) == 1 and digests[True] != digests[False]
    assert main(["report"]) == 0
    text = (tmp_path / "results/leaderboard.md").read_text()
    assert "Learning rate: 3e-3 for every encoding (not tuned)." in text
    chosen = {name: show_rate(kept(tmp_path, name)["lr"]["all"]) for name in ("nope", "rope")}
    assert "Learning rate: tuned for every encoding, beginning with 1e-3, 3e-3, 1e-2, by" in text
    for name, rate in chosen.items():
        assert f"{name} {rate}" in text
        assert f"{name} {rate}" in printed  # the run's own table says it too


@pytest.mark.slow
def test_each_subset_that_is_trained_has_a_choice(toy: Toy, tmp_path: Path) -> None:
    (tmp_path / "toy.py").write_text(EACH)
    code, trained = toy("--tune", "--tune.lr", "1e-3", "1e-2")
    chosen = kept(tmp_path)["lr"]
    assert code == 0 and [*chosen] == ["a", "b"]
    for subset in ("a", "b"):
        assert f"{show_rate(chosen[subset])} 0" in trained
    assert len(trained) == len(trials(tmp_path)) + 2
    assert not list(tmp_path.glob("cache/checkpoints/*/*/final.safetensors"))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--tune", "--seeds", "0", "1000"], "seed 1000 is used to choose learning rates"),
        (["--tune", "--tune.seeds", "0"], "seed 0 is used to choose learning rates"),
        (["--tune", "--tune.lr", "1e-3"], "tune.lr needs at least two different learning rates"),
        (["--tune", "--tune.lr", "1e-3", "0"], "tune.lr must be above 0, not 0"),
        (["--tune", "--tune.lr", "1e-3", "inf"], "tune.lr must be a finite number, not inf"),
        (["--tune", "--tune.lr", "1e-3", "fast"], "must be a number, not 'fast'"),
        (["--tune.lr", "1e-3", "1e-2"], "--tune.lr has no effect without --tune"),
        (["--tune.seeds", "7"], "--tune.seeds has no effect without --tune"),
        (["--tune", "--train.lr", "1", "--tune.lr", "1", "2"], "train.lr has no effect together"),
        (["--tune", "--train.lr", "0"], "a learning rate of 0 has no multiples"),
        (["--tune", "--train.steps", "0"], "--tune has no effect: toy.py trains nothing"),
    ],
)  # fmt: skip
def test_bad_input(
    toy: Toy, capsys: pytest.CaptureFixture[str], options: list[str], says: str
) -> None:
    try:
        code, trained = toy(*options)
    except SystemExit as exit:
        code, trained = int(str(exit.code)), []
    assert (code, trained) == (2, [])
    errors = capsys.readouterr().err.strip()
    assert says in errors and len(errors.splitlines()) == 1


@pytest.mark.slow
def test_from_python(toy: Toy, tmp_path: Path) -> None:
    frame = pe_bench.run("nope", "./toy.py", tune=True)
    assert len(frame) and kept(tmp_path)["rates"] == RATES
    pe_bench.run("nope", "./toy.py", tune={"lr": [1e-3, 1e-2], "seeds": [7]})
    with pytest.raises(InputError, match=r"no 'lrs' \(did you mean 'lr'\?\); it has lr, seeds"):
        pe_bench.run("nope", "./toy.py", tune={"lrs": [1]})


# There are so few different rows that some occur twice.
FEW_ROWS = ("multi-addition", "multiplication", "posgen")


@pytest.mark.slow
@pytest.mark.parametrize("name", catalogue.names("task"))
def test_held_out_batches_are_like_training_and_no_part_of_it(
    name: str, tmp_path: Path, cache_folder: Path
) -> None:
    for part, lines in (("train", 3000), ("test", 300)):
        (tmp_path / part).mkdir()
        text = "".join(f"Line {i}: {i * i % 997} and {i % 13}.\n" for i in range(lines))
        (tmp_path / part / "a.txt").write_text(text)
    options = RunOptions(cache=cache_folder, data={"perplexity": tmp_path}, tune=Tuning())
    task = resolve(options, name).task
    phase = task.subsets[0] if task.trains_each_subset else None
    if task.train.steps:
        held_out = rows(task.held_out_batch(phase, 0))
        last = range(task.train.steps - 20, task.train.steps)
        sizes = [len(rows(task.batch(phase, 0, step))) for step in last]
        assert min(sizes) <= len(held_out) <= max(sizes)
        assert rows(task.held_out_batch(phase, 0)) == held_out
        assert rows(task.held_out_batch(phase, 1)) != held_out
        long = {row for row in held_out if len({*row}) > 8}  # shorter ones may occur by chance
        trained = [row for step in range(20) for row in rows(task.batch(phase, 0, step))]
        assert name in FEW_ROWS or not long & {*trained}


def rows(batch: Any) -> list[tuple[int, ...]]:
    return [tuple(row) for row in batch.tokens.tolist()]


@pytest.mark.slow
def test_the_last_documents_of_a_text_are_held_out(tmp_path: Path) -> None:
    letters = bytes(range(ord("0"), ord("z"))).decode()
    for part in ("train", "test"):
        (tmp_path / part).mkdir()
        for letter in letters:
            (tmp_path / part / f"{ord(letter)}.txt").write_text(letter * 400)
    options = RunOptions(
        cache=tmp_path / "cache", data={"perplexity": tmp_path}, train={"length": 64}
    )
    plain = resolve(options, "perplexity").task
    task = resolve(replace(options, tune=Tuning()), "perplexity").task
    tokenizer: Any = task.vocabulary

    def seen(batches: list[Any]) -> str:
        found = {i for batch in batches for row in rows(batch) for i in row}
        return "".join(letter for letter in letters if int(tokenizer.encode(letter)[0]) in found)

    held_out = seen([task.held_out_batch(None, step) for step in range(20)])
    trained = seen([task.batch(None, 0, step) for step in range(300)])
    assert len(held_out) == 3 and not {*held_out} & {*trained}  # a twentieth of 74, rounded down
    assert seen([plain.batch(None, 0, step) for step in range(300)]) == letters
    with pytest.raises(InputError, match="too few to reserve a twentieth"):
        few = replace(options, train={"length": 2000}, tune=Tuning())
        resolve(few, "perplexity").task.batch(None, 0, 0)


@pytest.mark.slow
def test_the_last_documents_of_records_are_held_out(tmp_path: Path) -> None:
    for split, n in (("train", 100), ("validation", 4)):
        lines = []
        for i in range(n):
            document = f"{i // 10:02}" * 600  # ten questions on each
            record = {"id": f"{split}{i}", "input": f"Q {i}?\n\n{document}", "output": f"{i:03}"}
            lines.append(json.dumps(record) + "\n")
        (tmp_path / "qasper").mkdir(exist_ok=True)
        (tmp_path / "qasper" / f"{split}.jsonl").write_text("".join(lines))
    options = RunOptions(
        cache=tmp_path / "cache",
        data={"scrolls": tmp_path},
        subsets=("qasper",),
        train={"batch_size": 10, "length": 512},
    )
    task = resolve(replace(options, tune=Tuning()), "scrolls").task
    tokenizer: Any = task.vocabulary

    def answers(batches: list[Any]) -> set[str]:
        found = [row[row != IGNORE].tolist() for batch in batches for row in batch.targets]
        return {tokenizer.decode(ids) for ids in found}

    def all_of(stop: int) -> set[str]:
        return {f"{i:03}" for i in range(stop)}

    trained = answers([task.batch("qasper", 0, step) for step in range(9)])
    held_out = answers([task.held_out_batch("qasper", step) for step in range(3)])
    # A twentieth would begin at 95, within a document, and the questions of a document stay
    # together.
    assert held_out and not trained & held_out and trained | held_out == all_of(100)
    assert held_out == all_of(100) - all_of(90)
    plain = resolve(options, "scrolls").task
    assert answers([plain.batch("qasper", 0, step) for step in range(10)]) == all_of(100)


@pytest.mark.slow
def test_what_a_task_starts_from_is_tuned_first(
    toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for part in ("train", "test"):
        (tmp_path / "text" / part).mkdir(parents=True)
        lines = "".join(f"Line {i}: {i * i % 997}.\n" for i in range(3000))
        (tmp_path / "text" / part / "a.txt").write_text(lines)
    for split in ("train", "validation"):
        (tmp_path / "records" / "quality").mkdir(parents=True, exist_ok=True)
        lines = "".join(
            json.dumps({"id": f"{i}", "input": f"Q?\n\n{split} {i}", "output": f"{i}"}) + "\n"
            for i in range(30)
        )
        (tmp_path / "records" / "quality" / f"{split}.jsonl").write_text(lines)
    start_lr = plugins.load("task", "perplexity").cls.presets["quick"].train.lr
    small = ["--model.layers", "1", "--model.width", "8", "--model.mlp_width", "8"]
    steps = ["--train.steps", "2", "--pretrain.steps", "2", "--pretrain.batch_size", "2"]
    data = ["--data", "scrolls=records", "perplexity=text"]
    _, trained = toy("--tune", "--tune.lr", "1e-4", "1e-3", *small, *steps, *data, task="scrolls")
    chosen = records(tmp_path)[0]["tuning"]
    rate = show_rate(chosen["start"]["lr"]["all"])
    grid = list(map(show_rate, chosen["start"]["rates"]))
    assert grid == list(map(show_rate, default_rates(start_lr)))
    assert list(map(show_rate, chosen["task"]["rates"])) == ["1e-4", "1e-3"]
    fine_tuned = show_rate(chosen["task"]["lr"]["quality"])
    searches = []
    for part in ("start", "task"):  # the start first, of which the best is kept
        for trial in chosen[part]["tried"]:
            searches.append(f"{show_rate(trial['lr'])} {trial['seed']}")
    needed = {f"{rate} {seed}" for seed in (1001, 1002)}  # model that later trials start from
    assert {*searches} <= {*trained} <= {*searches, *needed, f"{rate} 0", f"{fine_tuned} 0"}
    assert trained[-2:] == [f"{rate} 0", f"{fine_tuned} 0"]
    assert trained.index(f"{grid[1]} 1000") == 0
    assert main(["report"]) == 0
    text = (tmp_path / "results/leaderboard.md").read_text()
    assert (
        f"Learning rate of the pre-training: tuned for every encoding, beginning with {grid[0]},"
        in text
    )
    assert f"nope {fine_tuned}." in text
