"""Import of scripts that are not part of the package: docs/, benchmarks/ and examples/."""

import importlib.util
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[1]


def load_script(path: str) -> ModuleType:
    """Return a script as a module.

    Args:
        path: path relative to the root of the checkout, such as "docs/catalogue.py".
    """
    file = ROOT / path
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
