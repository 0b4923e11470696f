"""Mistakes in an encoding that raise no exception are reported before training."""

from pathlib import Path

import pytest

from pe_bench.checks.encodings import CHECKS
from pe_bench.checks.findings import run_check
from pe_bench.checks.interface import find_oversights, find_unused_parameters
from pe_bench.checks.states import permutation
from pe_bench.checks.subject import CONFIG, Subject
from pe_bench.cli import main
from pe_bench.errors import InputError
from pe_bench.registry import catalogue, plugins

HEAD = """
import torch
from torch import nn
from pe_bench.api import Encoding, StatefulEncoding

class Mine({base}):
{body}
"""
ADDS = "\n    def embed(self, x, positions):\n        return x + 1"
INIT = "    def __init__(self, model, layer=0{options}):\n        super().__init__(model, layer)\n"

MISTAKES = [
    ("    def distance_biases(self, distances):\n        return -distances", "mean distance_bias?"),
    (
        "    def transform_queries(self, q, k, positions):\n        return q, k",
        "mean transform_qk?",
    ),
    ("    shift_invarient = True" + ADDS, "mean shift_invariant?"),
    ("    def helper(self):\n        return 1", "overrides no hook"),
    ("    def update_state(self, state, *rest):\n        return state" + ADDS, "StatefulEncoding"),
    (INIT.format(options="") + "        self.table = torch.ones(4)" + ADDS, "register_buffer"),
    (INIT.format(options="") + "        self.parts = [torch.ones(4)]" + ADDS, "register_buffer"),
    (
        INIT.format(options="") + "        self.parts = [torch.nn.Parameter(torch.ones(4))]" + ADDS,
        "has parameters in a list, which are never trained: use nn.ParameterList",
    ),
    (
        "    from pe_bench.api import Tunable\n"
        "    tunable = Tunable('slop', lambda model: (1.0,))\n"
        + INIT.format(options=", *, slope: float = 2.0")
        + ADDS,
        "Mine.tunable names 'slop', which is not one of its options",
    ),
]
FINE = [
    ADDS,
    "    def bias(self, positions):\n        return self.biases()\n"
    "    def biases(self):\n        return None",
    "    shared = False\n" + INIT.format(options=", *, size: int = 3") + ADDS,
]


def write(folder: Path, body: str, base: str = "Encoding") -> str:
    file = folder / "mine.py"
    file.write_text(HEAD.format(base=base, body=body))
    return str(file)


