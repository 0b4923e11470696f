"""Lightning Fabric, imported without the Trainer.

`import lightning` also imports the Trainer, and with it torchmetrics. Together they take twice as
long as torch, in every process that trains.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any

TRAINER = "lightning"
METRICS = "torchmetrics"


@contextmanager
def _without_trainer() -> Iterator[None]:
    """Import subpackages of Lightning without executing the package itself.

    The first use of any other name, such as `lightning.Trainer`, executes it.
    """
    spec = find_spec(TRAINER)
    if TRAINER in sys.modules or spec is None or spec.loader is None:
        yield
        return
    package = module_from_spec(spec)
    execute = spec.loader.exec_module

    def load(name: str) -> Any:
        # Tools ask for names such as __file__, and subpackages for a parent that is being imported.
        if name.startswith("__") or f"{TRAINER}.{name}" in sys.modules:
            raise AttributeError(name)
        del package.__dict__["__getattr__"]
        execute(package)
        return getattr(package, name)

    package.__dict__["__getattr__"] = load
    sys.modules[TRAINER] = package
    with _only_version(METRICS):
        yield
    if "__getattr__" in package.__dict__:  # else it has been executed
        # Fabric has imported the submodule `lightning.__version__`, which is not the version.
        package.__dict__["__version__"] = version(TRAINER)


@contextmanager
def _only_version(name: str) -> Iterator[None]:
    """Replace a package that has not been imported by its version, which Fabric compares."""
    try:
        found = version(name)
    except PackageNotFoundError:
        found = ""
    if name in sys.modules or not found:
        yield
        return
    stub = ModuleType(name)
    stub.__dict__["__version__"] = found
    sys.modules[name] = stub
    try:
        yield
    finally:
        del sys.modules[name]


with _without_trainer():
    from lightning.fabric import Fabric
    from lightning.fabric.loggers.logger import Logger
    from lightning.fabric.plugins import MixedPrecision, Precision

__all__ = ["Fabric", "Logger", "MixedPrecision", "Precision"]
