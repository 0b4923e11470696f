"""Training continues from a trained model with another encoding."""

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor

import pe_bench
from pe_bench.config import ROUNDING_ONLY, AdaptConfig, ModelConfig, TrainConfig
from pe_bench.decoder.attention import attend
from pe_bench.decoder.logits import LogitTerms
from pe_bench.decoder.model import Decoder
from pe_bench.decoder.shifted_sparse import shifted_sparse_attention
from pe_bench.errors import InputError, InputErrors
from pe_bench.positions import in_order
from pe_bench.registry import plugins
from pe_bench.reporting.report import write_report
from pe_bench.runs.adaptation import _bracket, adapt, continue_from_origin, copy_shared_weights
from pe_bench.runs.factory import RunFactory
from pe_bench.runs.initial_weights import Adapted
from pe_bench.runs.options import RunOptions
from pe_bench.runs.resolve import resolve
from pe_bench.runs.run_record import _find_adaptation
from pe_bench.runs.unused_options import check_used
from pe_bench.system.files import cache_folder
from pe_bench.train import adaptation_methods

TASK = '''
"""A task whose score is a number of the model, and which notes the batches that it makes."""
import os
from pathlib import Path
import torch
from pe_bench.api import (
    Batch, Evaluation, Headline, Measurement, ModelConfig, Preset, Task, TrainConfig, Vocabulary
)

class Toy(Task):
    headline = Headline("score", "all")
    all_subsets = ("all",)
    vocabulary = Vocabulary(9)
    presets = {"quick": Preset(TrainConfig(steps=3, batch_size=2, length=8, lr=1e-2),
                               ModelConfig(layers=2, heads=2, width=16, mlp_width=16))}

    def __init__(self, context):
        super().__init__(context)
        self.max_eval_tokens = 16

    def batch(self, subset, seed, step):
        with Path(os.environ["TOY_LOG"]).open("a") as log:
            log.write(f"{self.length}x{self.train.batch_size}@{step} ")
        generator = torch.Generator().manual_seed(100 * seed + step)
        shape = (self.train.batch_size, self.length + 1)
        tokens = torch.randint(9, shape, generator=generator)
        return Batch(tokens[:, :-1], tokens[:, 1:])

    def evaluate(self, model, subset, seed, journal):
        value = float(model(torch.arange(8)[None]).double().square().mean())
        return Evaluation([Measurement(subset, "score", value, 5, 0.1, 8)])
'''
SHAPE = ModelConfig(layers=2, heads=4, width=32, mlp_width=24, vocab_size=12, train_length=16)
BEGIN = ("encoding", "encoding+lora", "longlora")
METHODS = ("full", "encoding", "lora", "encoding+lora", "longlora")
ALSO = (None, "embeddings", "norms", "embeddings+norms")
FEW = [(method, also) for method in ("encoding", "lora", "encoding+lora") for also in ALSO]
FEW += [("none", also) for also in ALSO[1:]]


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, untested: None
) -> Callable[..., pd.DataFrame]:
    """Run encodings on the task above; all calls share a folder."""
    task = tmp_path / "toy.py"
    task.write_text(TASK)
    monkeypatch.setenv("TOY_LOG", str(tmp_path / "log"))
    monkeypatch.setenv("PE_BENCH_CACHE", str(tmp_path / "cache"))

    def run(*encodings: str, **options: Any) -> pd.DataFrame:
        (tmp_path / "log").write_text("")
        frame = pe_bench.run(encodings, str(task), results=tmp_path / "results", **options)
        return frame[frame["metric"] == "score"]

    return run


def trained(tmp_path: Path) -> list[str]:
    """Return "rows x length @ step" for each batch that the last call trained on."""
    return (tmp_path / "log").read_text().split()


def scores(frame: pd.DataFrame) -> dict[str, float]:
    return dict(zip(frame["encoding"], frame["value"], strict=True))


def decoder(spec: str, seed: int = 0, **shape: Any) -> Decoder:
    torch.manual_seed(seed)
    return Decoder(replace(SHAPE, **shape), plugins.load("encoding", spec).make)


