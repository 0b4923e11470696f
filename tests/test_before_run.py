"""A run refuses a user's encoding with a fault that makes its results wrong."""

from pathlib import Path

import pytest
import torch
from test_runner import Toy, record
from test_runner import toy as toy  # a fixture

from pe_bench.checks.before_run import find_fault
from pe_bench.errors import InputError
from pe_bench.registry import plugins

LEAK = "changing later tokens changes the outputs"
HEAD = """
import torch
from pe_bench.api import Encoding

class Mine(Encoding):
    def transform_qk(self, q, k, positions):
        return q, {keys}
"""


def write(folder: Path, keys: str) -> str:
    file = folder / "mine.py"
    file.write_text(HEAD.format(keys=keys))
    return str(file)


@pytest.mark.parametrize("spec", ["{}", "hybrid:local={}", "hybrid:global={}"])
def test_a_leak_is_found_wherever_the_encoding_acts(spec: str, tmp_path: Path) -> None:
    file = write(tmp_path, "k + k.flip(2)")
    found = find_fault(plugins.load("encoding", spec.format(file)))
    assert found is not None and LEAK in found


@pytest.mark.parametrize(
    "keys",
    [
        "k + k.cumsum(2)",  # the past only
        "k + k.flip(2) * torch.rand(1)",  # random, so nothing can be compared
        "k + k.flip(2) * torch.ones(7)",  # does not fit the small model
    ],
)
def test_nothing_is_said_without_evidence(keys: str, tmp_path: Path) -> None:
    assert find_fault(plugins.load("encoding", write(tmp_path, keys))) is None


def test_an_encoding_with_a_leak_is_not_trained(toy: Toy, tmp_path: Path) -> None:
    write(tmp_path, "k + k.flip(2)")
    assert toy(encodings=("./mine.py", "nope")) == (2, ["batch", "batch", "a", "b"])  # nope alone
    refused = record(tmp_path, "mine.py")[0]
    assert refused["status"] == "failed"
    assert refused["reason"].startswith(f"its results would be wrong, because {LEAK}")
    assert record(tmp_path)[0]["status"] == "done"


LATE = """
import torch
from torch import nn
from pe_bench.api import Encoding

class Mine(Encoding):
    def distance_bias(self, distances):
        if not hasattr(self, "size"):
            {create}
        return -self.size * distances[None].expand(self.model.heads, -1)
"""


@pytest.mark.parametrize(
    "create",
    ["self.size = nn.Parameter(torch.ones(1))", "self.register_buffer('size', torch.ones(1))"],
)
def test_weights_that_a_forward_pass_creates_are_found(create: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(LATE.format(create=create))
    found = find_fault(plugins.load("encoding", str(file)))
    assert found == "a forward pass creates size: create parameters and buffers in __init__"


SETTINGS = {
    "torch.set_default_dtype(torch.float64)": "default dtype",
    "torch.set_default_device('meta')": "default device",
    "torch.set_grad_enabled(False)": "gradient mode",
    "torch.set_num_threads(torch.get_num_threads() + 1)": "number of threads",
}


@pytest.mark.parametrize("change", SETTINGS)
def test_changed_settings_of_torch_are_refused_and_restored(change: str, tmp_path: Path) -> None:
    before = torch.get_default_dtype(), torch.get_default_device(), torch.get_num_threads()
    file = tmp_path / "mine.py"
    file.write_text(HEAD.format(keys="k") + f"\n{change}\n")
    with pytest.raises(InputError, match=f"mine.py changes the {SETTINGS[change]} of torch"):
        plugins.load("encoding", str(file))
    assert torch.is_grad_enabled()
    assert before == (
        torch.get_default_dtype(), torch.get_default_device(), torch.get_num_threads()
    )  # fmt: skip


def test_changed_settings_of_torch_in_a_hook_are_found(tmp_path: Path) -> None:
    file = write(tmp_path, "[k, torch.set_num_threads(torch.get_num_threads() + 1)][0]")
    found = find_fault(plugins.load("encoding", file))
    assert found is not None and found.startswith("it changes the number of threads of torch")
