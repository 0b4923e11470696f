"""What training costs, before anything is trained."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException

from pe_bench.checks import training_cost
from pe_bench.checks.training_cost import measure_training
from pe_bench.cli import main
from pe_bench.config import ModelConfig
from pe_bench.grid.cost import Costs, find_phases
from pe_bench.registry import plugins
from pe_bench.runs.factory import RunFactory
from pe_bench.runs.options import RunOptions
from pe_bench.text import download

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


@cache
def cost(spec: str = "nope", **options: Any) -> training_cost.TrainingCost:
    return measure_training(plugins.load("encoding", spec).make, SHAPE, 96, **options)


@pytest.mark.slow
def test_products_and_parameters_are_those_of_the_formula() -> None:
    found = cost()
    norms = (2 * SHAPE.layers + 1) * SHAPE.width
    words = SHAPE.vocab_size * SHAPE.width
    assert found.parameters == SHAPE.layers * OF_LAYER + 2 * words + norms
    linear = 6 * (SHAPE.layers * OF_LAYER + words)
    attention = SHAPE.layers * 96 * SHAPE.width  # of all keys: one product of two numbers each
    # Six products, and the logits again; blocks of the causal half: between half and all of it.
    assert linear + 7 * attention < found.products <= linear + 14 * attention


@pytest.mark.slow
def test_what_is_longer_or_deeper_costs_more() -> None:
    deeper = measure_training(plugins.load("encoding", "nope").make, replace(SHAPE, layers=9), 96)
    longer = measure_training(plugins.load("encoding", "nope").make, SHAPE, 384)
    assert deeper.products - cost().products == pytest.approx(4 * (cost().products - words()) / 5)
    assert longer.products > cost().products
    assert longer.kept == pytest.approx(cost().kept, rel=0.02)  # a token's, however long the row


def words() -> float:
    return 6.0 * SHAPE.vocab_size * SHAPE.width


@pytest.mark.slow
def test_recomputing_keeps_less_and_does_more() -> None:
    kept, again = cost("tape"), cost("tape", recompute=True)
    assert again.kept < 0.4 * kept.kept
    assert 1.15 * kept.products < again.products < 1.4 * kept.products
    assert cost("tape", narrow=True).kept < kept.kept


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["rope", "tape", "fire"])
def test_short_rows_with_numbers_tell_the_same(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = cost(spec)

    class Refuses:
        def __enter__(self) -> None:
            raise DataDependentOutputException(torch.ops.aten.item.default)

        def __exit__(self, *_: Any) -> None: ...

    monkeypatch.setattr(training_cost, "FakeTensorMode", Refuses)
    found = measure_training(plugins.load("encoding", spec).make, SHAPE, 96)
    assert found.parameters == expected.parameters
    assert found.products == pytest.approx(expected.products, rel=0.05)
    assert found.kept == pytest.approx(expected.kept, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["rope", "tape", "fire"])
def test_long_rows_are_computed_from_short_ones(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def of_length(tokens: int) -> training_cost.TrainingCost:
        return measure_training(plugins.load("encoding", spec).make, SHAPE, tokens)

    computed = of_length(768)
    monkeypatch.setattr(training_cost, "LONGEST", 768)
    counted = of_length(768)
    assert computed.parameters == counted.parameters
    assert computed.products == pytest.approx(counted.products, rel=0.05)
    assert computed.kept == pytest.approx(counted.kept, rel=0.02)


@pytest.mark.parametrize("preset", ["small", "mid", "paper"])
def test_no_text_is_loaded(preset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: Any, **__: Any) -> Any:
        raise AssertionError("loads text")

    monkeypatch.setattr(download, "_download", forbidden)
    monkeypatch.setattr(download, "hub_path", forbidden)
    start, fine_tuning = find_phases(RunFactory(RunOptions(preset=preset)), "scrolls")
    assert start.task.startswith("perplexity") and start.times == 1
    assert fine_tuning.times == 7 and fine_tuning.model == start.model
    two = RunOptions(preset=preset, subsets=("qasper", "quality"))
    assert find_phases(RunFactory(two), "scrolls")[1].tokens == fine_tuning.tokens * 2 / 7


@pytest.mark.slow
def test_overrides_count() -> None:
    def operations(**options: Any) -> float:
        phases = find_phases(RunFactory(RunOptions(**options)), "mqar")
        return Costs("fp32").of_run(plugins.load("encoding", "nope"), phases).operations

    assert operations(train={"steps": 20}) == pytest.approx(2 * operations(train={"steps": 10}))
    assert operations(model={"layers": 4}) > 1.5 * operations(model={"layers": 2})


@pytest.mark.slow
def test_memory_grows_with_the_rows_at_once() -> None:
    def memory(rows: int) -> float:
        options = RunOptions(preset="mid", train={"micro_batch": rows})
        phases = find_phases(RunFactory(options), "perplexity")
        return Costs("bf16").of_run(plugins.load("encoding", "nope"), phases).memory

    assert memory(8) < memory(16) < 2 * memory(8)


@pytest.mark.slow
def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cost", "--encoding", "rope", "nope", "--task", "mqar", "properties"]) == 0
    text = capsys.readouterr().out
    assert "trains nothing" in text
    rows = [line for line in text.splitlines() if line.startswith(("rope", "nope"))]
    assert len(rows) == 2 and all("FLOP" in row and "MB" in row for row in rows)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--encoding rope --task mqra", "did you mean 'mqar'"),
        ("--encoding rpoe --task mqar", "did you mean 'rope'"),
        ("--encoding rope --task mqar --preset midd", "there is no preset 'midd'"),
        ("--encoding rope --task mqar --speed 0", "--speed must be above 0"),
        ("--encoding rope --task mqar --train.steps -1", "train.steps must not be negative"),
    ],
)
def test_bad_input(words: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cost", *words.split()]) == 2
    printed = capsys.readouterr()
    assert sentence in printed.err
    assert "For one seed" not in printed.out  # which explains a table


@pytest.mark.slow
def test_a_plan_says_what_its_training_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = f"run --encoding rope --task mqar --results {tmp_path} --device cpu --dry-run"
    assert main([*words.split(), "--preset", "small"]) == 0
    assert "training: about" in capsys.readouterr().out
    assert main(words.split()) == 0  # preset quick: minutes, whatever they are
    assert "training: about" not in capsys.readouterr().out