@pytest.mark.slow
def test_one_training_serves_all(run: Any, tmp_path: Path) -> None:
    alone = scores(run("rope", "nope"))
    assert trained(tmp_path) == 2 * ["8x2@0", "8x2@1", "8x2@2"]
    found = scores(run("rope", "nope", "tape", "rope:scaling=pi,factor=4", origin="rope"))
    assert trained(tmp_path) == ["8x2@0", "8x2@1", "8x2@2"]  # one model of rope for all
    run("tape", "alibi", origin="learned", seeds=[1, 2])
    assert trained(tmp_path) == 2 * ["8x2@0", "8x2@1", "8x2@2"]
    assert found["rope -> rope"] == alone["rope"]
    assert found["rope -> tape"] == pytest.approx(alone["rope"], rel=1e-6)  # begins as RoPE
    assert found["rope -> nope"] not in (alone["rope"], alone["nope"])
    assert found["rope -> rope:scaling=pi,factor=4"] != alone["rope"]


@pytest.mark.slow
def test_training_goes_on_with_other_batches(run: Any, tmp_path: Path) -> None:
    zero = scores(run("rope", origin="rope"))
    longer = run("rope", origin="rope", adapt={"steps": 2, "length": 16, "batch_size": 3})
    assert trained(tmp_path) == ["16x3@3", "16x3@4"]
    label = "rope -> rope [2 steps, batch_size 3, length 16]"
    assert scores(longer) != {label: zero["rope -> rope"]}
    assert list(scores(longer)) == [label]
    assert set(scores(run("rope", origin="rope", adapt={"steps": 2, "lr": 3e-3}))) == {
        "rope -> rope [2 steps, lr 3e-3]"
    }


@pytest.mark.slow
def test_rows_of_another_origin_are_in_another_table(run: Any) -> None:
    tables = {
        run("rope")["settings"].item(),
        run("rope", origin="rope")["settings"].item(),
        run("rope", origin="nope")["settings"].item(),
    }
    assert len(tables) == 3
    budget = run("rope", origin="rope", adapt={"steps": 1})["settings"].item()
    assert budget in tables  # the label contains the number of steps


@pytest.mark.slow
def test_the_model_as_it_was_is_what_others_are_compared_with(run: Any, tmp_path: Path) -> None:
    run("rope", "nope", origin="rope", seeds=[0, 1])
    write_report(tmp_path / "results")
    text = (tmp_path / "results" / "leaderboard.md").read_text()
    assert "· from rope" in text
    assert "minus rope -> rope" in text.replace("\\", "").replace("&gt;", ">")


@pytest.mark.slow
def test_a_finished_adaptation_is_not_repeated(run: Any, tmp_path: Path) -> None:
    first = scores(run("tape", origin="rope", adapt={"steps": 2}))
    assert scores(run("tape", origin="rope", adapt={"steps": 2})) == first
    assert trained(tmp_path) == []


def adapted(spec: str, origin: str, steps: int = 0) -> Adapted:
    one = plugins.load("encoding", spec)
    other = plugins.load("encoding", origin)
    return Adapted(**vars(one), encoding=one, origin=other, config=AdaptConfig(steps=steps))


@pytest.mark.parametrize(
    ("spec", "steps", "unchanged"),
    [("rope", 0, True), ("rope", 2, False), ("rope:base=500", 0, False), ("nope", 0, False)],
)
def test_a_record_marks_the_model_as_it_was(spec: str, steps: int, unchanged: bool) -> None:
    found = _find_adaptation(adapted(spec, "rope", steps))
    assert found and (found["unchanged"], found["from"]) == (unchanged, "rope")
    assert (found["encoding"], found["config"]["steps"]) == (spec, steps)


@pytest.mark.parametrize("steps", [0, 7])
def test_whatever_decides_the_weights_is_in_the_version(steps: int, tmp_path: Path) -> None:
    adapt_with = {"steps": steps, "batch_size": 3} if steps else {}
    options = RunOptions(origin="rope", adapt=adapt_with, cache=tmp_path)
    factory = RunFactory(options, tmp_path)
    task = factory.task("flipflop")
    assert not steps or (task.adapting and task.adapting.train.batch_size == 3)
    encoding, origin = factory.encoding("alibi"), factory.encoding("rope")
    other = replace(task, train=replace(task.train, lr=1e-5))
    made = [
        adapt(encoding, origin, task),
        adapt(replace(encoding, version="9"), origin, task),
        adapt(encoding, replace(origin, version="9"), task),
        adapt(encoding, origin, other),
    ]
    assert len({one.version for one in made}) == (4 if steps else 3)
    idle_values: dict[str, Any] = {"save_every": 7.0, "micro_batch": 1, "recompute": True}
    assert {*idle_values} == {*ROUNDING_ONLY}
    for name, value in idle_values.items():
        idle = replace(task, train=replace(task.train, **{name: value}))
        assert adapt(encoding, origin, idle).version == made[0].version


