"""Estimated costs of training and generation, before anything is trained."""

import csv
import json
import re
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers import CODED, KINDS
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException

from pe_bench.checks import model_cost
from pe_bench.checks.counting import count_products
from pe_bench.checks.ledger import Count, count_step
from pe_bench.checks.model_cost import ModelCost, PartCost, mean_keys, measure
from pe_bench.checks.operations import Operations
from pe_bench.cli import main
from pe_bench.config import ModelConfig, TrainConfig
from pe_bench.decoder import blocked
from pe_bench.decoder.cache import Cache
from pe_bench.decoder.model import Decoder, MakeEncoding
from pe_bench.encoding import Encoding
from pe_bench.errors import InputError
from pe_bench.grid.cost import CostCounter, RunCost, TrainingShape, find_phases
from pe_bench.grid.cost_rows import CostRow, GenerationCost, write_costs
from pe_bench.grid.grid_cost import GridCost
from pe_bench.grid.model_shape import SIZES, VOCABULARY, choose_shape, count_parameters, read_size
from pe_bench.positions import Positions
from pe_bench.pretrained.weights import make_empty
from pe_bench.registry import plugins
from pe_bench.registry.plugins import Plugin
from pe_bench.runs.memory import BYTES_PER_PARAMETER
from pe_bench.runs.options import RunOptions
from pe_bench.text import download
from pe_bench.visibility import EVERYTHING, Visibility

SHAPE = ModelConfig(
    layers=5,
    heads=4,
    width=64,
    mlp_width=160,
    vocab_size=300,
    train_length=96,
    digit_ids=tuple(range(10)),
    separator_ids=(10,),
)
OF_LAYER = 4 * SHAPE.width**2 + 3 * SHAPE.width * SHAPE.mlp_width  # numbers in projections
WORDS = SHAPE.vocab_size * SHAPE.width


@cache
def cost(spec: str = "nope", **options: Any) -> ModelCost:
    return measure(plugins.load("encoding", spec).make, SHAPE, **options)


def cost_of(encoding: MakeEncoding) -> ModelCost:
    return measure(encoding, SHAPE.changed(layers=1))


@pytest.fixture
def fake_tensors() -> None:
    """Count on tensors without numbers, as commands do, which is faster for a large model."""