@pytest.mark.parametrize(("body", "sentence"), MISTAKES)
def test_a_mistake_is_named(
    body: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = write(tmp_path, body)
    found, *_ = find_oversights(plugins.load("encoding", spec).make(CONFIG, 0))
    assert sentence in found
    words = f"run --encoding {spec} --task flipflop --results {tmp_path / 'r'} --dry-run"
    assert main([*words.split(), "--device", "cpu"]) == 0
    assert f"mine.py: {found}" in capsys.readouterr().err


@pytest.mark.parametrize("body", FINE)
def test_what_is_right_is_left_alone(body: str, tmp_path: Path) -> None:
    plugin = plugins.load("encoding", write(tmp_path, body))
    assert find_oversights(plugin.make(CONFIG, 0)) + find_unused_parameters(plugin) == []


def test_unused_parameters(tmp_path: Path) -> None:
    body = INIT.format(options="") + "        self.scale = nn.Parameter(torch.ones(2))" + ADDS
    (found,) = find_unused_parameters(plugins.load("encoding", write(tmp_path, body)))
    assert "no gradient reaches scale" in found


@pytest.mark.parametrize("change", ["self.layer % 2", "not self.training", "self.layer == -1"])
def test_parameters_that_some_layer_uses_are_used(change: str, tmp_path: Path) -> None:
    used = change == "self.layer % 2"
    body = (
        "    shared = False\n"
        + INIT.format(options="")
        + "        self.scale = nn.Parameter(torch.ones(2))\n"
        "        self.still = nn.Parameter(torch.ones(2), requires_grad=False)\n\n"
        "    def transform_qk(self, q, k, positions):\n"
        f"        return (q * self.scale.sum() if {change} else q), k\n"
    )
    found = find_unused_parameters(plugins.load("encoding", write(tmp_path, body)))
    assert found == [] if used else "no gradient reaches scale: no hook uses it" in found


def test_parameters_of_far_distances_and_of_the_extra_loss_are_used(tmp_path: Path) -> None:
    body = (
        INIT.format(options="")
        + "        self.far = nn.Parameter(torch.zeros(model.heads, 1))\n"
        + "        self.of_loss = nn.Parameter(torch.zeros(2))\n\n"
        "    def distance_bias(self, distances):\n"
        "        return self.far * (distances > 100)\n\n"
        "    def extra_loss(self):\n"
        "        return (self.of_loss - 1).square().sum()\n"
    )
    plugin = plugins.load("encoding", write(tmp_path, body))
    assert find_unused_parameters(plugin) == []
    assert run_check(CHECKS["gradients"], Subject(plugin.make)).reason == ""


@pytest.mark.parametrize("initial", ["zeros", "ones"])
def test_parameters_that_training_does_not_change(initial: str, tmp_path: Path) -> None:
    """The gradient of a product of two zeros is zero; one zero is enough to leave it."""
    body = (
        INIT.format(options="")
        + "        self.scale = nn.Parameter(torch.zeros(2))\n"
        + f"        self.gate = nn.Parameter(torch.{initial}(2))\n\n"
        "    def transform_qk(self, q, k, positions):\n"
        "        return q * (1 + (self.scale * self.gate).sum()), k\n"
    )
    found = find_unused_parameters(plugins.load("encoding", write(tmp_path, body)))
    sentence = "5 steps of training do not change scale, gate: is it multiplied by another"
    assert [one[: len(sentence)] for one in found] == [sentence] * (initial == "zeros")


@pytest.mark.parametrize("name", catalogue.names("encoding"))
def test_shipped_encodings_have_none(name: str) -> None:
    plugin = plugins.load("encoding", name)
    for variant in ("", *plugin.cls.variants):
        own = plugins.load("encoding", f"{name}:{variant}" if variant else name)
        assert find_oversights(own.make(CONFIG, 0)) == []


WITHOUT_SUPER = [
    "    def __init__(self, model, layer=0):\n        self.size = 3",
    "    def __init__(self, model, layer=0):\n        self.p = nn.Parameter(torch.ones(2))",
    "    def __init__(self, model, layer=0):\n        self.l = nn.Linear(2, 2)",
    "    def __init__(self, model, layer=0):\n        self.register_buffer('b', torch.ones(2))",
]


@pytest.mark.parametrize("body", WITHOUT_SUPER)
@pytest.mark.parametrize("command", ["check {}", "run --encoding {} --task flipflop --dry-run"])
def test_a_missing_super(
    body: str, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = write(tmp_path, body + ADDS)
    words = command.format(spec).split()
    if words[0] == "run":
        words += ["--results", str(tmp_path / "r"), "--device", "cpu"]
    assert main(words) == 2
    assert "super().__init__(model, layer)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "given", "sentence"),
    [
        (", *, base=10", "base=2.5", "mine.py:base must be a whole number, not '2.5'"),
        (", *, base=10.0", "base=abc", "mine.py:base must be a number"),
        (", *, base=None", "base=1", "annotate it"),
        (", base=10.0", "base=1", "write * before it"),
    ],
)
def test_options_without_types(options: str, given: str, sentence: str, tmp_path: Path) -> None:
    spec = write(tmp_path, INIT.format(options=options) + ADDS)
    with pytest.raises(InputError, match=sentence.replace("*", r"\*")):
        plugins.load("encoding", f"{spec}:{given}")


def test_an_option_has_the_type_of_its_default(tmp_path: Path) -> None:
    spec = write(tmp_path, INIT.format(options=", *, base=10.0, on=False") + ADDS)
    assert plugins.load("encoding", f"{spec}:base=2,on=true").options == {"base": 2.0, "on": True}


def test_the_layout_of_a_state(tmp_path: Path) -> None:
    body = """
    def prepare(self, x, positions):
        return x.sum(-1)[:, None].expand(-1, 4, -1)

    def update_state(self, state, extra, mlp_in, mlp_out):
        return state + mlp_out.sum(-1)[:, None]

    def embed(self, x, positions):
        return x + 1
"""
    plugin = plugins.load("encoding", write(tmp_path, body, "StatefulEncoding"))
    finding = run_check(permutation, Subject(plugin.make))
    assert finding.bad and "its last axis but one must have the 40 tokens" in finding.reason
    assert "permutation_equivariant = False" not in finding.reason
