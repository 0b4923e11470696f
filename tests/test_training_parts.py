"""What the functions around the training loop pass on: state, seed, ranks, results, methods."""

import copy
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import safetensors.torch
import torch
import torch.distributed as dist
from helpers import train_model, weights
from test_training import CONFIG, batch, make_model, stopped_at
from torch import Tensor, nn
from torch._C._distributed_c10d import HashStore

from pe_bench.config import AdaptConfig, TrainConfig
from pe_bench.decoder.model import Decoder
from pe_bench.errors import InputError
from pe_bench.system.sealed import DamagedError
from pe_bench.task import Batch
from pe_bench.train import adaptation_methods, loggers
from pe_bench.train.checkpoint_store import CheckpointStore
from pe_bench.train.checkpoints import read_checkpoint, write_checkpoint
from pe_bench.train.fabric import Logger
from pe_bench.train.loop import train
from pe_bench.train.optimizer import make_optimizer, scale, set_learning_rate
from pe_bench.train.process_group import SINGLE_PROCESS, ProcessGroup, connect
from pe_bench.train.progress import Callbacks
from pe_bench.train.training import ensure_trained, join_training
from pe_bench.train.training_result import TrainingResult
from pe_bench.train.training_setup import Training
from pe_bench.train.training_state import TrainingState

SHORT = replace(CONFIG, steps=5)


def noisy() -> Decoder:
    """Return a model that draws random numbers in every pass."""
    model = make_model("nope")
    model.norm.register_forward_hook(lambda _, __, out: out + 0.1 * torch.randn_like(out))
    return model


def test_a_rank_that_joins_trains_as_the_first_one_does(tmp_path: Path) -> None:
    """Here both are in this process, one after the other, with the files of one folder."""
    asked: list[bool] = []

    def distributed(resumes: bool) -> AbstractContextManager[ProcessGroup]:
        asked.append(resumes)
        return nullcontext(SINGLE_PROCESS)

    seen: list[int] = []

    def noted(step: int) -> Batch:
        seen.append(step)
        return batch(step)

    def join(resumes: bool) -> Decoder:
        seen.clear()
        model, store = noisy(), CheckpointStore(tmp_path, "test")
        training = Training(model, noted, SHORT, 5, "cpu", "fp32")
        join_training(training, store, group=SINGLE_PROCESS, resumes=resumes)
        return model

    with pytest.raises(RuntimeError, match="power cut"):
        train_model(noisy(), stopped_at(3), SHORT, tmp_path, distributed=distributed)
    joined = join(resumes=False)
    assert seen == [0, 1, 2, 3, 4]
    resumed = join(resumes=True)
    assert seen == [3, 4]
    first = noisy()
    train_model(first, batch, SHORT, tmp_path, distributed=distributed)
    assert asked == [False, True]
    assert torch.equal(weights(joined), weights(first))
    assert torch.equal(weights(resumed), weights(first))


def test_random_numbers_depend_on_seed_and_step() -> None:
    still = replace(CONFIG, steps=3, lr=0.0)
    losses = {}
    for seed in (0, 1, 2**31):
        training = Training(noisy(), lambda _: batch(0), still, seed, "cpu", "fp32")
        losses[seed] = train(training).curve.loss
    assert len({loss for found in losses.values() for loss in found}) == 9


def test_a_phase_without_steps_has_an_empty_result(tmp_path: Path) -> None:
    config = replace(CONFIG, steps=0, micro_batch=3)
    model, given = make_model("nope"), make_model("nope")
    nn.init.constant_(given.norm.weight, 3.0)
    found = train_model(model, batch, config, tmp_path, initial_weights=given.state_dict)
    assert math.isnan(found.loss) and found.peak_memory_bytes > 0
    empty = TrainingResult(0, 0, 0.0, 0.5, 0, 3)
    assert replace(found, loss=0.5, peak_memory_bytes=0) == empty
    assert torch.equal(weights(model), weights(given))
    assert not list(tmp_path.iterdir())


def test_a_result_is_stored_with_all_of_its_fields(tmp_path: Path) -> None:
    config = replace(SHORT, micro_batch=3)
    model = make_model("nope")
    found = train_model(model, batch, config, tmp_path)
    assert (found.steps, found.tokens, found.micro_batch) == (5, 5 * 32, 3)
    assert found.seconds > 0 and found.peak_memory_bytes > 2**20
    again = CheckpointStore(tmp_path, "test").load_result()
    assert again == found and again.curve == found.curve
    assert TrainingResult.from_json(found.to_json()) == found
    assert found.cost() == {n: v for n, v in vars(found).items() if n != "curve"}