@pytest.fixture(autouse=True)
def real_tensors(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Count on real tensors, which is faster for a tiny model and gives the same numbers."""
    if "fake_tensors" not in request.fixturenames:
        monkeypatch.setattr(model_cost, "FakeTensorMode", nullcontext)


def test_lines_and_windows() -> None:
    """Costs of two layers, one with a window of two and the first key, by hand."""
    window = Visibility(window=2, first=1)
    only = Operations
    rest = PartCost(only(0, 100, 0), only(0, 10, 0), only(8, 6, 0), saved=7)
    full = PartCost(
        only(20, 3, 2), only(0, 5, 4), only(0, 12, 2), saved=11, cached=((8, EVERYTHING),)
    )
    local = PartCost(
        only(0, 1, 2), only(0, 2, 3), only(0, 0, 1), 13, ((4, window), (16, EVERYTHING)), window
    )
    found = ModelCost(1, 2, (full, local), rest, cacheable=True, max_position=None)
    assert [mean_keys(each, 4) for each in (EVERYTHING, window)] == [2.5, (1 + 2 + 3 + 3) / 4]
    of_full, of_local = 5 + 4 * 2.5, 2 + 3 * 2.25
    shared = 8 / 4 + 6 + (12 + 2 * 2.5) + 2.25
    for rows in (1, 3):
        assert found.training(4, rows) == pytest.approx(10 + of_full + of_local + shared / rows)
    assert found.saved == 7 + 11 + 13
    assert found.prefill(4) == 20 + 4 * (3 + 2 * 2.5 + 1 + 2 * 2.25) + 100
    assert found.decode(4) == 100 + (20 + 3 + 2 * 4) + (1 + 2 * 3)
    assert found.decode(2) == 100 + (20 + 3 + 2 * 2) + (1 + 2 * 2)
    assert [found.cache(tokens) for tokens in (2, 3, 9)] == [2 * 28, 3 * 28, 9 * 24 + 3 * 4]
    whole = replace(found, cacheable=False)
    assert whole.decode(4) == found.prefill(4) and whole.cache(4) == 0


@pytest.mark.slow
def test_a_larger_vocabulary_costs_more() -> None:
    """Rows with real numbers have few words; the costs of the others are added."""
    few, more = SHAPE.changed(layers=1, vocab_size=70), SHAPE.changed(layers=1)
    make = plugins.load("encoding", "nope").make
    parts = [
        model_cost._count(make_empty(shape, make), [0], narrow=False, recompute=False)
        for shape in (few, more)
    ]
    found = model_cost._with_more_words(parts[0], more, few)
    for one, other in zip(found, parts[1], strict=True):
        for name in ("forward", "training", "shared"):
            assert vars(getattr(one, name)) == pytest.approx(vars(getattr(other, name)))
        assert one.saved == pytest.approx(other.saved, rel=0.01) and one.cached == other.cached
    assert model_cost._few_words(SHAPE) == 65 and model_cost._few_words(few) == 65
    assert model_cost._few_words(SHAPE.changed(vocab_size=11)) == 11
    assert model_cost._few_words(SHAPE.changed(digit_ids=(3, 99))) == 100


@pytest.mark.slow
@pytest.mark.usefixtures("fake_tensors")
def test_a_large_model_has_no_real_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_cost, "_with_more_words", None)  # the count on real tensors
    assert measure(plugins.load("encoding", "rope").make, SHAPE.changed(layers=1)).decode(9) > 0


@pytest.mark.usefixtures("fake_tensors")
def test_numbers_that_an_encoding_reads_are_real(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such an encoding cannot be counted on fake tensors."""

    class Reads(Encoding):
        def embed(self, x: Tensor, positions: Positions) -> Tensor:
            return x if int(positions.query.max()) < 1000 else 2 * x

    small = SHAPE.changed(layers=1, train_length=8)
    found = measure(Reads, small, narrow=True)
    assert found.parameters == OF_LAYER + 2 * WORDS + 3 * SHAPE.width
    assert found.weights == 2 * found.parameters
    linear = OF_LAYER + WORDS
    assert found.training(8, 1) == 6 * linear + 7 * 2 * SHAPE.width * 9 / 2
    assert found.cache(8) == 8 * 2 * SHAPE.width * 2  # in bfloat16


@pytest.mark.slow
def test_generation_is_counted_in_evaluation() -> None:
    """This encoding has a product for each row of a table and, in evaluation, each token."""

    class Evaluated(Encoding):
        def __init__(self, model: ModelConfig, layer: int = 0) -> None:
            super().__init__(model, layer)
            self.table = nn.Parameter(torch.zeros(7, model.width))

        def embed(self, x: Tensor, positions: Positions) -> Tensor:
            x = x + (self.table @ self.table.mT).sum()
            return x if self.training else x @ self.table.mT @ self.table

    table, token = 2 * 7 * 7 * SHAPE.width, 2 * 2 * 7 * SHAPE.width
    found = cost_of(Evaluated)
    assert found.decode(500) == cost_of(Encoding).decode(500) + table + token
    more = found.training(50, 4) - cost_of(Encoding).training(50, 4)
    assert more == pytest.approx(3 * table / (4 * 50))


@pytest.mark.slow
def test_rows_that_are_too_long_are_not_counted() -> None:
    class Few(Encoding):
        max_position = 24

        def embed(self, x: Tensor, positions: Positions) -> Tensor:
            assert x.shape[1] <= 24
            return x

    assert cost_of(Few).training(24, 2) == cost_of(Encoding).training(24, 2)
    assert cost_of(Few).prefill(24) == cost_of(Encoding).prefill(24)


@pytest.mark.parametrize("rows", [1, 3])
def test_numbers_that_the_backward_pass_needs(rows: int) -> None:
    """Bytes of a batch beyond those of the weights, by another count."""
    shape = SHAPE.changed(layers=2, train_length=12)
    model = Decoder(shape, plugins.load("encoding", "nope").make).train()
    kept = sum(part.saved for part in count_step(model, rows, 12, narrow=False))
    known = {p.untyped_storage()._cdata for p in model.parameters()}
    stored: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage()._cdata not in known:
            stored[tensor.untyped_storage()._cdata] = tensor
        return tensor

    tokens = torch.zeros(rows, 12, dtype=torch.long)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = model.token_losses(tokens, tokens, backend="blocked").sum()
    expected = sum(tensor.untyped_storage().nbytes() for tensor in stored.values())
    assert kept == pytest.approx(expected, rel=0.05)
    loss.backward()


def test_products_are_counted_where_they_are() -> None:
    """The embeddings of this encoding have a product, the layers have those of a decoder."""

    class Mapped(Encoding):
        def __init__(self, model: ModelConfig, layer: int = 0) -> None:
            super().__init__(model, layer)
            self.map = nn.Linear(model.width, model.width, bias=False)

        def embed(self, x: Tensor, positions: Positions) -> Tensor:
            mapped: Tensor = self.map(x)
            return mapped

    length = 8
    shape = SHAPE.changed(layers=2, train_length=length)
    *layers, rest = count_step(Decoder(shape, Mapped).train(), 1, length, narrow=False)
    pair = 2 * SHAPE.width * length
    outside = SHAPE.width**2 + WORDS
    for layer in layers:
        assert layer.forward == length * 2 * (OF_LAYER + pair)
        assert layer.step == length * (6 * OF_LAYER + 7 * pair)
    assert (rest.forward, rest.step) == (2 * length * outside, 6 * length * outside)


@pytest.mark.slow
@pytest.mark.usefixtures("fake_tensors")
def test_products_and_parameters_are_those_of_the_formula() -> None:
    found = measure(plugins.load("encoding", "nope").make, SHAPE)
    assert (found.weights, found.cacheable, found.max_position) == (
        4 * found.parameters,
        True,
        None,
    )
    norms = (2 * SHAPE.layers + 1) * SHAPE.width
    assert found.parameters == SHAPE.layers * OF_LAYER + 2 * WORDS + norms
    linear = SHAPE.layers * OF_LAYER + WORDS
    pair = 2 * SHAPE.layers * SHAPE.width  # one product with a key, in all layers
    # Six products with a key and its value, and the recomputed logits.
    assert found.training(96, 1) == 6 * linear + 7 * pair * 97 / 2
    assert found.prefill(96) == 96 * (2 * SHAPE.layers * OF_LAYER + 2 * pair * 97 / 2) + 2 * WORDS
    assert found.decode(96) == 2 * linear + 2 * pair * 96
    assert found.cache(96) == 96 * SHAPE.layers * 2 * SHAPE.width * 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "local", "keys"),
    [
        ("hybrid:window=8,every=2", 3, 8),  # layers 1, 3 and, of five, no last one are global
        ("hybrid:chunk=7,every=5", 4, 3),  # the last of 80 tokens is the third of its chunk
        ("hybrid:window=8,first=2,every=5", 4, 10),
    ],
)
def test_a_window_is_counted_at_any_length(spec: str, local: int, keys: int) -> None:
    pair = 4 * SHAPE.width  # operations of one layer
    found = cost(spec)
    for length in (80, 7 * 12_000 + 3):
        saved = cost().decode(length) - found.decode(length)
        assert saved == pytest.approx(local * pair * (length - keys))
    per_token = 2 * SHAPE.width * 4
    kept = {"hybrid:chunk=7,every=5": 7}.get(spec, keys)
    assert found.cache(80) == per_token * ((5 - local) * 80 + local * kept)


