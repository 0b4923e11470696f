"""The task without training: checks, costs, and logits of a query and an equal key."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import Memory, make_task
from matplotlib import image
from torch import Tensor

from pe_bench.checks.costs import Costs
from pe_bench.checks.encodings import CHECKS
from pe_bench.checks.findings import Finding
from pe_bench.cli import main
from pe_bench.decoder.model import Decoder
from pe_bench.encoding import Encoding
from pe_bench.encodings.alibi import ALiBi, slopes
from pe_bench.encodings.nope import NoPE
from pe_bench.positions import Positions
from pe_bench.results.journal import Journal
from pe_bench.results.measurement import Measurement
from pe_bench.results.row_files import read_measurements
from pe_bench.tasks import properties
from pe_bench.tasks.properties import SEPARATOR, Properties
from pe_bench.visibility import Visibility


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Properties:
    return make_task(Properties, tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def without_positions(task: Properties) -> dict[tuple[int | None, int], float]:
    return logits(task, NoPE)


def decoder(task: Properties, encoding: type[Encoding], **changed: int) -> Decoder:
    torch.manual_seed(0)
    model = task.presets["quick"].model
    assert model is not None
    ids = task.vocabulary
    shape = replace(model, vocab_size=ids.vocab_size, separator_ids=ids.separator_ids)
    shape = shape.changed(**changed)
    return Decoder(shape, encoding).eval()


def logits(task: Properties, encoding: type[Encoding]) -> dict[tuple[int | None, int], float]:
    with torch.inference_mode():
        rows = task.evaluate(decoder(task, encoding), "logit", 0, Journal(Path("unused"))).rows
    assert all(row.n > 0 for row in rows)
    return {(row.length, int(row.second_axis)): row.value for row in rows}


@pytest.mark.slow
def test_a_decoder_without_positions_sees_no_distance(
    without_positions: dict[tuple[int | None, int], float],
) -> None:
    found = without_positions
    assert {length for length, _ in found} == {64, 256, 512}
    assert {distance for length, distance in found if length == 64} >= {0, 1, 15, 16, 17}
    assert max(distance for _, distance in found) > 490
    level = found[64, 0]  # equal content, so it is positive
    assert level > 0.1 and all(value == pytest.approx(level, abs=1e-5) for value in found.values())


@pytest.mark.slow
def test_linear_biases_are_lines(
    task: Properties, without_positions: dict[tuple[int | None, int], float]
) -> None:
    found, flat = logits(task, ALiBi), without_positions[64, 0]
    slope = sum(slopes(8)) / 8
    for (_, distance), value in found.items():
        assert value == pytest.approx(flat - slope * distance, rel=1e-5, abs=1e-4)


def test_every_distance_of_every_length_is_measured(tmp_path: Path) -> None:
    """Of eight rows of one word, pairs with a separator do not count."""
    short = make_task(Properties, tmp_path, train={"length": 6})
    with torch.inference_mode():
        rows = short.evaluate(decoder(short, ALiBi, layers=1, width=64), "logit", 0, Memory()).rows
    near = {0: 6, 1: 5, 2: 4, 3: 3, 4: 2, 5: 1}  # pairs in a row
    assert {int(r.second_axis): r.n for r in rows if r.length == 6} == {
        distance: 8 * 8 * pairs for distance, pairs in near.items()
    }
    far = [int(row.second_axis) for row in rows if row.length == 48]
    expected = list(range(16))
    while expected[-1] < 47:
        expected.append(min(47, max(expected[-1] + 1, int(1.1 * expected[-1]))))
    assert far == [each for each in expected if each != 47]  # whose only pair has a separator
    values = {(row.length, int(row.second_axis)): row.value for row in rows}
    slope = sum(slopes(8)) / 8
    for (length, distance), value in values.items():
        flat = values[length, 0]
        assert value == pytest.approx(flat - slope * distance, rel=1e-5, abs=1e-4)


def test_costs_and_checks_have_rows_of_their_names(
    task: Properties, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure_costs(make: Any) -> Costs:
        assert make is model.make_encoding and torch.is_grad_enabled()
        return costs

    def examine(subject: Any) -> dict[str, Finding]:
        assert subject.make_encoding is model.make_encoding and torch.is_grad_enabled()
        names = {"interface": "FAIL", "gradients": "FAIL", "causal": "ok", "generation": "-"}
        return {name: Finding(status) for name, status in names.items()}

    model = decoder(task, NoPE)
    monkeypatch.setattr(properties, "measure_costs", measure_costs)
    monkeypatch.setattr(properties, "examine", examine)
    for cache in (7, None):
        costs = Costs(parameters=3, flops=50.0, cache=cache, bare_flops=200.0, bare_cache=28)
        with torch.inference_mode():
            found = task.evaluate(model, "costs", 0, Memory()).rows
        expected = {
            "parameters": 3, "extra_flops_per_token": 50.0, "flops_overhead_percent": 25.0,
        }  # fmt: skip
        if cache:
            expected |= {"extra_cache_per_token": 7, "cache_overhead_percent": 25.0}
        assert found == [Measurement("costs", name, value, 1) for name, value in expected.items()]
    with torch.inference_mode():
        found = task.evaluate(model, "checks", 0, Memory()).rows
    assert found == [
        Measurement("checks", "gradients", 0.0, 1),
        Measurement("checks", "causal", 1.0, 1),
        Measurement("checks", "failed", 1, 2),
    ]


@pytest.mark.slow
def test_pairs_that_cannot_be_seen_do_not_count(
    task: Properties, without_positions: dict[tuple[int | None, int], float]
) -> None:
    class Chunks(NoPE):
        visible = Visibility(chunk=16)

    found = logits(task, Chunks)
    assert {distance for _, distance in found} == {*range(15)}  # the 16th is a separator
    for place, value in found.items():
        assert value == pytest.approx(without_positions[place], abs=1e-5)


@pytest.mark.slow
def test_pairs_with_a_separator_do_not_count(task: Properties) -> None:
    class Loud(Encoding):
        """An encoding whose logits would be large if a separator were among the pairs."""

        def token_features(self, x: Tensor, positions: Positions) -> Tensor:
            return x[:, None, :, :1].expand(-1, self.model.heads, -1, -1)

        def positions(self, tokens: Tensor) -> Tensor:
            return (tokens == SEPARATOR).long() * 1_000_000

        def bias(self, positions: Positions) -> Tensor:
            both = positions.query[:, None, :, None] + positions.key[:, None, None, :]
            return both.float().expand(-1, self.model.heads, -1, -1)

    assert max(logits(task, Loud).values()) < 10


@pytest.mark.slow
@pytest.mark.usefixtures("real_figures")
def test_checks_and_costs_are_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "idle.py").write_text(
        "import torch\nfrom pe_bench.encoding import Encoding\n\n"
        "class Idle(Encoding):\n    def __init__(self, model, layer=0):\n"
        "        super().__init__(model, layer)\n"
        "        self.unused = torch.nn.Parameter(torch.ones(3))\n"
    )
    assert main(["run", "--encoding", "rope", "./idle.py", "--task", "properties"]) == 0
    rows: dict[str, list[Measurement]] = {}
    for path in tmp_path.glob("results/runs/properties/*/*/rows.csv"):
        rows[path.parents[1].name] = read_measurements(path)
    checks = {r.metric: r.value for r in rows["rope"] if r.subset == "checks"}
    assert checks.pop("failed") == 0 and set(checks) < set(CHECKS)
    assert set(checks.values()) == {1} and len(checks) >= 10
    idle = {(r.subset, r.metric): r.value for r in rows["idle.py"]}
    assert (idle["checks", "gradients"], idle["checks", "failed"]) == (0, 1)
    assert idle["costs", "parameters"] == 3 and idle["costs", "cache_overhead_percent"] == 0
    assert not list(tmp_path.glob("**/final.safetensors"))
    assert main(["report"]) == 0
    (overview,) = (tmp_path / "results/plots").glob("*.png")
    assert f"](plots/{overview.name})" in (tmp_path / "results/leaderboard.md").read_text()
    singles = list((tmp_path / "results/plots").glob("*/*.png"))
    assert sorted(path.name for path in singles) == ["idle.py.png", "rope.png"]
    for path in (overview, *singles):
        pixels = image.imread(path)
        assert min(pixels.shape[:2]) > 200 and pixels[..., :3].std() > 0.01
