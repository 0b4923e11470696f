"""The cases of task efficiency: their sizes, calls and rows, without timing anything."""

import zlib
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import make_task

from pe_bench.config import ModelConfig
from pe_bench.decoder.model import Decoder
from pe_bench.encodings.alibi import ALiBi
from pe_bench.encodings.nope import NoPE
from pe_bench.encodings.rope import RoPE
from pe_bench.results.journal import Journal
from pe_bench.results.measurement import Measurement
from pe_bench.tasks.efficiency import bench, cases, task
from pe_bench.tasks.efficiency.attention_layer import MiddleLayer
from pe_bench.tasks.efficiency.bench import Bench
from pe_bench.tasks.efficiency.cases import Case, Entry, Limits, Meter, Pass
from pe_bench.tasks.efficiency.memory import GIB
from pe_bench.tasks.efficiency.timing import Turns

SHAPE = ModelConfig(layers=3, heads=2, width=16, mlp_width=16, vocab_size=32, train_length=99)
BENCH = Bench(
    make_encoding=NoPE,
    make_reference=RoPE,
    config=SHAPE,
    lengths=(8, 16),
    length=12,
    model_backends=("auto", "eager"),
    batch_size=5,
    new_tokens=7,
    projections=True,
    device="cpu",
    dtype=torch.float32,
)


class Made(Meter):
    """Returns made-up times, and notes the cases and their calls."""

    def __init__(self) -> None:
        self.cases: list[Case] = []
        self.passes: list[tuple[str, Pass]] = []
        self.shorter: list[list[int]] = []

    def measure(self, case: Case, shorter: Mapping[int, Entry]) -> Entry:
        self.cases.append(case)
        self.shorter.append([*shorter])
        entry = {}
        for name, each in case.passes(case.length).items():
            self.passes.append((name, each))
            seconds = [float(zlib.crc32(f"{case.key} {name} {i}".encode()) % 97) for i in range(4)]
            entry[name] = {
                "seconds": seconds,
                "reference_seconds": [1.0, 2.0, 4.0, 8.0],
                "bytes": 3 * 2**20,
                "reference_bytes": 2**21,
                "flops": 5e9,
                "tokens": each.tokens,
                "steps": each.steps,
                "kept": None,
                "chosen": "sdpa",
            }
        return entry


@pytest.fixture
def made() -> Made:
    return Made()


def of_cases(made: Made) -> list[tuple[str, str, str, int, int]]:
    return [(case.key, case.subset, case.backend, case.length, case.pairs) for case in made.cases]