def test_layers_with_windows_of_your_own_are_counted_one_by_one() -> None:
    class Wider(Encoding):
        shared = False

        def __init__(self, model: ModelConfig, layer: int = 0) -> None:
            super().__init__(model, layer)
            self.visible = Visibility(window=20 + layer // 2)

    assert model_cost.find_kinds(Wider, SHAPE) == [[0, 1], [2, 3], [4]]


COUNTED = (
    "gemma:window=8,every=3",
    "tape",
    "hybrid:local=t5,global=alibi,every=2,chunk=7",
    "irope:chunk=8",
    "sinks",
)


@pytest.mark.slow
@pytest.mark.parametrize("spec", COUNTED)
def test_a_counted_model_costs_the_same(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The count covers all layers and leaves out masked keys."""
    length, rows = 24, 2
    monkeypatch.setattr(blocked, "MIN_QUERIES", 1)
    monkeypatch.setitem(blocked.MAX_QUERIES, "cpu", 1)
    shape = replace(SHAPE, layers=4)
    make = plugins.load("encoding", spec).make
    found = measure(make, shape)
    model = Decoder(shape, make).train()
    tokens = torch.zeros(rows, length, dtype=torch.long)

    def step() -> None:
        model.token_losses(tokens, tokens, backend="blocked").sum().backward()

    assert found.parameters == sum(p.numel() for p in model.parameters())
    expected = count_products(step) / (rows * length)
    assert found.training(length, rows) == pytest.approx(expected, rel=0.01)
    numbers = Cache(1, length)
    with torch.no_grad():
        model.eval()(tokens[:1, :-1], numbers)
        model(tokens[:1, -1:], numbers)
    assert found.cache(length) // length == numbers.bytes_per_token


@pytest.mark.slow
@pytest.mark.parametrize("name", [*KINDS, "path", "gemma", "streaming-llm"])
@pytest.mark.usefixtures("fake_tensors")
def test_every_kind_of_encoding_can_be_counted(name: str) -> None:
    shape = replace(SHAPE, layers=2, train_length=32)
    found = measure(plugins.load("encoding", name).make, shape)
    assert found.training(32, 2) > 0 and found.decode(32) > 0 and found.saved > 0
    assert (found.cache(32) > 0) is found.cacheable


@pytest.mark.slow
def test_layers_of_your_own_kinds() -> None:
    class Every(Encoding):
        shared = False

        def __init__(self, model: ModelConfig, layer: int = 0) -> None:
            super().__init__(model, layer)
            self.heavy = nn.Linear(model.width, model.width) if layer % 2 else None

        def token_features(self, x: Tensor, positions: Positions) -> Tensor | None:
            if self.heavy is None:
                return None
            made: Tensor = self.heavy(x).unflatten(-1, (self.model.heads, -1)).transpose(1, 2)
            return made

        def temperature(self, positions: Positions) -> Tensor | None:
            found = positions.query_features
            return None if found is None else found.mean(-1)

    found = measure(Every, SHAPE)
    more = found.prefill(64) - cost().prefill(64)
    assert more == 2 * 64 * 2 * SHAPE.width**2
    assert found.cache(10) - cost().cache(10) == 2 * 10 * 4 * SHAPE.width


@pytest.mark.slow
def test_recomputing_keeps_less_and_does_more() -> None:
    kept, again = cost("tape"), cost("tape", recompute=True)
    assert again.saved < 0.4 * kept.saved
    assert 1.15 * kept.training(96, 1) < again.training(96, 1) < 1.4 * kept.training(96, 1)
    assert cost("tape", narrow=True).saved < kept.saved
    assert 2 * cost("tape", narrow=True).weights == kept.weights


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["tape", "fire"])
@pytest.mark.usefixtures("fake_tensors")
def test_rows_with_numbers_tell_the_same(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = measure(plugins.load("encoding", spec).make, SHAPE)  # `cost` is kept of real tensors

    class Refuses:
        def __enter__(self) -> None:
            raise DataDependentOutputException(torch.ops.aten.item.default)

        def __exit__(self, *_: Any) -> None: ...

    monkeypatch.setattr(model_cost, "FakeTensorMode", Refuses)
    found = measure(plugins.load("encoding", spec).make, SHAPE)
    assert found.parameters == expected.parameters
    assert found.training(96, 2) == pytest.approx(expected.training(96, 2), rel=0.01)
    assert found.saved == pytest.approx(expected.saved, rel=0.1)
    assert found.cache(96) == expected.cache(96)


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["path"])
def test_long_rows_are_computed_from_short_ones(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to what masked keys cost within a block."""
    shape = replace(SHAPE, train_length=512, layers=1)
    make = plugins.load("encoding", spec).make
    computed = measure(make, shape)
    monkeypatch.setattr(model_cost, "LONGEST", 512)
    counted = measure(make, shape)
    assert computed.training(512, 4) == pytest.approx(counted.training(512, 4), rel=0.05)
    assert computed.saved == pytest.approx(counted.saved, rel=0.02)


@pytest.mark.slow
def test_the_length_of_training_does_not_change_generation() -> None:
    """`path` has other products in rows of less than two blocks of 64 tokens."""
    make = plugins.load("encoding", "path").make
    shapes = [replace(SHAPE, train_length=length, layers=1) for length in (32, 512)]
    short, long = (measure(make, shape) for shape in shapes)
    for tokens in (128, 4096):
        assert short.decode(tokens) == pytest.approx(long.decode(tokens))
        assert short.prefill(tokens) == pytest.approx(long.prefill(tokens))


@pytest.mark.slow
@pytest.mark.parametrize("name", CODED)
def test_training_is_not_cheaper_than_without_positions(name: str) -> None:
    shape = replace(SHAPE, layers=2, train_length=8)
    found, plain = (
        sum(
            count.step
            for count in count_step(
                Decoder(shape, plugins.load("encoding", each).make).train(), 1, 8, narrow=False
            )
        )
        for each in (name, "nope")
    )
    assert found >= plain


@cache
def generation_of(name: str) -> ModelCost:
    """Return the costs of a small model, without those of training."""

    def skip(model: Decoder, *_: Any) -> list[Count]:
        return [Count() for _ in range(len(model.layers) + 1)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model_cost, "count_step", skip)
        shape = replace(SHAPE, layers=4, train_length=8)
        return measure(plugins.load("encoding", name).make, shape)


@pytest.mark.slow
@pytest.mark.parametrize("name", CODED)
def test_no_encoding_is_cheaper_than_none(name: str) -> None:
    """Encodings that show each query only some keys are compared at a single key."""
    found, plain = generation_of(name), generation_of("nope")
    sees_all = all(layer.visible == EVERYTHING for layer in found.layers)
    for tokens in (1, 64, 100_000) if sees_all else (1,):
        assert found.decode(tokens) >= plain.decode(tokens) * (1 - 1e-9)
        assert found.prefill(tokens) >= plain.prefill(tokens) * (1 - 1e-9)


@pytest.mark.parametrize("preset", ["small", "mid", "paper"])
def test_no_text_is_loaded(preset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: Any, **__: Any) -> Any:
        raise AssertionError("loads text")

    monkeypatch.setattr(download, "_download", forbidden)
    monkeypatch.setattr(download, "hub_path", forbidden)
    start, fine_tuning = find_phases(RunOptions(preset=preset), "scrolls")
    assert start.task.startswith("perplexity") and start.times == 1
    assert fine_tuning.times == 7 and fine_tuning.model == start.model
    two = RunOptions(preset=preset, subsets=("qasper", "quality"))
    assert find_phases(two, "scrolls")[1].tokens == fine_tuning.tokens * 2 / 7


def test_a_task_that_trains_each_subset_has_a_training_for_each(tmp_path: Path) -> None:
    for subsets, times in ((None, 2), (("reverse",), 1)):
        options = RunOptions(cache=tmp_path, subsets=subsets)
        (phase,) = find_phases(options, "copying")
        assert phase.times == times


def test_a_run_costs_what_its_phases_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    def of_model(self: CostCounter, encoding: Plugin, phase: TrainingShape) -> Any:
        size = phase.model.layers
        return SimpleNamespace(
            parameters=100 * size, saved=size, training=lambda length, rows: length + 1000 * rows
        )

    monkeypatch.setattr(CostCounter, "of_model", of_model)
    base = TrainConfig(steps=10, batch_size=8, length=16)
    phases = [
        TrainingShape("large", replace(base, micro_batch=2), SHAPE.changed(layers=5)),
        TrainingShape("none", replace(base, steps=0), SHAPE.changed(layers=9)),
        TrainingShape("small", replace(base, micro_batch=99), SHAPE.changed(layers=1), times=3),
    ]
    found = CostCounter("fp32").of_run(plugins.load("encoding", "nope"), phases)
    assert found.parameters == 100  # of the last model that is trained
    assert found.tokens == (1 + 3) * 10 * 8 * 16
    assert found.operations == 1280 * (16 + 2000) + 3 * 1280 * (16 + 8000)
    assert found.memory == BYTES_PER_PARAMETER * 500 + 5 * 2 * 16


def test_options_change_the_phase_that_they_are_for() -> None:
    options = RunOptions(
        preset="small",
        tokenizer="bpe:4096",
        train={"steps": 7},
        pretrain={"steps": 11, "length": 96},
        model={"layers": 3},
    )
    start, fine_tuning = find_phases(options, "scrolls")
    assert (start.train.steps, fine_tuning.train.steps) == (11, 7)
    for phase in (start, fine_tuning):
        shape = phase.model
        assert (shape.layers, shape.vocab_size, shape.train_length) == (3, 4096, 96)
    with pytest.raises(InputError, match=r"^pretrain\.lr must not be negative"):
        find_phases(replace(options, pretrain={"lr": -1.0}), "scrolls")


@pytest.mark.slow
def test_overrides_count() -> None:
    def operations(**options: Any) -> float:
        phases = find_phases(RunOptions(**options), "mqar")
        return CostCounter("fp32").of_run(plugins.load("encoding", "nope"), phases).operations

    assert operations(train={"steps": 20}) == pytest.approx(2 * operations(train={"steps": 10}))
    assert operations(model={"layers": 4}) > 1.5 * operations(model={"layers": 2})


@pytest.mark.slow
@pytest.mark.usefixtures("fake_tensors")
def test_memory_grows_with_the_rows_at_once() -> None:
    def memory(rows: int) -> float:
        options = RunOptions(preset="mid", train={"micro_batch": rows})
        phases = find_phases(options, "perplexity")
        return CostCounter("bf16").of_run(plugins.load("encoding", "nope"), phases).memory

    assert memory(8) < memory(16) < 2 * memory(8)


@pytest.mark.slow
@pytest.mark.usefixtures("fake_tensors")
def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cost", "--encoding", "rope", "nope", "--task", "mqar", "properties"]) == 0
    text = capsys.readouterr().out
    assert "trains nothing" in text
    rows = [line for line in text.splitlines() if line.startswith(("rope", "nope"))]
    assert len(rows) == 4 and all("FLOP" in row and "B " in row for row in rows)


@pytest.mark.slow
def test_the_command_at_lengths(capsys: pytest.CaptureFixture[str]) -> None:
    words = "cost --encoding rope hybrid:window=8 learned --task mqar --lengths 64 100000"
    assert main(words.split()) == 0
    printed = capsys.readouterr()
    rows = [line for line in printed.out.splitlines() if "100,000" in line]
    assert len(rows) == 2 and rows[0] != rows[1].replace("hybrid:window=8", "rope")
    assert "learned has" in printed.err


@pytest.mark.slow
@pytest.mark.usefixtures("fake_tensors")
def test_every_preset_has_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    words = "cost --encoding nope --task mqar --preset all"
    assert main(words.split()) == 0
    text = capsys.readouterr().out
    rows = [line.split()[:2] for line in text.splitlines() if line.startswith("nope")]
    assert rows == 2 * [["nope", preset] for preset in ("quick", "small", "mid", "paper")]
    assert "in fp32 for quick, bf16 for small, mid, paper" in " ".join(text.split())


@pytest.mark.slow
@pytest.mark.usefixtures("fake_tensors")
def test_a_file_has_the_numbers_of_the_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "cost --encoding nope --task mqar --params 10M --lengths 64 100000 --output"
    files = [tmp_path / "costs.json", tmp_path / "costs.csv"]
    for file in files:
        assert main([*words.split(), str(file)]) == 0
        assert "8 layers of width 128, 2 heads of 64" in capsys.readouterr().out
    records = json.loads(files[0].read_text())
    assert [record["generation_tokens"] for record in records] == [64, 100_000]
    short, long = records
    assert short["parameters"] == 9_898_112 and short["vocab_size"] == VOCABULARY
    assert short["precision"] == "bf16"  # in which a number has two bytes
    assert long["cache_bytes"] == 100_000 * 8 * 2 * 128 * 2
    assert long["decoding_bytes_per_token"] == long["cache_bytes"] + 2 * long["parameters"]
    assert short["training_seconds"] == pytest.approx(
        short["training_flop"] / short["training_flop_per_second"]
    )
    with files[1].open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert rows == [{name: str(value) for name, value in record.items()} for record in records]


TRAINING = RunCost(parameters=1_230_000, tokens=45, operations=8e12, memory=9.4)
GENERATION = (
    GenerationCost(tokens=64, cache=1, per_token=2, prefill=3.0, decoding=4.0, reads=5),
    GenerationCost(tokens=1280, cache=2000, per_token=2, prefill=6.0, decoding=5.0, reads=6),
)


def test_tables_have_the_costs_of_all_rows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def rows_of(self: GridCost, spec: str) -> list[CostRow]:
        if spec == "copying":
            raise InputError("no costs are known")
        found = []
        for preset, speed, precision in (("quick", 2.0, "fp32"), ("mid", 0.5, "bf16")):
            self.devices[speed] = f"of {preset}"
            row = CostRow(preset, spec, "rope", precision, speed, SHAPE, TRAINING, GENERATION)
            found.append(row)
        return found if self.several else found[:1]

    monkeypatch.setattr(GridCost, "rows_of", rows_of)
    assert main(["cost", "--encoding", "rope", "--task", "mqar"]) == 0
    text = capsys.readouterr().out
    cells = [re.split("  +", line) for line in text.splitlines() if line.startswith("rope")]
    assert cells == [
        ["rope", "1.23 M", "45", "8 TFLOP", "9.4 B", "4 s"],
        ["rope", "64", "1 B", "2 B", "3 FLOP", "4 FLOP", "5 B"],
        ["rope", "1,280", "2 kB", "2 B", "6 FLOP", "5 FLOP", "6 B"],
    ]
    assert "2 x 10^12 a second (of quick)" in " ".join(text.split())
    both = ["cost", "--encoding", "rope", "--preset", "all", "--task", "copying", "mqar"]
    assert main(both) == 2  # a task that is named has no costs
    printed = capsys.readouterr()
    assert "copying: no costs are known" in printed.err
    cells = [line.split()[:2] for line in printed.out.splitlines() if line.startswith("rope")]
    assert cells == [["rope", name] for name in ("quick", "mid", "quick", "quick", "mid", "mid")]
    assert "in fp32 for quick, bf16 for mid" in " ".join(printed.out.split())


def test_costs_are_counted_for_each_preset_and_encoding(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model of a given size has its vocabulary, and is not for the processor of `quick`."""
    train = {"quick": TrainConfig(steps=10, length=32), "mid": TrainConfig(steps=20, length=64)}

    def phases(options: RunOptions, spec: str) -> list[TrainingShape]:
        asked.append((options.preset, options.precision, spec))
        before = TrainingShape("before", TrainConfig(steps=0), SHAPE)
        return [before, TrainingShape(spec, train.get(options.preset, before.train), SHAPE)]

    def of_run(self: CostCounter, encoding: Plugin, phases: list[TrainingShape]) -> RunCost:
        if encoding.label == "alibi":
            raise InputError("it does not fit")
        return RunCost(phases[-1].model.vocab_size, phases[-1].train.steps, 1.0, 2.0)

    def of_model(self: CostCounter, encoding: Plugin, phase: TrainingShape) -> Any:
        return SimpleNamespace(
            max_position=100 if encoding.label == "rope" else None,
            weights=1000,
            cache=lambda tokens: tokens**2,
            prefill=lambda tokens: 3.0 * tokens,
            decode=lambda tokens: 4.0 * tokens,
        )

    monkeypatch.setattr("pe_bench.grid.grid_cost.find_phases", phases)
    monkeypatch.setattr(CostCounter, "of_run", of_run)
    monkeypatch.setattr(CostCounter, "of_model", of_model)
    asked: list[Any] = []
    encodings = [plugins.load("encoding", name) for name in ("nope", "alibi", "rope")]

    def rows(counter: GridCost) -> list[Any]:
        return [
            (row.preset, row.task, row.encoding, row.precision, row.speed, row.model.vocab_size,
             row.training.parameters, [one.tokens for one in row.generation])
            for row in counter.rows_of("mqar")
        ]  # fmt: skip

    every = GridCost(encodings, RunOptions(preset="all"), "auto", lengths=(16, 200))
    assert rows(every) == [
        ("quick", "mqar", "nope", "fp32", 0.04, 300, 300, [16, 200]),
        ("quick", "mqar", "rope", "fp32", 0.04, 300, 300, [16]),
        ("mid", "mqar", "nope", "bf16", 150.0, 300, 300, [16, 200]),
        ("mid", "mqar", "rope", "bf16", 150.0, 300, 300, [16]),
    ]
    printed = capsys.readouterr()
    assert printed.out == "mqar · small: trains nothing\n\nmqar · paper: trains nothing\n\n"
    assert "alibi · quick: it does not fit" in printed.err
    assert "rope · mid has 100 positions, not 200" in printed.err
    generation = every.rows_of("mqar")[0].generation
    assert generation[0] == GenerationCost(16, 256, 33, 48.0, 64.0, 1256)
    assert (
        every.devices[0.04] == "assumed for two cores, not measured"
        and "H100 in bf16" in every.devices[150]
    )
    presets = zip(("quick", "small", "mid", "paper"), ("fp32", *["bf16"] * 3), strict=True)
    assert asked[:4] == [(preset, precision, "mqar") for preset, precision in presets]
    sized = GridCost(encodings[:1], RunOptions(), "auto", shape=SHAPE.changed(vocab_size=999))
    assert rows(sized) == [("quick", "mqar", "nope", "bf16", 150.0, 999, 999, [32])]
    given = GridCost(encodings[:1], RunOptions(), "bf16", speed=7.0)
    assert rows(given) == [("quick", "mqar", "nope", "bf16", 7.0, 300, 300, [32])]
    assert given.devices == {7.0: "given"} and not given.several
    options = RunOptions(tokenizer="bytes")
    small = GridCost(encodings, options, "fp32", shape=SHAPE.changed(vocab_size=299))
    with pytest.raises(InputError, match="it has 300 tokens, but bytes has 299: leave out"):
        small.rows_of("mqar")
    small = GridCost(encodings[:1], RunOptions(), "fp32", shape=small.shape)
    assert [row.model.vocab_size for row in small.rows_of("mqar")] == [299]


@pytest.mark.slow
def test_costs_are_written_where_they_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = CostRow("quick", "mqar", "rope", "fp32", 2.0, SHAPE, TRAINING, GENERATION)
    given: list[GridCost] = []

    def rows_of(self: GridCost, spec: str) -> list[CostRow]:
        given.append(self)
        self.devices[2.0] = "given"
        return [row] if spec == "mqar" else []

    monkeypatch.setattr(GridCost, "rows_of", rows_of)
    command = ["cost", "--encoding", "rope", "tape", "--task", "properties", "mqar", "--output"]
    file = tmp_path / "costs.csv"
    size = ["--params", "10M", "--model.kv_heads", "1", "--tokenizer", "bytes"]
    more = ["--precision", "fp32", "--speed", "2", "--lengths", "7", "8"]
    assert main([*command, str(file), *size, *more]) == 0
    out = capsys.readouterr().out
    assert out.endswith(f"\n\n{file}: 2 records\n") and "--speed changes it" not in out
    shape = choose_shape(10_000_000, 260, {"kv_heads": 1})
    sizes = {name: getattr(shape, name) for name in SIZES}
    described = (
        f"Model: {shape.layers} layers of width {shape.width:,}, {shape.heads} heads (1 for keys "
        f"and values) of 64, MLP of width {shape.mlp_width:,}, vocabulary of 260 tokens: "
        f"{count_parameters(shape):,} parameters without the encoding mqar"
    )
    assert " ".join(out.split()).startswith(described)
    (counter,) = {id(one): one for one in given}.values()
    assert [encoding.label for encoding in counter.encodings] == ["rope", "tape"]
    assert counter.options == RunOptions(tokenizer="bytes", model=sizes)
    asked = (counter.precision, counter.speed, counter.lengths, counter.shape)
    assert asked == ("fp32", 2.0, (7, 8), shape)
    command = ["cost", "--encoding", "rope", "--task", "properties", "--output"]
    assert main([*command, str(file)]) == 2
    assert f"{file} is not written: there are no costs" in capsys.readouterr().err


def test_files_have_a_record_for_each_length(tmp_path: Path) -> None:
    alone = CostRow("quick", "mqar", "learned", "fp32", 2.0, SHAPE, TRAINING, ())
    both = replace(alone, encoding="rope", generation=GENERATION)
    files = [tmp_path / "costs.json", tmp_path / "costs.csv"]
    assert [write_costs(file, [alone, both]) for file in files] == [3, 3]
    records = json.loads(files[0].read_text())
    assert [one.get("generation_tokens") for one in records] == [None, 64, 1280]
    assert [one["encoding"] for one in records] == ["learned", "rope", "rope"]
    first, *_, last = records
    assert first["training_seconds"] == 4.0 and first["training_memory_bytes"] == 9
    names = ("cache_bytes", "prefill_flop", "decoding_bytes_per_token")
    assert [last[name] for name in names] == [2000, 6, 6]
    with files[1].open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    for row, record in zip(rows, records, strict=True):
        assert {name: text for name, text in row.items() if text} == {
            name: str(value) for name, value in record.items()
        }


SIZED = [
    ("125M", {"kv_heads": 4, "qk_norm": "width"}),
    ("1B", {"width": 1536, "mlp_width": 8192}),
    *(
        pytest.param(size, given, marks=pytest.mark.slow)
        for size, given in [
            ("10M", {}),
            ("350M", {"layers": 24}),
            ("350M", {"heads": 12, "qk_norm": "rms"}),
            ("1B", {}),
            ("7B", {"kv_heads": 8}),
            ("70B", {}),
            ("1T", {}),
        ]
    ),
]


@pytest.mark.parametrize(("size", "given"), SIZED)
def test_a_shape_has_about_the_parameters_asked_for(size: str, given: dict[str, Any]) -> None:
    shape = choose_shape(read_size([size]), 32_000, given)
    number = count_parameters(shape)
    assert number == pytest.approx(read_size([size]), rel=0.1)
    assert {name: getattr(shape, name) for name in given} == given
    if "heads" not in given:
        assert shape.head_dim == (128 if number > 8e8 else 64)
    few = replace(shape, layers=min(2, shape.layers))
    model = make_empty(few, plugins.load("encoding", "nope").make)
    assert count_parameters(few) == sum(each.numel() for each in model.parameters())


@pytest.mark.parametrize(("parameters", "channels"), [(799_999_999, 64), (800_000_000, 128)])
def test_large_models_have_wide_heads(parameters: int, channels: int) -> None:
    assert choose_shape(parameters, 32_000, {}).head_dim == channels


def test_seven_billion_is_the_usual_shape() -> None:
    shape = choose_shape(read_size(["7B"]), 32_000, {})
    assert (shape.layers, shape.heads, shape.width, shape.mlp_width) == (32, 32, 4096, 11_008)


@pytest.mark.parametrize(
    ("text", "number"), [("350M", 350_000_000), ("1.5b", 1_500_000_000), ("7G", 7 * 10**9)]
)
def test_a_size_is_read(text: str, number: int) -> None:
    assert read_size([text]) == number


@pytest.mark.parametrize("text", ["1X", "B", "-1B", "1e9", ""])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be a number such as 350M"):
        read_size([text])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--encoding rope --task mqra", "did you mean 'mqar'"),
        ("--encoding rpoe --task mqar", "did you mean 'rope'"),
        ("--encoding rope --task mqar --preset midd", "there is no preset 'midd'"),
        ("--encoding rope --task mqar --speed 0", "--speed must be above 0"),
        ("--encoding rope --task mqar --lengths 64 1", "--lengths must be from 2 to"),
        ("--encoding rope --task mqar --params 2T", "--params must be from 1 to"),
        ("--encoding rope --task mqar --params 1M", "the nearest has 4,161,728"),
        (
            "--encoding rope --task mqar --params 1B --model.layers 4 --model.width 512",
            "contradicts --model.layers 4 --model.width 512",
        ),
        (
            "--encoding rope --task mqar --params 1B --model.width 1000",
            "a multiple of 128, the channels of a head",
        ),
        (
            "--encoding rope --task mqar --params 1B --model.kv_heads 7 --model.heads 16",
            "no width of a decoder fits",
        ),
        ("--encoding rope --task mqar --params 1B --model.width -1", "must be at least 1"),
        (
            "--encoding rope --task mqar --params 1B --tokenizer bpe:10",
            "leave out --tokenizer",
        ),
        ("--encoding rope --task mqar --output costs.txt", "--output writes .json or .csv"),
        ("--encoding rope --task mqra --preset all", "did you mean 'mqar'"),
        ("--encoding rope --task mqar --train.steps -1", "train.steps must not be negative"),
    ],
)
def test_bad_input(words: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cost", *words.split()]) == 2
    printed = capsys.readouterr()
    assert sentence in printed.err
    assert "For one seed" not in printed.out  # the explanation of a table


def test_an_encoding_that_fits_no_task_is_named_once(capsys: pytest.CaptureFixture[str]) -> None:
    spec = "position-coupling"
    assert main(["cost", "--encoding", spec, "--task", "copying", "mqar"]) == 2
    assert capsys.readouterr().err.count("position-coupling needs tokens") == 1
    assert main(["cost", "--encoding", spec, "rope", "--task", "mqar"]) == 0


def test_a_length_that_does_not_fit_has_no_row(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cost", "--encoding", "learned", "--task", "mqar", "--lengths", "100000"]) == 0
    printed = capsys.readouterr()
    assert "learned has 2048 positions" in printed.err
    assert "prefill" not in printed.out


@pytest.mark.slow
def test_a_plan_says_what_its_training_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = f"run --encoding rope --task mqar --results {tmp_path} --device cpu --dry-run"
    assert main([*words.split(), "--preset", "small"]) == 0
    assert "training: about" in capsys.readouterr().out
    assert main(words.split()) == 0  # preset quick: some minutes
    assert "training: about" not in capsys.readouterr().out


def test_the_cost_of_generating_a_row_is_that_of_its_last_token() -> None:
    model: Any = SimpleNamespace(
        cache=lambda tokens: 100 * min(tokens, 10),
        prefill=lambda tokens: 7 * tokens,
        decode=lambda tokens: 3 * tokens,
        weights=5000,
    )
    assert GenerationCost.of(model, 9) == GenerationCost(
        tokens=9, cache=900, per_token=100, prefill=63, decoding=27, reads=5900
    )
    assert GenerationCost.of(model, 20).per_token == 0  # a window
