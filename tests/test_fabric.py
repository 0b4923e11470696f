"""Training imports Lightning Fabric, and leaves the rest of Lightning as it is."""

import subprocess
import sys

import pytest

SCRIPT = """
import importlib.metadata
import sys

import pe_bench.train.loop

assert "lightning.pytorch" not in sys.modules and "torchmetrics" not in sys.modules

import lightning
import lightning.fabric.utilities.imports

assert lightning.__version__ == importlib.metadata.version("lightning")
assert lightning.fabric.Fabric is pe_bench.train.loop.Fabric
assert lightning.fabric.utilities.imports._TORCHMETRICS_GREATER_EQUAL_1_0_0
assert not hasattr(lightning, "__no_such_name__") and "lightning.pytorch" not in sys.modules

assert lightning.Trainer.__module__.startswith("lightning.pytorch")
assert lightning.Fabric is pe_bench.train.loop.Fabric
assert lightning.__version__ == importlib.metadata.version("lightning")

import torchmetrics

assert torchmetrics.Metric
try:
    lightning.no_such_name
except AttributeError:
    print("as it is")
"""


@pytest.mark.slow
def test_lightning_is_complete_when_it_is_used() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.returncode) == ("as it is\n", 0), done.stderr
