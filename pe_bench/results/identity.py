"""Settings as digests, which name runs and the files that belong to them, and as a flat list."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pe_bench.config import ModelConfig, TrainConfig
from pe_bench.system.files import slug

ABSENT = object()  # of a field that an earlier version had


def digest(*parts: Any) -> str:
    """Return eight hexadecimal digits of the SHA-256 of the parts as JSON."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def digest_settings(settings: Mapping[str, Any], *more: Any) -> str:
    """Return eight characters that stand for the settings of a run and for `more`."""
    return digest(without_defaults(settings), *more)


def tuning_path(results: Path, task: str, encoding: str, identity: str) -> Path:
    """Return the file with the learning rates that were chosen for an encoding.

    Args:
        results: the results folder.
        task, encoding: labels.
        identity: digest of the task's settings with label and version of the encoding.
    """
    return results / "tuning" / slug(task) / f"{slug(encoding)}-{identity}.json"


def flatten_settings(tree: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Return the leaves of nested settings by their paths, names joined by dots, as JSON has them.

    Args:
        tree: the settings, or any other tree of mappings.
        above: what every path begins with.
    """
    found: dict[str, Any] = {}
    for name, value in json.loads(json.dumps(tree, default=str)).items():
        if isinstance(value, dict):
            found |= flatten_settings(value, f"{above}{name}.")
        else:
            found[f"{above}{name}"] = value
    return found


def without_defaults(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings without what a config would be anyway: a new field leaves digests alone."""
    found = dict(settings)
    for name, config in (("model", ModelConfig()), ("train", TrainConfig())):
        defaults = asdict(config)
        found[name] = {
            k: v for k, v in settings[name].items() if _plain(v) != defaults.get(k, ABSENT)
        }
    if settings["start"]:
        found["start"] = without_defaults(settings["start"])
    return found


def _plain(value: Any) -> Any:
    """Return a value as a config has it; files keep tuples as lists."""
    return tuple(value) if isinstance(value, list) else value
