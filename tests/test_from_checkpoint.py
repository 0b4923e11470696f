"""Training that starts from an external checkpoint."""

import gc
import json
import re
import shlex
import shutil
import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import safetensors.torch
import torch
from helpers import some_slow
from test_commands import runs_of

import pe_bench
from pe_bench.cli import main
from pe_bench.config import AdaptConfig, BlockConfig, ModelConfig, TrainConfig
from pe_bench.decoder.model import Decoder
from pe_bench.errors import InputError, InputErrors
from pe_bench.grid import checkpoint_time
from pe_bench.grid.executors.work import RunSpec
from pe_bench.grid.plan import make_plan
from pe_bench.grid.spec import GridSpec
from pe_bench.pretrained.checkpoint import Checkpoint, open_checkpoint
from pe_bench.pretrained.saving import save_checkpoint
from pe_bench.pretrained.weights import load_files, make_empty
from pe_bench.registry import catalogue, plugins
from pe_bench.reporting.page.commands import list_commands
from pe_bench.results.splits import ID, OOD
from pe_bench.results.store import read_records
from pe_bench.runs import initial_weights as origin_module
from pe_bench.runs.adaptation import continue_from_origin
from pe_bench.runs.factory import RunFactory
from pe_bench.runs.initial_weights import load_origin, options_from
from pe_bench.runs.options import MovedPaths, RunOptions
from pe_bench.runs.rate_search import TRAININGS
from pe_bench.runs.rebuild import rebuild
from pe_bench.runs.resolve import resolve
from pe_bench.runs.run import pending_search_key
from pe_bench.runs.run_record import _find_adaptation, make_record
from pe_bench.runs.sources import find_user_paths
from pe_bench.runs.tuning import Tuning, default_rates
from pe_bench.sequences.length_generalization import LengthGeneralizationTask
from pe_bench.task import Batch
from pe_bench.tasks.ruler.prompts import KINDS
from pe_bench.tasks.scrolls import miniature
from pe_bench.tasks.scrolls.documents import write_split
from pe_bench.tasks.scrolls.subsets import SUBSETS
from pe_bench.text.tokenizer import ByteTokenizer
from pe_bench.train.checkpoint_store import CheckpointStore
from pe_bench.train.checkpoints import read_checkpoint
from pe_bench.train.training import ensure_trained
from pe_bench.train.training_setup import Training

