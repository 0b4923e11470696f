"""Training: schedule, micro-batches, and resuming without a trace."""

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers import CODED, some_slow, train_model, weights
from torch import Tensor, nn

from pe_bench.config import IGNORE, ModelConfig, TrainConfig
from pe_bench.decoder.model import Decoder
from pe_bench.encoding import Encoding
from pe_bench.positions import Positions
from pe_bench.registry import plugins
from pe_bench.runs.memory import batch_bytes
from pe_bench.runs.options import RunOptions
from pe_bench.runs.resolve import resolve
from pe_bench.task import Batch
from pe_bench.train.checkpoint_store import CheckpointStore
from pe_bench.train.loop import train
from pe_bench.train.progress import Callbacks
from pe_bench.train.training import ensure_trained
from pe_bench.train.training_log import TrainingLog
from pe_bench.train.training_result import TrainingResult
from pe_bench.train.training_setup import Training
from pe_bench.train.training_state import TrainingState

SHAPE = ModelConfig(
    layers=2,
    heads=2,
    width=16,
    mlp_width=24,
    vocab_size=12,
    train_length=8,
    digit_ids=(1,),
    separator_ids=(2,),
)
CONFIG = TrainConfig(steps=12, batch_size=4, length=8, lr=1e-2, save_every=0)


def make_model(spec: str = "tape") -> Decoder:
    torch.manual_seed(3)
    encoding = plugins.load("encoding", spec)
    return Decoder(SHAPE, lambda model, layer: encoding.cls(model, layer, **encoding.options))


def batch(step: int) -> Batch:
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(12, (4, 8), generator=generator)
    targets = tokens.roll(-1, 1)
    targets[step % 4, 3:] = IGNORE  # rows of unequal weight
    return Batch(tokens, targets)


def stopped_at(step: int) -> Callable[[int], Batch]:
    """Return batches up to a step, at which the training is interrupted."""

    def batches(index: int) -> Batch:
        if index == step:
            raise RuntimeError("power cut")
        return batch(index)

    return batches


def on_cpu(model: Decoder, config: TrainConfig = CONFIG) -> Training:
    return Training(model, batch, config, 5, "cpu", "fp32")


def run(
    model: Decoder,
    folder: Path,
    config: TrainConfig = CONFIG,
    data: Callable[[int], Batch] = batch,
) -> TrainingResult:
    return train_model(model, data, config, folder)


@pytest.mark.parametrize(
    "stop", [pytest.param(1, marks=pytest.mark.slow), 7, pytest.param(11, marks=pytest.mark.slow)]
)
def test_an_interrupted_run_ends_where_an_uninterrupted_one_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], stop: int
) -> None:
    whole, resumed = make_model(), make_model()
    expected = run(whole, tmp_path / "whole")
    seen: list[int] = []

    def until_stopped(step: int) -> Batch:
        if step == stop:
            raise RuntimeError("power cut")
        return batch(step)

    with pytest.raises(RuntimeError, match="power cut"):
        run(resumed, tmp_path / "resumed", data=until_stopped)

    def noted(step: int) -> Batch:
        seen.append(step)
        return batch(step)

    resumed = make_model()
    capsys.readouterr()
    trained = run(resumed, tmp_path / "resumed", data=noted)
    assert f": resumes from step {seen[0]} of 12\n" in capsys.readouterr().out
    assert seen[0] == stop - 1 or seen[0] == stop  # continues instead of starting again
    torch.testing.assert_close(weights(resumed), weights(whole), rtol=0, atol=0)
    assert (trained.steps, trained.tokens) == (expected.steps, expected.tokens) == (12, 12 * 32)
    assert trained.loss == pytest.approx(expected.loss, abs=1e-6)


@pytest.mark.slow
def test_a_finished_phase_is_loaded_not_trained(tmp_path: Path) -> None:
    model, again = make_model(), make_model("tape")
    trained = run(model, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"final.safetensors"}

    def forbidden(step: int) -> Batch:
        raise AssertionError("trained again")

    assert run(again, tmp_path, data=forbidden) == trained
    assert torch.equal(weights(again), weights(model))


@pytest.mark.slow
def test_slices_of_a_batch_weigh_every_target_alike(tmp_path: Path) -> None:
    whole, sliced = make_model().double(), make_model().double()
    config = TrainConfig(steps=3, batch_size=4, length=8, lr=1e-2)
    run(whole, tmp_path / "whole", config)
    micro = TrainConfig(steps=3, batch_size=4, length=8, lr=1e-2, micro_batch=3)
    run(sliced, tmp_path / "sliced", micro)
    torch.testing.assert_close(weights(sliced), weights(whole), rtol=1e-6, atol=1e-9)