def test_only_the_same_kind_of_encoding_takes_parameters_over() -> None:
    old, new = decoder("t5", 0), decoder("t5", 1)
    with torch.no_grad():
        old.encoding.table.fill_(3.0)  # type: ignore[operator]
    name = "encodings.0.table"
    assert copy_shared_weights(new, old.state_dict(), adapted("t5", "t5"))[name].eq(3).all()
    assert not copy_shared_weights(new, old.state_dict(), adapted("t5", "rope"))[name].eq(3).any()
    taken = copy_shared_weights(new, old.state_dict(), adapted("t5", "rope"))
    assert torch.equal(taken["lm_head.weight"], old.lm_head.weight)


@pytest.mark.slow
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(("method", "also"), [("full", None), ("longlora", None), *FEW])
def test_a_method_trains_what_it_says(method: Any, also: Any, tied: bool) -> None:
    if "lora" in method:
        pytest.importorskip("peft", reason="peft makes low-rank updates")
    model = decoder("tape", tied_embeddings=tied)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    config = AdaptConfig(steps=1, method=method, also=also, rank=2)
    adaptation_methods.prepare(model, config, seed=0)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data.add_(0.01 * torch.ones_like(parameter))
    tokens = torch.arange(10)[None]
    model.eval()
    expected = model(tokens)
    adaptation_methods.finish(model, config)
    assert model.state_dict().keys() == before.keys()
    torch.testing.assert_close(model(tokens), expected)
    assert all(parameter.requires_grad for parameter in model.parameters())
    changed = {n for n, weight in model.state_dict().items() if not torch.equal(weight, before[n])}
    encoding = {name for name in before if name.startswith("encodings.")}
    projections = {name for name in before if any(p in name for p in "qkvo" if f"{p}_proj" in name)}
    norms = {name for name in before if "norm" in name}
    embeddings = {"embed_tokens.weight", "lm_head.weight"} if tied else {"embed_tokens.weight"}
    expected_names = {
        "full": set(before),
        "encoding": encoding,
        "lora": projections,
        "encoding+lora": encoding | projections,
        "longlora": encoding | projections | embeddings | norms,
        "none": set(),
    }[method]
    for part, names in (("embeddings", embeddings), ("norms", norms)):
        expected_names |= names if part in (also or "") else set()
    assert changed == expected_names


@pytest.mark.slow
def test_low_rank_changes_are_scaled_by_two() -> None:
    """As in the help of `--adapt.rank`, alpha is twice the rank for every rank."""
    pytest.importorskip("peft", reason="peft makes low-rank updates")
    model: Any = decoder("rope")
    attention = model.layers[0].self_attn
    before = attention.q_proj.weight.detach().clone()
    config = AdaptConfig(steps=1, method="lora", rank=3)
    adaptation_methods.prepare(model, config, seed=0)
    down = attention.q_proj.lora_A["default"].weight
    up = attention.q_proj.lora_B["default"].weight
    torch.nn.init.normal_(up)
    product = (up @ down).detach()
    adaptation_methods.finish(model, config)
    torch.testing.assert_close(attention.q_proj.weight, before + 2 * product)


@pytest.mark.slow
@pytest.mark.parametrize("method", BEGIN)
def test_a_method_begins_at_the_old_model(run: Any, method: str) -> None:
    if "lora" in method:
        pytest.importorskip("peft", reason="peft makes low-rank updates")
    found = scores(run("rope", "tape", origin="rope"))
    still = scores(run("tape", origin="rope", adapt={"steps": 1, "lr": 0.0, "method": method}))
    assert list(still.values()) == pytest.approx([found["rope -> rope"]], rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["full", "lora", "longlora"])