SHAPE = ModelConfig(
    layers=2, heads=2, width=16, mlp_width=24, vocab_size=260, train_length=32, init_std=0.3
)
SMALL = "perplexity:windows=4"
METHODS = (
    ("encoding", None),
    ("lora", None),
    ("lora", "embeddings+norms"),
    ("encoding+lora", None),
    ("longlora", None),
    ("none", "embeddings+norms"),
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a Llama with random weights and an unusual base."""
    torch.manual_seed(0)
    spec = "rope:base=300"
    model = Decoder(SHAPE, plugins.load("encoding", spec).make)
    folder = tmp_path_factory.mktemp("checkpoint") / "tiny, saved here"
    save_checkpoint(model, folder, spec, tokenizer=ByteTokenizer())
    return folder


@pytest.fixture
def run(tmp_path: Path, checkpoint: Path) -> Callable[..., pd.DataFrame]:
    def run(*encodings: str, task: str = SMALL, **options: Any) -> pd.DataFrame:
        options = {"train": {"length": 32}, "origin": str(checkpoint), **options}
        frame = pe_bench.run(encodings, task, results=tmp_path / "results", **options)
        of_context = (frame["subset"] == "4x-context") & (frame["metric"] == "bits_per_byte")
        return frame[of_context]

    return run


def scores(frame: pd.DataFrame) -> dict[str, float]:
    return dict(zip(frame["encoding"], frame["value"], strict=True))


@pytest.mark.slow
def test_encodings_go_on_with_its_rotation(run: Any) -> None:
    found = scores(run("rope", "tape", "rope:base=300", "rope:base=10000", "nope"))
    name = "tiny-saved-here"
    specs = ("rope", "tape", "rope:base=300", "rope:base=10000", "nope")
    assert set(found) == {f"{name} -> {spec}" for spec in specs}
    assert found[f"{name} -> rope:base=10000"] != found[f"{name} -> rope"]
    assert found[f"{name} -> tape"] == pytest.approx(found[f"{name} -> rope"], rel=1e-6)
    assert found[f"{name} -> rope:base=300"] == found[f"{name} -> rope"]
    assert found[f"{name} -> nope"] != found[f"{name} -> rope"]


@pytest.mark.parametrize("origin", some_slow([None, "rope", "a checkpoint"], ["rope"]))
def test_a_worker_makes_the_run_of_the_command(
    checkpoint: Path, tmp_path: Path, origin: str | None
) -> None:
    """A worker gets the spec of a run. The options that a checkpoint adds are not part of it."""
    origin = str(checkpoint) if origin == "a checkpoint" else origin
    options = RunOptions(cache=tmp_path, origin=origin, train={"length": 32})
    command, worker = RunFactory(options), RunFactory(options)
    specs = [*catalogue.names("encoding"), "rope:base=300", "rope:base=10000", "sinks:base=tape"]
    specs += ["rope:scaling=yarn,factor=2", "hybrid:local=rope:base=50,global=nope"]
    for spec in specs:
        run = command.make_from_specs(spec, SMALL, 3)
        sent = RunSpec.of(run)
        theirs = worker.make_from_specs(sent.encoding, sent.task, sent.seed)
        assert theirs.folder == run.folder, spec
        found = _find_adaptation(run.encoding)
        usual = "rope:base=10000" if origin == "rope" else "rope:base=300"
        same = spec in ("rope", usual)
        assert found is None if origin is None else found and found["unchanged"] == same, spec
        place = find_user_paths(run.resolved, run.encoding).get("checkpoint")
        assert place == (None if origin in (None, "rope") else str(checkpoint.resolve()))
    loaded = origin == str(checkpoint)  # nothing of it is trained, and it has its own shape
    model = run.resolved.model.changed(digit_ids=(), separator_ids=())
    assert (model == SHAPE.changed(init_std=model.init_std)) == loaded
    assert run.resolved.task.context.untrained == checkpoint_time.uses_checkpoint(run) == loaded


@pytest.mark.slow
def test_runs_from_a_checkpoint_are_divided_and_repeated(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = ["--from", str(checkpoint), "--train.length", "32"]
    assert (
        main(["run", *given, "--encoding", "rope", "rerope", "--task", SMALL, "--jobs", "2"]) == 0
    )
    done = read_records(Path("results"))
    assert [record.status for record in done] == ["done"] * 2
    assert main(["compare", "--all"]) == 0
    assert shlex.quote(str(checkpoint)) in Path("results/index.html").read_text("utf-8")
    for record in done:
        assert main(["rerun", str(record.folder)]) == 0
    moved = checkpoint.with_name("elsewhere")
    assert main(["rerun", str(done[0].folder), "--from", str(moved)]) == 2


@pytest.mark.slow
def test_an_encoding_inside_another_one_has_its_rotation_too(checkpoint: Path) -> None:
    complete = open_checkpoint(checkpoint).spec
    assert complete("abacus:base=rope") == "abacus:base=rope:base=300"
    scaled = "abacus:base=rope:scaling=yarn:factor=4,offset=5"
    assert complete(scaled) == "abacus:base=rope:base=300:scaling=yarn:factor=4,offset=5"
    assert complete("abacus:base=rope:base=500") == "abacus:base=rope:base=500"
    assert complete("abacus") == "abacus" and complete("rope") == "rope:base=300"


@pytest.mark.slow
def test_the_weights_are_those_of_the_files(checkpoint: Path, tmp_path: Path) -> None:
    origin = load_origin(str(checkpoint))
    options = RunOptions(train={"length": 32}, cache=tmp_path)
    options = options_from(options, open_checkpoint(checkpoint))
    task = resolve(options, SMALL, shape=open_checkpoint(checkpoint).model)
    assert task.train.steps == 0 and task.start is None
    assert task.model.width == 16 and task.model.digit_ids
    assert origin.label == "tiny-saved-here"
    assert open_checkpoint(checkpoint).fingerprint.startswith(origin.version)


@pytest.mark.slow
def test_scrolls_are_read_with_its_tokenizer(checkpoint: Path, tmp_path: Path) -> None:
    for split, n in (("train", 8), ("validation", 4)):
        rows = miniature.rows(SUBSETS["qasper"].miniature, split, n, 40, questions=2)
        write_split(tmp_path / "data" / "qasper" / f"{split}.jsonl", rows)
    frame = pe_bench.run(
        "rope",
        "scrolls:answer_tokens=8",
        results=tmp_path / "results",
        origin=str(checkpoint),
        data=tmp_path / "data",
        subsets=["qasper"],
        train={"length": 160},
        adapt={"steps": 1, "batch_size": 2},
    )
    (row,) = frame[frame["subset"] == "qasper"].to_dict("records")
    assert row["metric"] == "f1" and row["encoding"].startswith("tiny-saved-here -> rope [1 step")


@pytest.mark.slow
def test_a_passkey_is_zero_shot_unless_prompts_are_trained(
    checkpoint: Path, tmp_path: Path
) -> None:
    opened = open_checkpoint(checkpoint)
    spec = "passkey:vocabulary=tokenizer,samples=1"
    found = []
    for adapt in ({}, {"steps": 2}):
        options = RunOptions(train={"length": 640}, cache=tmp_path, adapt=adapt, origin="x")
        task = resolve(options_from(options, opened), spec, shape=opened.model).task
        assert isinstance(task, LengthGeneralizationTask)
        splits = {point.split for point in task.eval_points("passkey")} & {ID, OOD}
        found.append((task.gate, splits, bool(task.baselines())))
    assert found == [(None, {OOD}, False), (95.0, {ID, OOD}, True)]


FURTHER: list[dict[str, Any]] = [
    {},
    {"tune": Tuning()},
    {"tune": Tuning(seeds=(7, 8))},
    {"tune": Tuning(lr=(0.01, 0.1))},
    {"adapt": {"lr": 0.01}},
    {"adapt": {"lr": 0.01}, "tune": Tuning()},
    {"adapt": {"length": 16}, "tune": Tuning(lr=(0.01, 0.1))},
    {"adapt": {"method": "encoding", "also": "norms"}},
    {"adapt": {"batch_size": 2, "schedule": "linear"}},
]


@pytest.mark.slow
@pytest.mark.parametrize("origin", ["rope", "a checkpoint"])
def test_what_changes_further_training_makes_another_run(
    checkpoint: Path, tmp_path: Path, origin: str
) -> None:
    """Its record and the command in it make the same run again."""
    loaded = origin == "a checkpoint"
    folders: dict[Path, dict[str, Any]] = {}
    for given in FURTHER:
        adapt = {"steps": 2, **given.get("adapt", {})}
        changes: dict[str, Any] = {"adapt": adapt, "tune": given.get("tune")}
        shared: dict[str, Any] = {"train": {"length": 32}, "cache": tmp_path / "cache"}
        options = RunOptions(origin=str(checkpoint) if loaded else origin, **shared, **changes)
        run = RunFactory(options, tmp_path).make_from_specs("tape", SMALL, 3)
        assert run.folder not in folders, (given, folders[run.folder])
        folders[run.folder] = given
        record = make_record(
            "done", run.resolved, run.phases, 3, 0, subsets=run.resolved.task.subsets
        )
        task, encoding = rebuild(record, tmp_path / "scratch", MovedPaths())
        assert replace(run, resolved=task, encoding=encoding).folder == run.folder
        assert ("--tune" in (record.options or ())) == ("tune" in given)
        (command,) = list_commands([record])
        (made,) = runs_of(command)
        assert made.folder.parts[-3:] == run.folder.parts[-3:]


@pytest.mark.slow
def test_rates_of_further_training_are_given_once(checkpoint: Path, tmp_path: Path) -> None:
    adapt = {"steps": 2, "lr": 0.01}
    shared: dict[str, Any] = {"train": {"length": 32}, "cache": tmp_path, "adapt": adapt}
    tune = Tuning(lr=(0.02, 0.1))
    with pytest.raises(InputError, match=r"adapt\.lr has no effect together with tune\.lr: leave"):
        RunFactory(RunOptions(origin=str(checkpoint), tune=tune, **shared)).task(SMALL)
    searched = RunFactory(RunOptions(origin="rope", tune=tune, **shared)).task(SMALL).tuning
    assert searched is not None and searched.lr == default_rates(0.01)  # tune.lr is that of `rope`


@pytest.mark.slow
def test_low_rank_goes_on_from_it(run: Any) -> None:
    pytest.importorskip("peft", reason="peft makes low-rank updates")
    before = scores(run("tape"))["tiny-saved-here -> tape"]
    adapt = {"steps": 2, "method": "encoding+lora", "lr": 0.05, "batch_size": 2}
    first = scores(run("tape", adapt=adapt))
    label = "tiny-saved-here -> tape [encoding+lora, 2 steps, batch_size 2, lr 5e-2]"
    assert set(first) == {label} and first[label] != before
    assert scores(run("tape", adapt=adapt)) == first


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"task": "mqar"}, "it needs special tokens"),
        ({"task": "passkey"}, "write passkey:vocabulary=tokenizer"),
        ({"train": {"length": 32, "lr": 1e-3}}, "--train.lr has no effect on a trained model"),
        ({"model": {"layers": 3}}, "--model.layers has no effect: the checkpoint determines"),
        ({"tokenizer": "bpe:300"}, "--tokenizer has no effect: the checkpoint has its own"),
        ({"tune": True}, "--tune has no effect without --adapt.steps"),
        (
            {"origin": "/no/such"},
            "there is no /no/such: give the folder of a checkpoint, or an enc",
        ),
    ],
)
def test_bad_input(run: Any, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises((InputError, InputErrors)) as caught:
        run("rope", **options)
    assert sentence in str(caught.value)


def test_a_checkpoint_without_tokenizer(checkpoint: Path, tmp_path: Path, run: Any) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(checkpoint, copy)
    (copy / "tokenizer.json").unlink()
    with pytest.raises((InputError, InputErrors), match=r"has no tokenizer\.json"):
        run("rope", origin=str(copy))


@pytest.mark.slow
@pytest.mark.parametrize(("method", "also"), METHODS)
@pytest.mark.parametrize("interrupted", [False, True])
def test_a_phase_keeps_what_it_trains_alone(
    method: Any, also: Any, interrupted: bool, checkpoint: Path, tmp_path: Path
) -> None:
    """Files hold only trained weights, in float32, and restore the model after an interruption."""
    if "lora" in method:
        pytest.importorskip("peft", reason="peft makes low-rank updates")
    tape = open_checkpoint(checkpoint).spec("tape")
    config = AdaptConfig(
        steps=3, method=method, also=also, rank=2, lr=0.05, length=16, save_every=0
    )
    tokens = torch.arange(34)[None]

    def go_on(folder: Path, stop: int | None = None) -> Decoder:
        def batch(step: int) -> Batch:
            if step == stop:
                raise RuntimeError("stopped")
            return Batch(tokens[:, step : step + 16], tokens[:, step + 1 : step + 17])

        torch.manual_seed(0)
        model = make_empty(SHAPE, plugins.load("encoding", tape).make)
        load_files(model, checkpoint, dtype=torch.bfloat16)
        training = Training(model, batch, config, 0, "cpu", "bf16", "it")
        ensure_trained(training, CheckpointStore(folder, "it", trainable_only=True))
        return model.eval()

    first = go_on(tmp_path / "first")
    folder = tmp_path / "second"
    if interrupted:
        with pytest.raises(RuntimeError, match="stopped"):
            go_on(folder, stop=2)
        begun = read_checkpoint(folder / "resume.safetensors", owner="it")["weights"]
        more = also or method == "longlora"
        assert more or all("lora" in name or "encodings" in name for name in begun)
    go_on(folder)
    again = go_on(folder, stop=0)  # reads the checkpoint
    kept = read_checkpoint(folder / "final.safetensors", owner="it")["weights"]
    base = {"q_proj.weight", "mlp.up_proj.weight", "lm_head.weight"}
    assert not [name for name in kept if any(name.endswith(one) for one in base)]
    assert {weight.dtype for weight in kept.values()} == {torch.float32}
    assert all(parameter.requires_grad for parameter in again.parameters())
    for name, weight in first.state_dict().items():
        assert torch.equal(weight, again.state_dict()[name]), name
        assert weight.dtype == (torch.float32 if "encodings" in name else torch.bfloat16), name
    plain = make_empty(SHAPE, plugins.load("encoding", tape).make)
    load_files(plain, checkpoint, dtype=torch.bfloat16)
    changed = [
        n for n, w in plain.state_dict().items() if not torch.equal(w, first.state_dict()[n])
    ]
    assert changed


@pytest.mark.slow
@pytest.mark.parametrize("steps", [0, 1])
def test_its_model_is_loaded_once_and_kept(
    steps: int, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("peft", reason="peft makes low-rank updates")
    monkeypatch.setenv("PE_BENCH_CACHE", str(tmp_path / "cache"))
    loaded: list[weakref.ref[Decoder]] = []

    def load(model: Decoder, *args: Any, **more: Any) -> None:
        assert not [one for one in loaded if one() is not None]  # memory for one of them
        loaded.append(weakref.ref(model))
        load_files(model, *args, **more)

    monkeypatch.setattr(origin_module, "load_files", load)
    adapt = ["--adapt.steps", "1", "--adapt.method", "lora", "--adapt.lr", "0.1"] if steps else []
    adapt += ["--adapt.also", "embeddings+norms"] if steps else []
    command = ["run", "--from", str(checkpoint), "--task", SMALL, "--train.length", "32"]
    command += ["--results", str(tmp_path / "results"), "--no-report", "--keep", *adapt]
    gc.disable()
    try:
        assert main([*command, "--encoding", "rope:scaling=yarn,factor=2", "rope"]) == 0
    finally:
        gc.enable()
    assert len(loaded) == 2
    monkeypatch.undo()
    records = read_records(tmp_path / "results")
    going_on = {str((one.adaptation or {})["encoding"]): one for one in records}
    record = going_on["rope"]
    assert record.adaptation and record.adaptation["unchanged"] == (steps == 0)
    assert main(["checkpoint", str(record.folder), str(tmp_path / "saved")]) == 0
    kept = open_checkpoint(tmp_path / "saved")
    assert kept.encoding == "rope:base=300"
    before = open_checkpoint(checkpoint).load().state_dict()
    after = kept.load().state_dict()
    changed = {name.split(".")[-2] for name in before if not torch.equal(after[name], before[name])}
    projections = {"q_proj", "k_proj", "v_proj", "o_proj"}
    norms = {"input_layernorm", "post_attention_layernorm", "norm"}
    assert changed == (projections | norms | {"embed_tokens"} if steps else set())


@pytest.mark.slow
def test_ruler_for_a_base_model(checkpoint: Path, tmp_path: Path) -> None:
    """The command of docs/trained-models.md, without training."""
    frame = pe_bench.run(
        "rope",
        "ruler:kinds=all,vocabulary=tokenizer,samples=1",
        origin=str(checkpoint),
        train={"length": 512},
        results=tmp_path,
    )
    points = frame[frame["length"].notna() & (frame["metric"] == "string_match_all")]
    assert set(points["subset"]) >= set(KINDS) and len(KINDS) == 7
    assert points["length"].max() == 4 * 512
    assert set(points["value"].dropna()) <= {0.0, 100.0}


@pytest.mark.slow
def test_a_plan_says_how_long_work_with_a_checkpoint_takes(
    checkpoint: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checkpoint_time, "MEASURED", 0.0)
    assert checkpoint_time._measure_speed(SHAPE, "cpu", "fp32", 1) > 0
    monkeypatch.setattr(checkpoint_time, "_measure_speed", lambda *_: 1e3)
    words = f"run --encoding rope --task {SMALL} --train.length 32 --dry-run --results"
    command = [*words.split(), str(tmp_path), "--from", str(checkpoint)]

    def planned(*options: str) -> dict[str, float]:
        """Return the numbers of the line, with those of TFLOP in units of FLOP."""
        assert main([*command, *options]) == 0
        said = "".join(capsys.readouterr())
        found = re.search(r"matrix products: (.*) TFLOP; at least (.*) s at the 0 GFLOP/s", said)
        assert found is not None
        parts = dict(part.split() for part in found[1].split(" TFLOP, "))
        return {name: 1e12 * float(number) for name, number in parts.items()} | {
            "seconds": float(found[2])
        }

    monkeypatch.setattr(checkpoint_time, "show_duration", lambda seconds: f"{seconds} s")
    evaluation = planned()
    assert evaluation.keys() == {"evaluation", "seconds"}
    full = planned("--adapt.steps", "10", "--adapt.method", "full")
    low_rank = planned("--adapt.steps", "10", "--adapt.method", "lora", "--adapt.rank", "2")
    searched = planned("--adapt.steps", "10", "--adapt.method", "full", "--tune")
    twice = planned("--adapt.steps", "20", "--adapt.method", "full")
    assert full["evaluation"] == low_rank["evaluation"] == evaluation["evaluation"]
    assert twice["training"] == pytest.approx(2 * full["training"], rel=0.02)
    assert low_rank["training"] == pytest.approx(2 / 3 * full["training"], rel=0.02)
    assert searched["training"] == pytest.approx((1 + TRAININGS) * full["training"], rel=0.02)
    whole = full["training"] + full["evaluation"]
    assert full["seconds"] == pytest.approx(whole / 1e3, rel=0.02)


def test_the_time_of_work_is_a_sum_over_sequences_and_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    sequences = {"a": {32: 2, 64: 3}, "b": {16: 1}, "c": None}
    lora = AdaptConfig(method="lora")

    class CostCounter:
        def __init__(self, precision: str) -> None:
            assert precision == "bf16"

        def of_model(self, encoding: str, phase: Any) -> Any:
            assert encoding == f"first of {phase.task}"
            return SimpleNamespace(prefill=lambda length: length * 1e12)

        def of_run(self, encoding: str, phases: Any) -> Any:
            return SimpleNamespace(operations=phases * 1e12)

    def made(labels: str, train: TrainConfig, operations: float) -> list[Any]:
        runs: list[Any] = []
        for number, label in enumerate(labels):
            model = 2.0 if label == "a" else 4.0
            task = SimpleNamespace(evaluation_sequences=partial(sequences.get, label))
            first = labels.index(label) == number  # the only one that is counted
            phases = operations if first else -1.0
            encoding = f"first of {label}" if first else "another"
            more = {"label": label, "train": train, "phases": phases, "model_subsets": [None]}
            resolved = SimpleNamespace(task=task, model=model, **more)
            of_run = {"encoding": encoding, "device": "cpu", "precision": "bf16"}
            chosen = SimpleNamespace(find_choice=lambda task, subset: "a rate")
            runs.append(SimpleNamespace(resolved=resolved, phases=chosen, **of_run))
        return runs

    def speed(model: float, device: str, precision: str, threads: int) -> float:
        assert (device, precision, threads) == ("cpu", "bf16", 3)
        return model * 1e12

    def said(runs: list[Any], parallel_runs: int) -> str | None:
        return checkpoint_time.describe_work(runs, 3, parallel_runs)

    monkeypatch.setattr(checkpoint_time, "CostCounter", CostCounter)
    monkeypatch.setattr(checkpoint_time, "phases_of", lambda resolved: resolved.phases)
    monkeypatch.setattr(checkpoint_time, "_measure_speed", speed)
    evaluated = made("abacb", TrainConfig(), 0.0)
    numbers = 2 * (2 * 32 + 3 * 64) + 2 * 16  # two runs of a, two of b
    seconds = 2 * (2 * 32 + 3 * 64) / 2 + 2 * 16 / 4
    assert said(evaluated, 2) == (
        f"matrix products: evaluation {numbers} TFLOP; at least {round(seconds / 120)} min at "
        f"the {numbers / seconds * 1000:,.0f} GFLOP/s that they reach here"
    )
    assert said(evaluated[1:2], 1) is None  # four seconds
    further = [*made("b", AdaptConfig(), 300.0), *made("b", lora, 300.0)]
    assert said(further, 1) == (
        "matrix products: training 500 TFLOP, evaluation 32 TFLOP; at least 2 min at the 4,000 "
        "GFLOP/s that they reach here"
    )


def test_a_wrong_option_with_a_checkpoint_is_one_sentence(checkpoint: Path, tmp_path: Path) -> None:
    """Without the checkpoint, the prompts of the task would be too short."""
    options = RunOptions(origin=str(checkpoint), train={"lr": 1e-3})
    task = "passkey:vocabulary=tokenizer"
    spec = GridSpec(options=options, encodings=["rope"], tasks=[task], results=tmp_path)
    with pytest.raises(InputErrors) as found:
        make_plan(spec)
    assert str(found.value) == (
        "--from: --train.lr has no effect on a trained model: use --adapt.*"
    )
    with pytest.raises(InputErrors, match="no task 'passke'"):
        make_plan(replace(spec, tasks=["passke"]))


def test_seeds_share_a_search_that_is_planned_once() -> None:
    def made(label: str, *, tuning: bool = True, finished: bool = False) -> Any:
        resolved = SimpleNamespace(digest=lambda: "digest", model_subsets=["a", "b"])
        known = ["a", "b"] if finished or not tuning else ["a"]  # one subset has no choice yet
        choices = dict.fromkeys(known, "a rate")
        phases = SimpleNamespace(find_choice=lambda _, subset: choices.get(subset))
        encoding = SimpleNamespace(label=label)
        return SimpleNamespace(resolved=resolved, phases=phases, encoding=encoding)

    runs = [made("rope"), made("rope"), made("tape"), made("fire", finished=True)]
    found = [pending_search_key(run) for run in [*runs, made("nope", tuning=False)]]
    assert found == [*[("rope", "digest")] * 2, ("tape", "digest"), None, None]


def test_frozen_weights_have_the_precision_of_the_run(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[Any] = []
    monkeypatch.setattr(origin_module, "load_files", lambda *_, **given: loaded.append(given))
    monkeypatch.setattr(Checkpoint, "contains", lambda self, plugin: plugin.label == "tape")
    origin = load_origin(str(checkpoint))
    full = AdaptConfig(steps=3)
    frozen = AdaptConfig(steps=3, method="lora")
    for name, config, precision in (
        ("rope", frozen, "fp32"), ("tape", frozen, "bf16"), ("rope", full, "bf16")
    ):  # fmt: skip
        plugin = plugins.load("encoding", name)
        facts = {**vars(plugin), "encoding": plugin, "origin": origin, "config": config}
        origin_module.load_pretrained(origin_module.Adapted(**facts), SHAPE, 0, precision)
    types = [torch.float32, torch.bfloat16, torch.float32]
    assert [given["dtype"] for given in loaded] == types
    assert [given["with_encoding"] for given in loaded] == [False, True, False]


def test_an_mlp_without_gate_has_no_low_rank_gate() -> None:
    block = BlockConfig(gated=False)
    task: Any = SimpleNamespace(train=TrainConfig(), model=replace(SHAPE, block=block))
    adapt = {"steps": 1, "method": "lora", "targets": "gate_proj"}
    origin: Any = plugins.load("encoding", "rope")
    with pytest.raises(InputError, match="gate_proj, but the MLP of this model has no gate"):
        continue_from_origin(task, origin, RunOptions(origin="rope", adapt=adapt))


def drop_a_shard(folder: Path) -> None:
    index = {"weight_map": {"model.norm.weight": "model-1.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "model.safetensors").unlink()  # or that would be read


def drop_a_tensor(folder: Path) -> None:
    path = folder / "model.safetensors"
    weights = safetensors.torch.load_file(path)
    del weights["model.norm.weight"]
    safetensors.torch.save_file(weights, path)


def cut_short(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (drop_a_shard, "has no model-1.safetensors, which its index names"),
        (drop_a_tensor, "damaged: the Llama weights have no norm.weight"),
        (cut_short, "model.safetensors is truncated"),
    ],
)
def test_damaged_files_are_named_once_before_anything_runs(
    spoil: Callable[[Path], None], sentence: str, checkpoint: Path, tmp_path: Path, run: Any
) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(checkpoint, folder)
    spoil(folder)
    with pytest.raises((InputError, InputErrors)) as caught:
        run("rope", "tape", origin=str(folder))
    assert str(caught.value).startswith("--from: ") and sentence in str(caught.value)
    assert str(caught.value).count(str(folder)) == 1
    assert not (tmp_path / "results" / "runs").exists()


def test_a_file_is_no_checkpoint(checkpoint: Path, run: Any) -> None:
    with pytest.raises((InputError, InputErrors), match="is a file: give the folder"):
        run("rope", origin=str(checkpoint / "config.json"))


def test_an_unknown_name_may_be_meant_as_a_folder(run: Any) -> None:
    with pytest.raises((InputError, InputErrors)) as caught:
        run("rope", origin="smollm")
    text = str(caught.value)
    assert "there is no encoding 'smollm' (did you mean" in text
    assert "or the folder of a checkpoint" in text
    with pytest.raises((InputError, InputErrors), match="rope has no option 'bases'") as caught:
        run("rope", origin="rope:bases=5")
    assert "folder of a checkpoint" not in str(caught.value)


@pytest.mark.slow
def test_prompts_are_trained_where_nothing_else_is_asked_for(
    checkpoint: Path, tmp_path: Path
) -> None:
    """Batches have the size and length of the task, and there is no curriculum."""
    opened = open_checkpoint(checkpoint)
    options = RunOptions(train={"length": 640}, cache=tmp_path, adapt={"steps": 2}, origin="x")
    for spec in ("passkey:vocabulary=tokenizer", "chained-facts:vocabulary=tokenizer"):
        resolved = resolve(options_from(options, opened), spec, shape=opened.model)
        task = continue_from_origin(resolved, load_origin(str(checkpoint)), options)
        rows = [len(task.batches.batch(None, 0, step).tokens) for step in (0, 1)]
        assert rows == [task.train.batch_size] * 2