def test_layers_are_measured_at_every_length(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "BACKENDS", ("auto", "eager"))
    rows = BENCH.measure("operator", made)
    assert of_cases(made) == [
        ("auto at 8 tokens", "operator", "auto", 8, 2 * 8**2),
        ("eager at 8 tokens", "operator-eager", "eager", 8, 2 * 8**2),
        ("auto at 16 tokens", "operator", "auto", 16, 2 * 16**2),
        ("eager at 16 tokens", "operator-eager", "eager", 16, 2 * 16**2),
    ]
    assert made.shorter == [[], [], [8], [8]]
    assert [name for name, _ in made.passes] == ["forward", "forward_backward"] * 4
    for index, (name, each) in enumerate(made.passes):
        calls: Any = (each.subject, each.reference)
        subject, reference = (call.__self__ for call in calls)
        assert isinstance(subject.layer.encoding, NoPE)
        assert isinstance(reference.layer.encoding, RoPE)
        assert (subject.backend, reference.backend) == (("auto", "eager")[index // 2 % 2], "auto")
        assert subject.x.shape == reference.x.shape == (1, (8, 16)[index // 4], 16)
        assert isinstance(subject.layer.attention.q_proj, torch.nn.Linear)  # projections
        assert [call.__name__ for call in calls] == [name, name]
        assert (each.tokens, each.steps, each.kept()) == (0, 1, None)
    assert {(row.subset, row.length, row.second_axis) for row in rows} == {
        ("operator", 8, "sdpa"),
        ("operator", 16, "sdpa"),
        ("operator-eager", 8, "eager"),
        ("operator-eager", 16, "eager"),
    }
    assert not [row for row in rows if "tokens" in row.metric]


@pytest.mark.parametrize(
    ("subset", "titles", "sizes"),
    [
        ("training", ["training step"], {"training_step": (5 * 12, 1)}),
        ("inference", ["prompt", "decoding"], {"prefill": (5 * 12, 1), "decoding": (5 * 7, 7)}),
    ],
)
def test_models_are_measured_with_every_backend(
    made: Made, subset: str, titles: list[str], sizes: dict[str, tuple[int, int]]
) -> None:
    rows = BENCH.measure(subset, made)
    pairs = 5 * 3 * 2 * 12**2
    expected = []
    for backend, name in (("auto", subset), ("eager", f"{subset}-eager")):
        expected += [(f"{title}, {backend}", name, backend, 12, pairs) for title in titles]
    assert of_cases(made) == expected
    assert [name for name, _ in made.passes] == [*sizes] * 2
    for index, (name, each) in enumerate(made.passes):
        subject: Any = each.subject
        reference: Any = each.reference
        assert type(subject) is type(reference)
        assert isinstance(subject.model.encoding, NoPE)
        assert isinstance(reference.model.encoding, RoPE)
        assert (subject.backend, reference.backend) == (expected[index][2], "auto")
        assert getattr(subject, "new", 7) == getattr(reference, "new", 7) == 7
        assert (each.tokens, each.steps) == sizes[name]
        assert each.kept() == (subject.cache_bytes if name == "prefill" else None)
    speeds = [row for row in rows if row.metric.endswith("tokens_per_second")]
    assert len(speeds) == len(made.passes)
    for row, (name, _) in zip(speeds, made.passes, strict=True):
        assert row.n == 4 and row.metric.startswith(name)


def test_a_case_has_all_numbers_of_its_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    options: dict[str, Any] = {}

    def subject() -> None:
        calls.append("s")

    def reference() -> None:
        calls.append("r")

    def take_turns(*pair: Any, **how: Any) -> Turns:
        assert pair == (subject, reference)
        options.update(how)
        return Turns([3.0, 1.0], [4.0, 2.0])

    monkeypatch.setattr(cases, "take_turns", take_turns)
    monkeypatch.setattr(cases, "peak_bytes", lambda call, device: 7 if call is subject else 9)
    monkeypatch.setattr(cases, "count_products", lambda call: 11 if call is subject else 13)
    passes = {"decoding": Pass(subject, reference, 20, 5, kept=lambda: 17)}
    meter = Meter(Journal(tmp_path / "j"), Limits(6, 8.0, 1.0), "cpu")
    found = meter.measure(Case("a", "inference", "auto", 4, 4, lambda _: passes), {})
    assert found["decoding"] == {
        "seconds": [3.0, 1.0],
        "reference_seconds": [4.0, 2.0],
        "bytes": 7,
        "reference_bytes": 9,
        "flops": 11,
        "tokens": 20,
        "steps": 5,
        "kept": 17,
        "chosen": "",
    }
    assert calls == ["s", "s", "r"]  # before their memory is measured
    assert options == {"device": "cpu", "repeats": 6, "seconds": 8.0, "warm_up": 1}


@pytest.mark.parametrize(
    ("sizes", "seconds", "left_out"),
    [
        ({8: 0.1 * GIB, 16: 0.2 * GIB}, [1.0, 1.0, 9.0], ""),  # linear; the median counts
        ({8: 0.3 * GIB, 16: 0.6 * GIB}, [1.0, 1.0, 1.0], "1.2 GiB"),
        ({8: 9.0, 16: 9.0}, [1.0, 5.0, 5.0], "10 s"),
        ({16: 9.0}, [5.0, 3.0, 3.0], "12 s"),  # at worst quadratic
    ],
)
def test_limits_apply_to_each_pass(
    tmp_path: Path, sizes: dict[int, float], seconds: list[float], left_out: str
) -> None:
    shorter = {}
    for length, size in sizes.items():
        slower = [length / 16 * one for one in seconds]
        shorter[length] = {
            "forward": {"seconds": slower, "bytes": size},
            "forward_backward": {"reason": "x"},
        }
    meter = Meter(Journal(tmp_path / "j"), Limits(3, 9.0, 1.0), "cpu")
    case = Case("a", "operator", "auto", 32, 32, lambda _: {})
    found = meter._predicted(case, shorter)
    assert found.keys() == ({"forward"} if left_out else set())
    assert left_out in found.get("forward", "")


def test_unknown_sizes_are_predicted_from_a_quarter_and_a_half(tmp_path: Path) -> None:
    lengths = []

    def passes(length: int) -> dict[str, Pass]:
        lengths.append(length)
        few, many = (torch.zeros(length * n) for n in (100, 300))
        return {"a": Pass(few.clone, few.clone), "b": Pass(many.clone, few.clone)}

    meter = Meter(Journal(tmp_path / "j"), Limits(3, 9.0, 1e-9), "cpu")
    found = meter._bytes_of_shorter(Case("a", "operator", "auto", 64, 64, passes))
    assert lengths == [16, 32]
    assert found == {16: 4 * 300 * 16, 32: 4 * 300 * 32}  # the larger pass
    case = Case("a", "operator", "auto", 64, 64, passes)
    for shorter in ({}, {32: {"": {"reason": "x"}}}):
        (reason,) = meter._predicted(case, shorter).items()
        assert reason[0] == "" and reason[1].startswith("it would need about")


def test_a_layer_gets_the_state_of_the_layer_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call gets it as new leaves, so that gradients end there."""
    made = MiddleLayer(
        SHAPE,
        NoPE,
        "auto",
        device="cpu",
        autocast=nullcontext(),
        dtype=torch.float32,
        projections=False,
    )
    source = torch.arange(6.0).view(2, 3).requires_grad_()
    states: list[Any] = []

    def attend(x: torch.Tensor, *, state: Any, tokens: Any, backend: str) -> Any:
        states.append(state)
        assert tokens is made.tokens and backend == "auto" and x is made.x
        return x * state[0].sum(), state[1][0].sum()[None]

    counts = torch.tensor([3])
    prepared = ((2 * source).T, ((source + 1), counts))
    monkeypatch.setattr(made.layer, "prepare", lambda x, tokens: prepared)
    monkeypatch.setattr(made.layer, "attend", attend)
    gradients: list[torch.Tensor] = []
    made.x.register_hook(gradients.append)  # the backward pass includes that of the input
    made.forward_backward()
    assert [each.shape for each in gradients] == [made.x.shape]
    made.forward()
    for state, needs_grad in zip(states, (True, False), strict=True):
        first, (second, third) = state
        assert torch.equal(first, prepared[0]) and torch.equal(second, source + 1)
        assert third is counts
        for tensor in (first, second):
            assert tensor.is_leaf and tensor.is_contiguous()
            assert tensor.requires_grad == needs_grad
    assert source.grad is None and states[0][0].grad is not None


@pytest.mark.parametrize(("precision", "dtype"), [("run", torch.bfloat16), ("fp16", torch.float16)])
def test_a_bench_gets_the_options_of_its_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str, dtype: torch.dtype
) -> None:
    given: dict[str, Any] = {}
    row = Measurement("training", "training_step_ms", 1.0, 3)

    class Noted:
        def __init__(self, **options: Any) -> None:
            given.update(options)

        def measure(self, subset: str, meter: Meter) -> list[Measurement]:
            assert (subset, meter.limits) == ("training", Limits(4, 6.0, 3.0))
            assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
            assert not torch.is_autocast_enabled("cpu")  # the cases have their own
            return [row]

    monkeypatch.setattr(task, "Bench", Noted)
    made = make_task(
        task.Efficiency,
        tmp_path,
        train={"length": 24},
        reference="alibi",
        shortest=10,
        longest=45,
        models="all",
        batch=2,
        new_tokens=3,
        projections=True,
        precision=precision,
        repeats=4,
        seconds=6.0,
        memory=3.0,
    )
    model = Decoder(SHAPE, NoPE)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        found = made.evaluate(model, "training", 0, Journal(tmp_path / "j"))
    assert found.rows == [row] and not found.items
    assert isinstance(given.pop("make_reference")(SHAPE, 0), ALiBi)
    assert given == {
        "make_encoding": model.make_encoding,
        "config": model.config,
        "lengths": [10, 20, 40],
        "length": 24,
        "model_backends": bench.BACKENDS,
        "batch_size": 2,
        "new_tokens": 3,
        "projections": True,
        "device": "cpu",
        "dtype": dtype,
    }
    assert made.max_eval_tokens == 40 and made.batch(None, 0, 0).tokens.shape == (2, 24)