class Penalised(Encoding):
    """An encoding with an auxiliary loss."""

    def __init__(self, model: ModelConfig, layer: int = 0) -> None:
        super().__init__(model, layer)
        self.gain = nn.Parameter(torch.full((), 3.0))

    def embed(self, x: Tensor, positions: Positions) -> Tensor:
        return self.gain * x

    def extra_loss(self) -> Tensor:
        return self.gain.square()


def test_a_loss_of_an_encoding_counts_once_in_all_slices(tmp_path: Path) -> None:
    norms: list[float] = []
    for rows in (None, 1, 3):
        torch.manual_seed(3)
        model = Decoder(SHAPE, Penalised).double()
        config = replace(CONFIG, steps=1, micro_batch=rows)
        norms += run(model, tmp_path / str(rows), config).curve.grad_norm
    assert norms == pytest.approx([norms[0]] * 3, rel=1e-6)


def test_it_learns(tmp_path: Path) -> None:
    def cycle(step: int) -> Batch:
        tokens = (torch.arange(8) + torch.arange(4)[:, None] + step) % 12
        return Batch(tokens, (tokens + 1) % 12)

    config = TrainConfig(steps=60, batch_size=4, length=8, lr=1e-2)
    loss = run(make_model("nope"), tmp_path, config, cycle).loss
    assert loss < 0.5  # chance is ln 12 = 2.5


@pytest.mark.slow
@pytest.mark.parametrize("spec", CODED)
def test_bf16_trains_and_keeps_float32_weights(tmp_path: Path, spec: str) -> None:
    model = make_model(spec)
    trained = train_model(model, batch, CONFIG, tmp_path, "bf16")
    assert 0 < trained.loss < 4
    assert {p.dtype for p in model.parameters()} == {torch.float32}


def test_the_loop_resumes_from_any_state() -> None:
    """The state is sufficient to resume a training, without files."""
    whole = make_model("t5")
    states: list[TrainingState] = []

    def save(state: TrainingState) -> None:
        states.append(copy.deepcopy(state))

    expected = train(on_cpu(whole), callbacks=Callbacks(save=save))
    assert [state.step for state in states] == list(range(1, 13))
    for state in (states[0], states[6]):
        resumed = make_model("t5")
        resumed.load_state_dict(state.weights)
        # These are values of the earlier call.
        later = replace(state, seconds=1000.0, peak_memory_bytes=10**15)
        found = train(on_cpu(resumed), state=later)
        assert torch.equal(weights(resumed), weights(whole))
        assert (found.tokens, found.loss) == (expected.tokens, expected.loss)
        for name in ("step", "loss", "lr", "grad_norm"):
            assert getattr(found.curve, name) == getattr(expected.curve, name)
        assert found.seconds > 1000 and found.peak_memory_bytes == 10**15


@pytest.mark.parametrize(("stops", "steps"), [(lambda steps, loss: steps >= 5, 5), (None, 12)])
def test_a_training_that_is_stopped_leaves_no_file(
    tmp_path: Path, stops: Callable[[int, float], bool] | None, steps: int
) -> None:
    store = CheckpointStore(tmp_path, "test")
    model = make_model("nope")
    result = ensure_trained(on_cpu(model), store, stop=stops)
    assert result.steps == len(result.curve) == steps
    assert store.final.exists() == (stops is None) and not store.resume.exists()


@pytest.mark.slow
def test_a_stop_is_asked_for_with_the_loss_since_it_was_last(tmp_path: Path) -> None:
    asked: list[tuple[int, float]] = []

    def stop(steps: int, loss: float) -> bool:
        asked.append((steps, loss))
        return False

    config = replace(CONFIG, steps=40)
    result = train(on_cpu(make_model("nope"), config), callbacks=Callbacks(stop=stop))
    losses = result.curve.loss
    assert [steps for steps, _ in asked] == [*range(2, 40, 2)]
    means = [sum(losses[steps - 2 : steps]) / 2 for steps, _ in asked]
    assert [loss for _, loss in asked] == pytest.approx(means)


def test_autocast_keeps_no_cache(tmp_path: Path) -> None:
    """With a cache, gradients of a weight that layers share would be summed in bfloat16."""
    seen = set()

    def note(*_: object) -> None:
        seen.add((torch.is_autocast_enabled("cpu"), torch.is_autocast_cache_enabled()))

    for precision in ("fp32", "bf16"):
        model = make_model()
        model.layers[0].register_forward_pre_hook(note)
        train_model(model, batch, replace(CONFIG, steps=1), tmp_path / precision, precision)
    assert seen == {(False, True), (True, False)}