def test_an_interrupted_adaptation_ends_where_an_uninterrupted_one_does(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    if "lora" in method:
        pytest.importorskip("peft", reason="peft makes low-rank updates")
    adapt = {"steps": 4, "method": method, "save_every": 0.0}
    whole = scores(run("tape", origin="rope", adapt=adapt))
    monkeypatch.setenv("PE_BENCH_CACHE", str(tmp_path / "other"))
    broken = TASK.replace(
        "        generator =",
        "        if step == 5 and 'TOY_STOP' in os.environ:\n"
        "            raise RuntimeError('power cut')\n"
        "        generator =",
    )
    (tmp_path / "toy.py").write_text(broken)
    monkeypatch.setenv("TOY_STOP", "1")
    with pytest.warns(UserWarning, match="power cut"):
        assert run("tape", origin="rope", adapt=adapt).empty
    monkeypatch.delenv("TOY_STOP")
    assert scores(run("tape", origin="rope", adapt=adapt)) == whole
    assert "8x2@3" not in trained(tmp_path)  # training has continued


def full_mask(length: int, group: int, offset: int) -> Tensor:
    """Return the mask (T, S): a query attends to earlier keys of its group."""
    places = torch.arange(length)
    numbers = (places - offset).div(group, rounding_mode="floor")
    return (numbers[:, None] == numbers) & (places[:, None] >= places)


@pytest.mark.parametrize("length", [3, 8, 21, 32])
@pytest.mark.parametrize("kind", ["plain", "separable", "by_distance"])
def test_groups_see_their_own_keys_only(length: int, kind: str) -> None:
    torch.manual_seed(0)
    heads, group = 4, 8
    q = torch.randn(2, heads, length, 8, dtype=torch.double, requires_grad=True)
    k = torch.randn(2, 2, length, 8, dtype=torch.double, requires_grad=True)
    v = torch.randn(2, heads, length, 12, dtype=torch.double)
    c = torch.randn(1, heads, length, dtype=torch.double) if kind == "separable" else None
    table = torch.randn(heads, length, dtype=torch.double) if kind == "by_distance" else None
    terms = LogitTerms(separable=c, by_distance=table)
    actual = shifted_sparse_attention(q, k, v, terms, group)
    masks = [full_mask(length, group, offset) for offset in (0, 0, group // 2, group // 2)]
    mask = torch.stack(masks)  # (H, T, S)

    def unseen(positions: Any) -> Tensor:
        own = torch.zeros(1, heads, length, length, dtype=torch.double)
        if table is not None:
            distances = positions.distance.clamp(min=0)[:, None]
            own = own + torch.stack([table[h][distances[:, 0]] for h in range(heads)], dim=1)
        return own.masked_fill(~mask, -torch.inf)

    dense = LogitTerms(in_order(length, q.device), separable=c, bias=unseen)
    expected = attend(q, k, v, dense, backend="eager")
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(
        torch.autograd.grad(actual.square().sum(), (q, k)),
        torch.autograd.grad(expected.square().sum(), (q, k)),
    )


def test_evaluation_sees_everything() -> None:
    model = decoder("rope")
    tokens = torch.randint(12, (1, 16))
    model.eval()
    expected = model(tokens)
    model.group_length = 4
    torch.testing.assert_close(model(tokens), expected)
    assert not torch.allclose(model.train()(tokens), expected)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"adapt": {"steps": 2}}, "adapt.steps has no effect without --from"),
        ({"origin": "rope", "adapt": {"lr": 1e-3}}, "adapt.lr has no effect without --adapt.steps"),
        ({"origin": "rpoe"}, "did you mean 'rope'"),
        ({"origin": "rope", "adapt": {"steps": -1}}, "adapt.steps must not be negative"),
        (
            {"origin": "rope", "adapt": {"steps": 2, "rank": 0, "method": "lora"}},
            "adapt.rank must be at least 1",
        ),
        (
            {"origin": "rope", "adapt": {"steps": 2, "rank": 2048, "method": "lora"}},
            "adapt.rank must be at most ",
        ),
        (
            {"origin": "rope", "adapt": {"steps": 2, "rank": 4, "method": "encoding"}},
            "adapt.rank has no effect with adapt.method encoding: use lora",
        ),
        (
            {"origin": "rope", "adapt": {"steps": 2, "encoding_lr_factor": 3, "method": "lora"}},
            "adapt.encoding_lr_factor has no effect with adapt.method lora: use full",
        ),
        (
            {"origin": "rope", "adapt": {"steps": 2, "targets": "q_proj"}},
            "adapt.targets has no effect with adapt.method full: use lora",
        ),
        (
            {"origin": "rope", "adapt": {"steps": 2, "targets": "q_proj+k_prj", "method": "lora"}},
            "adapt.targets has no 'k_prj' (did you mean 'k_proj'?)",
        ),
        (
            {"origin": "rope", "adapt": {"steps": 2, "also": "norms"}},
            "adapt.also has no effect with adapt.method full, which trains embeddings and norms",
        ),
        (
            {"origin": "rope", "adapt": {"steps": 2, "also": "norms", "method": "longlora"}},
            "adapt.also has no effect with adapt.method longlora",
        ),
        (
            {"origin": "rope", "adapt": {"steps": 2, "method": "none"}},
            "adapt.method none trains nothing by itself: add adapt.also",
        ),
        ({"origin": "rope", "adapt": {"also": "norms"}}, "adapt.also has no effect without --"),
        ({"origin": "rope", "train": {"steps": 0}}, "--from has no effect"),
        ({"origin": "learned:rows=4"}, "learned:rows must be at least 8"),
    ],
)
def test_bad_input(run: Any, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises((InputError, InputErrors)) as caught:
        run("nope", **options)
    assert sentence in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("encoding", "adapt", "sentence"),
    [
        ("nope", {"method": "encoding"}, "it has no parameters, so"),
        ("nope", {"method": "encoding"}, "would train nothing: use lora"),
        ("nope", {"method": "encoding", "also": "norms"}, "would train nothing: use none"),
        ("fire", {"method": "longlora"}, "does not support shifted sparse attention"),
    ],
)
def test_what_a_method_cannot_do_is_skipped(
    run: Any, capsys: pytest.CaptureFixture[str], encoding: str, adapt: Any, sentence: str
) -> None:
    if "lora" in adapt["method"]:
        pytest.importorskip("peft", reason="peft makes low-rank updates")
    assert run(encoding, origin="rope", adapt={"steps": 2, **adapt}).empty
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("method", "also", "trained"),
    [
        ("full", None, ""),
        ("none", "embeddings+norms", "embeddings+norms, "),
        ("encoding", "norms", "encoding+norms, "),
        ("lora", "embeddings+norms", "lora+embeddings+norms, "),
    ],
)
def test_a_label_says_what_is_trained(method: Any, also: Any, trained: str) -> None:
    config = AdaptConfig(steps=2, method=method, also=also)
    task: Any = SimpleNamespace(start=SimpleNamespace(train=TrainConfig()))
    assert _bracket(config, task) == f" [{trained}2 steps]"