@pytest.mark.parametrize("micro_batch", [None, 3])
def test_gradients_of_an_attempt_without_memory_are_discarded(
    micro_batch: int | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first micro-batch of the attempt fits, the second one does not."""
    expected, model = make_model("nope").double(), make_model("nope").double()
    exact = model.token_losses
    calls: list[int] = []

    def limited(tokens: Tensor, *args: Any, **more: Any) -> Tensor:
        calls.append(len(tokens))
        if calls in ([3, 1], [4]):
            raise torch.OutOfMemoryError
        return exact(tokens, *args, **more)

    model.token_losses = limited  # type: ignore[method-assign]
    config = replace(CONFIG, steps=1, micro_batch=micro_batch)
    found = train_model(model, batch, config, tmp_path / "a")
    whole = train_model(expected, batch, replace(config, micro_batch=None), tmp_path / "b")
    rows = micro_batch or 4
    assert calls == [*([3, 1] if micro_batch else [4]), 2, 2] and found.micro_batch == 2
    assert f"memory does not suffice for {rows} rows: continuing with 2 rows" in (
        capsys.readouterr().err
    )
    assert found.curve.grad_norm == pytest.approx(whole.curve.grad_norm, rel=1e-6)
    assert found.loss == pytest.approx(whole.loss, rel=1e-6)
    torch.testing.assert_close(weights(model), weights(expected), rtol=1e-5, atol=1e-8)


def test_a_row_that_does_not_fit_ends_the_training(tmp_path: Path) -> None:
    model = make_model("nope")

    def full(*_: Any, **__: Any) -> Tensor:
        raise torch.OutOfMemoryError

    model.token_losses = full  # type: ignore[method-assign]
    with pytest.raises(torch.OutOfMemoryError):
        train_model(model, batch, SHORT, tmp_path)


def test_the_optimizer() -> None:
    model = make_model("t5")
    model.lm_head.weight.requires_grad_(False)
    config = TrainConfig(lr=0.02, beta2=0.97, weight_decay=0.3)
    optimizer = make_optimizer(model, config)
    matrices, vectors = optimizer.param_groups
    assert isinstance(optimizer, torch.optim.AdamW)
    assert (matrices["weight_decay"], vectors["weight_decay"]) == (0.3, 0.0)
    for each in optimizer.param_groups:
        assert (each["lr"], each["betas"], each["fused"]) == (0.02, (0.9, 0.97), True)
    trained = {id(p): p.dim() > 1 for p in model.parameters() if p.requires_grad}
    found = {id(p): True for p in matrices["params"]} | {id(p): False for p in vectors["params"]}
    assert found == trained and len(trained) < len(list(model.parameters()))


@pytest.mark.parametrize("factor", [1.0, 10.0])
def test_the_learning_rate_of_the_encoding(factor: float) -> None:
    model = make_model("fire")
    config = TrainConfig(lr=0.02, weight_decay=0.3, encoding_lr_factor=factor)
    optimizer = make_optimizer(model, config)
    set_learning_rate(optimizer, 0.5)
    found: dict[int, tuple[float, float]] = {}
    for group in optimizer.param_groups:
        found |= {id(p): (group["lr"], group["weight_decay"]) for p in group["params"]}
    expected = {}
    for name, p in model.named_parameters():
        lr = 0.5 * factor if name.startswith("encodings.") else 0.5
        expected[id(p)] = (lr, 0.3 if p.dim() > 1 else 0.0)
    assert found == expected


def test_training_uses_the_learning_rate_of_the_encoding() -> None:
    changes = {}
    for factor in (1.0, 10.0):
        model = make_model("t5")
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        config = replace(CONFIG, steps=1, warmup=0.0, weight_decay=0.0, encoding_lr_factor=factor)
        train(Training(model, batch, config, 0, "cpu", "fp32"))
        for name, p in model.named_parameters():
            changes[name, factor] = (p.detach() - before[name]).norm().item()
    for name in before:
        expected = 10 if name.startswith("encodings.") else 1
        assert changes[name, 10.0] == pytest.approx(expected * changes[name, 1.0], rel=1e-3), name


@pytest.mark.parametrize(
    ("config", "factors"),
    [
        ({"warmup": 0.25, "schedule": "linear"}, [0.5, 1, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6]),
        ({"warmup": 0.0, "schedule": "constant"}, [1] * 8),
        ({"warmup": 0.5, "schedule": "constant"}, [0.25, 0.5, 0.75, 1, 1, 1, 1, 1]),
        ({"warmup": 0.5}, [0.25, 0.5, 0.75, 1, 1, 0.5 + 0.5**1.5, 0.5, 0.5 - 0.5**1.5]),
        ({"warmup": 1.0}, [n / 8 for n in range(1, 9)]),
    ],
)
def test_schedules(config: dict[str, Any], factors: list[float]) -> None:
    given = TrainConfig(steps=8, **config)
    assert [scale(step, given) for step in range(8)] == pytest.approx(factors)


METHODS = [
    ("encoding", None, {"encodings."}),
    ("encoding", "norms", {"encodings.", "norm"}),
    ("none", "embeddings", {"embed_tokens"}),
    ("none", "embeddings+norms", {"embed_tokens", "norm"}),
    ("full", None, {""}),
]


@pytest.mark.parametrize(("method", "also", "parts"), METHODS)
def test_a_method_freezes_the_rest(method: Any, also: Any, parts: set[str]) -> None:
    """Parameters in bfloat16 are trained in float32; those of the encoding stay in float32."""
    model = make_model("t5").bfloat16()
    config = AdaptConfig(steps=1, method=method, also=also)
    adaptation_methods.prepare(model, config, seed=0)
    for name, parameter in model.named_parameters():
        assert parameter.requires_grad == any(part in name for part in parts), name
        of_encoding = name.startswith("encodings.")
        wide = of_encoding or (parameter.requires_grad and method != "full")
        assert parameter.dtype == (torch.float32 if wide else torch.bfloat16)
    adaptation_methods.finish(model, config)
    assert all(parameter.requires_grad for parameter in model.parameters())
    for name, parameter in model.named_parameters():
        wide = name.startswith("encodings.")
        assert parameter.dtype == (torch.float32 if wide else torch.bfloat16)


@pytest.mark.parametrize(("length", "group"), [(None, 2), (23, 5), (4, 2)])
def test_longlora_has_groups_of_a_quarter_of_a_row(
    length: int | None, group: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_add_low_rank", "_merge"):
        monkeypatch.setattr(adaptation_methods, name, lambda *_: None)
    model = make_model("rope")
    config = AdaptConfig(steps=1, method="longlora", length=length)
    adaptation_methods.prepare(model, config, seed=0)
    assert model.group_length == group
    adaptation_methods.finish(model, config)
    assert model.group_length is None


@pytest.mark.parametrize(
    ("spec", "method", "also", "sentence"),
    [
        ("nope", "encoding", None, "would train nothing: use lora"),
        ("nope", "encoding", "norms", "would train nothing: use none"),
        ("nope", "lora", None, ""),
        ("t5", "encoding", None, ""),
        ("fire", "longlora", None, "does not support shifted sparse attention"),
        ("cope", "longlora", None, "does not support shifted sparse attention"),
        ("cope", "lora", None, ""),
        ("alibi", "longlora", None, ""),
        ("rope", "longlora", None, ""),
    ],
)
def test_a_method_that_cannot_train_an_encoding(
    spec: str, method: Any, also: Any, sentence: str
) -> None:
    encoding = make_model(spec).encoding
    config = AdaptConfig(steps=3, method=method, also=also)
    adaptation_methods.check_method(encoding, replace(config, steps=0))
    adaptation_methods.check_method(encoding, TrainConfig())
    if not sentence:
        adaptation_methods.check_method(encoding, config)
        return
    with pytest.raises(InputError, match=sentence):
        adaptation_methods.check_method(encoding, config)


@pytest.mark.parametrize("few", [True, False])
def test_only_trained_parameters_change_and_are_stored(few: bool, tmp_path: Path) -> None:
    config = AdaptConfig(steps=3, batch_size=4, length=8, lr=1e-2, method="encoding", save_every=0)
    store = CheckpointStore(tmp_path, "test", trainable_only=few)

    def run(batches: Callable[[int], Batch]) -> tuple[Decoder, TrainingResult]:
        model = make_model("t5")
        training = Training(model, batches, config, 5, "cpu", "fp32")
        result = ensure_trained(training, store)
        assert all(parameter.requires_grad for parameter in model.parameters())
        return model, result

    with pytest.raises(RuntimeError, match="power cut"):
        run(stopped_at(2))
    every = make_model("t5").state_dict()
    names = {name for name in every if name.startswith("encodings.") or not few}
    assert read_checkpoint(store.resume, owner="test")["weights"].keys() == names
    model, result = run(batch)
    assert read_checkpoint(store.final, owner="test")["weights"].keys() == names
    assert not store.resume.exists()
    again, same = run(stopped_at(0))
    assert same == result and torch.equal(weights(again), weights(model))
    assert torch.equal(model.lm_head.weight, make_model("t5").lm_head.weight)
    assert not torch.equal(weights(model), weights(make_model("t5")))


@pytest.mark.parametrize("change", ["tensor", "number", "name", "key"])
def test_a_changed_checkpoint_is_noticed(change: str, tmp_path: Path) -> None:
    """A file with the metadata of one checkpoint and something of another."""
    path = tmp_path / "one.safetensors"
    write_checkpoint(path, {"a": torch.arange(6), "b": {"c": torch.ones(2, 3), "n": 3}}, owner="it")
    with safetensors.safe_open(path, "pt") as file:
        about = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if change == "tensor":
        tensors["/b/c"][1, 2] = 2
    if change == "number":
        about["tree"] = about["tree"].replace("3", "4")
    if change == "name":
        tensors["/a"], tensors["/b/c"] = tensors["/b/c"], tensors["/a"]
    if change == "key":
        about["of"] = "other"
    safetensors.torch.save_file(tensors, path, about)
    with pytest.raises(DamagedError, match="has changed since it was written"):
        read_checkpoint(path, owner=about["of"])


def test_ranks_add_their_gradients_and_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other rank has three times the numbers of this one."""
    calls: list[Any] = []

    def reduce(tensor: Tensor, how: Any = dist.ReduceOp.SUM) -> None:
        calls.append(how)
        if how == dist.ReduceOp.SUM:
            tensor.mul_(4)

    monkeypatch.setattr(dist, "all_reduce", reduce)
    group = ProcessGroup(1, 2)
    assert ProcessGroup(0, 2, "fsdp").shards_weights and not group.shards_weights
    assert not ProcessGroup(0, 1, "fsdp").shards_weights
    parameters = [nn.Parameter(torch.ones(2, 3)), nn.Parameter(torch.ones(2)), nn.Parameter()]
    for number, parameter in enumerate(parameters[:2]):
        parameter.grad = torch.arange(parameter.numel()).view_as(parameter) + 10.0 * number
    expected = [4 * p.grad for p in parameters[:2] if p.grad is not None]
    assert group.all_reduce(parameters, torch.tensor(2.5)).item() == 10
    for parameter, gradient in zip(parameters, expected, strict=False):
        assert torch.equal(parameter.grad, gradient)  # type: ignore[arg-type]
    assert parameters[2].grad is None
    assert group.any(True) is True and group.any(False) is False
    assert calls == [dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.MAX]
    assert SINGLE_PROCESS.any(True) and not SINGLE_PROCESS.any(False)
    sent: list[tuple[Tensor, int]] = []
    monkeypatch.setattr(dist, "broadcast", lambda *given: sent.append(given))
    model = make_model("t5")
    SINGLE_PROCESS.broadcast(model)
    assert sent == []
    group.broadcast(model)
    assert [tensor.data_ptr() for tensor, _ in sent] == [
        tensor.data_ptr() for tensor in model.state_dict().values()
    ]
    assert {source for _, source in sent} == {0}


class Recorder:
    """A logger that records its calls."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    @property
    def experiment(self) -> "Recorder":
        return self

    def finish(self) -> None:
        self.calls.append("finish")

    def finalize(self, status: str) -> None:
        self.calls.append(status)

    def log_metrics(self, values: Mapping[str, float], step: int) -> None:
        self.calls.append((step, dict(values)))


@pytest.mark.parametrize("name", ["csv", "wandb"])
@pytest.mark.parametrize("fails", [True, False])
def test_a_logger_is_closed(
    name: Any, fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = Recorder()
    monkeypatch.setattr(loggers, "_make_logger", lambda *given: logger)
    with (
        pytest.raises(RuntimeError) if fails else nullcontext(),
        loggers.open_logger(name, tmp_path, "title"),
    ):
        if fails:
            raise RuntimeError
    assert logger.calls == ["failed" if fails else "success", *(["finish"] * (name == "wandb"))]


def test_a_logger_gets_all_columns() -> None:
    logger = Recorder()
    training = Training(make_model("nope"), batch, SHORT, 5, "cpu", "fp32")
    curve = train(training, callbacks=Callbacks(logger=cast(Logger, logger))).curve
    columns = ("loss", "lr", "grad_norm", "tokens_per_second")
    rows = zip(*(getattr(curve, name) for name in columns), strict=True)
    assert [step for step, _ in logger.calls] == list(curve.step)
    for (_, values), row in zip(logger.calls, rows, strict=True):
        assert tuple(values) == columns
        assert tuple(values.values())[:3] == pytest.approx(row[:3])


@pytest.fixture
def one_rank() -> Iterator[None]:
    """Connect this process with itself."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.usefixtures("one_rank")
def test_sharded_weights_are_trained_like_whole_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """A single rank holds one shard, which is everything."""
    plain, model = make_model("nope"), make_model("nope")
    training = Training(plain, batch, replace(SHORT, clip=0.1), 5, "cpu", "fp32")
    expected = train(training)
    monkeypatch.setattr(ProcessGroup, "shards_weights", True)
    group = ProcessGroup(0, 1, "fsdp")
    states: list[TrainingState] = []

    def save(state: TrainingState) -> None:
        states.append(copy.deepcopy(state))

    found = train(replace(training, model=model), group=group, callbacks=Callbacks(save=save))
    torch.testing.assert_close(weights(model), weights(plain))
    assert found.curve.grad_norm == pytest.approx(expected.curve.grad_norm, rel=1e-5)
    again = make_model("nope")
    again.load_state_dict(states[1].weights)
    train(replace(training, model=again), group=group, state=states[1])
    torch.testing.assert_close(weights(again), weights(plain))


def test_loggers_are_made_with_folder_and_title(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The classes of Lightning are replaced, because their packages need not be installed."""
    made: list[tuple[Any, ...]] = []

    def maker(name: str) -> Callable[..., Recorder]:
        def make(*given: Any, **named: Any) -> Recorder:
            made.append((name, *given, named))
            return Recorder()

        return make

    fabric = SimpleNamespace(TensorBoardLogger=maker("tensorboard"))
    others = SimpleNamespace(WandbLogger=maker("wandb"), MLFlowLogger=maker("mlflow"))
    monkeypatch.setitem(sys.modules, "lightning.fabric.loggers.tensorboard", fabric)
    monkeypatch.setitem(sys.modules, "lightning.pytorch", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "lightning.pytorch.loggers", others)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    folder = tmp_path / "new" / "logs"
    names: list[Any] = ["tensorboard", "wandb", "mlflow"]
    for name in names:
        with loggers.open_logger(name, folder, "rope/mqar/0") as logger:
            assert isinstance(logger, Recorder)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://host")
    with loggers.open_logger("mlflow", folder, "title"):
        pass
    runs = {"save_dir": str(folder / "mlruns")}
    assert made == [
        ("tensorboard", folder, "rope/mqar/0", {}),
        ("wandb", "rope/mqar/0", folder, {"project": "pe-bench"}),
        ("mlflow", "pe-bench", "rope/mqar/0", None, runs),
        ("mlflow", "pe-bench", "title", "http://host", runs),
    ]
    assert folder.is_dir()
    with loggers.open_logger(None, tmp_path / "none", "title") as logger:
        assert logger is None and not (tmp_path / "none").exists()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_rank_is_connected(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(torch.cuda, "set_device", calls.append)
    monkeypatch.setattr(dist, "init_process_group", lambda *args, **kw: calls.append((args, kw)))
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    store = HashStore()
    connect(ProcessGroup(1, 3), device, store)  # type: ignore[arg-type]
    args, given = calls.pop()
    timeout = given.pop("timeout")
    assert args == (("gloo",) if device == "cpu" else ("cpu:gloo,cuda:nccl",))
    assert given == {"store": store, "rank": 1, "world_size": 3}
    assert timeout.total_seconds() == 12 * 3600
    assert calls == ([] if device == "cpu" else [1])
    assert os.environ.pop("GLOO_SOCKET_IFNAME") == "lo"
