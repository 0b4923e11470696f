"""A run refuses a user's encoding whose outputs depend on later tokens."""

from pathlib import Path

import pytest
from test_runner import Toy, record
from test_runner import toy as toy  # a fixture

from pe_bench.checks.leak import find_leak
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
    found = find_leak(plugins.load("encoding", spec.format(file)))
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
    assert find_leak(plugins.load("encoding", write(tmp_path, keys))) is None


def test_an_encoding_with_a_leak_is_not_trained(toy: Toy, tmp_path: Path) -> None:
    write(tmp_path, "k + k.flip(2)")
    assert toy(encodings=("./mine.py", "nope")) == (2, ["batch", "batch", "a", "b"])  # nope alone
    refused = record(tmp_path, "mine.py")[0]
    assert refused["status"] == "failed"
    assert refused["reason"].startswith(f"its results would be wrong, because {LEAK}")
    assert record(tmp_path)[0]["status"] == "done"