@pytest.mark.slow
def test_what_is_also_trained_parts_runs(run: Any) -> None:
    found: dict[str, float] = {}
    plans: list[Any] = [{"method": "encoding"}]
    plans += [{"method": method, "also": "norms"} for method in ("none", "encoding")]
    for plan in plans:
        found |= scores(run("tape", origin="rope", adapt={"steps": 2, "lr": 0.1, **plan}))
    assert [label.partition(" [")[2].partition(",")[0] for label in found] == [
        "encoding",
        "norms",
        "encoding+norms",
    ]
    assert len(set(found.values())) == 3


def test_a_library_that_is_missing_is_named(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises((InputError, InputErrors), match=r"pip install 'pe-bench\[lora\]'"):
        run("rope", origin="rope", adapt={"steps": 2, "method": "lora"})


def test_own_options_decide_about_the_length(tmp_path: Path) -> None:
    os.environ.setdefault("PE_BENCH_CACHE", str(cache_folder()))
    with pytest.raises((InputError, InputErrors), match="options of the task set the length"):
        pe_bench.run(
            "nope",
            "mqar",
            results=tmp_path,
            origin="rope",
            adapt={"steps": 1, "length": 99},
        )


def test_longer_prompts_have_the_same_vocabulary(tmp_path: Path) -> None:
    from pe_bench.registry import plugins as registry
    from pe_bench.runs.adaptation import continue_from_origin
    from pe_bench.runs.options import RunOptions
    from pe_bench.runs.resolve import resolve

    options = RunOptions(origin="rope", adapt={"steps": 1, "length": 256}, cache=tmp_path)
    task = resolve(options, "passkey")
    longer = continue_from_origin(task, registry.load("encoding", "rope"), options)
    tokens = longer.batches.batch(None, 0, longer.first_step).tokens
    assert tokens.shape[1] > task.task.batch(None, 0, 0).tokens.shape[1]
    assert int(tokens.max()) < task.model.vocab_size
    assert longer.task is task.task
    assert longer.first_step == task.train.steps  # the batches before it are known


def test_a_model_that_is_adapted_was_not_pretrained_on_another_task() -> None:
    options = RunOptions(origin="rope", adapt={"steps": 1}, pretrain={"lr": 1e-3})
    task = continue_from_origin(resolve(options, "mqar"), plugins.load("encoding", "rope"), options)
    with pytest.raises(InputError, match=r"--pretrain\.\* has no effect: none of the tasks starts"):
        check_used(options, [task])
    assert task.start is not None
    check_used(options, [replace(task, start=replace(task.start, start=task.start))])