def test_gradients_are_clipped(tmp_path: Path) -> None:
    moved = []
    for clip in (0.0, 1e-9):  # below AdamW's epsilon, or its normalisation would undo the clipping
        model = make_model()
        before = weights(model)
        config = TrainConfig(steps=1, length=8, lr=1e-2, clip=clip, weight_decay=0)
        run(model, tmp_path / str(clip), config)
        moved.append(float((weights(model) - before).abs().max()))
    assert moved[1] < 0.1 * moved[0]


def test_zero_steps_leave_the_model_as_it_is(tmp_path: Path) -> None:
    model = make_model()
    before = weights(model)
    assert run(model, tmp_path, TrainConfig(steps=0, length=8)).tokens == 0
    assert torch.equal(weights(model), before)


def test_a_loss_that_becomes_infinite_is_answered_with_advice() -> None:
    log = TrainingLog(4)
    log.losses[:] = torch.tensor([1.0, torch.inf, torch.inf, 1.0])
    assert log.recent_loss(1) == 1.0
    with pytest.raises(FloatingPointError, match=r"at step 3: lower --train\.lr"):
        log.recent_loss(3)


@pytest.mark.slow
def test_a_loss_that_is_not_finite_stops_with_advice(tmp_path: Path) -> None:
    model = make_model()
    with torch.no_grad():
        model.norm.weight.fill_(torch.inf)
    with pytest.raises(FloatingPointError, match="at the first step, before anything was trained"):
        run(model, tmp_path)
    assert not (tmp_path / "final.safetensors").exists()


def gradients(model: Decoder, *, recompute: bool) -> tuple[dict[str, Tensor], int]:
    """Return the gradient of each parameter, and the number of saved values."""
    kept = 0

    def count(tensor: Tensor) -> Tensor:
        nonlocal kept
        kept += tensor.numel()
        return tensor

    model.recompute = recompute
    model.zero_grad()
    torch.manual_seed(7)
    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        loss = model.token_losses(*batch(0)).sum()
    loss.backward()
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {name: grad.clone() for name, grad in found.items()}, kept


@pytest.mark.parametrize("name", some_slow(CODED))
def test_recomputed_activations_give_the_same_gradients(name: str) -> None:
    model = make_model(name).train()
    whole, much = gradients(model, recompute=False)
    again, little = gradients(model, recompute=True)
    assert again.keys() == whole.keys() and little < much
    # Gradients of weights that layers share are summed in another order.
    shared = model.encoding.shared and any(True for _ in model.encoding.parameters())
    for key, grad in whole.items():
        if shared:
            assert torch.allclose(again[key], grad, rtol=1e-4, atol=1e-6), key
        else:
            assert torch.equal(again[key], grad), key


def test_recomputed_blocks_draw_the_same_random_numbers() -> None:
    class Noisy(Encoding):
        def transform_qk(self, q: Tensor, k: Tensor, positions: Positions) -> tuple[Tensor, Tensor]:
            calls.append(positions.layer)
            return q + torch.randn_like(q), k

    calls: list[int] = []
    torch.manual_seed(3)
    model = Decoder(SHAPE, Noisy).train()
    whole, _ = gradients(model, recompute=False)
    assert calls == [0, 1]
    again, _ = gradients(model, recompute=True)
    assert calls == [0, 1, 0, 1, 1, 0]
    assert all(torch.equal(again[key], grad) for key, grad in whole.items())
    model.eval()
    gradients(model, recompute=True)
    assert len(calls) == 8  # in evaluation each block is computed once


def test_recomputed_activations_need_less_memory(tmp_path: Path) -> None:
    found = []
    for recompute in (False, True):
        options = RunOptions(train={"recompute": recompute}, cache=tmp_path)
        found.append(resolve(options, "flipflop"))
    whole, again = found
    assert batch_bytes(again, "cpu", "fp32") < batch_bytes(whole, "cpu", "fp32") / 2
    assert whole.digest() == again.digest()  # no number changes


def test_a_gpu_holds_the_ids_of_a_batch_and_the_activations_of_a_row(tmp_path: Path) -> None:
    found = []
    for rows in (64, 128):
        options = RunOptions(train={"batch_size": rows, "micro_batch": 16}, cache=tmp_path)
        task = resolve(options, "flipflop")
        found.append([batch_bytes(task, device, "fp32") for device in ("cuda", "cpu")])
    ids = 64 * task.model.train_length * 2 * 8  # an id and a target of each token more
    (on_gpu, on_cpu), more = found
    assert more == [on_gpu + ids, on_cpu + ids] and on_cpu > 8 * on_gpu


@pytest.mark.slow
def test_training_with_recomputed_activations(tmp_path: Path) -> None:
    plain, again = make_model(), make_model()
    run(plain, tmp_path / "plain")
    run(again, tmp_path / "again", replace(CONFIG, recompute=True))
    assert torch.equal(weights(plain), weights(again)) and not again.recompute
