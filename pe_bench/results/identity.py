"""Digests of settings, which name runs and their files; settings as a flat dict."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pe_bench.config import ModelConfig, TrainConfig
from pe_bench.results.layout import TUNING
from pe_bench.system.files import slug

ABSENT = object()  # default of a setting that the config does not have


def digest(*parts: Any) -> str:
    """Return eight hexadecimal digits of the SHA-256 of the parts as JSON."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def digest_settings(settings: Mapping[str, Any], *more: Any) -> str:
    """Return a digest of the settings of a run and of `more`."""
    return digest(without_defaults(settings), *more)


def model_identity(
    settings: Mapping[str, Any],
    encoding: str,
    version: str,
    seed: int,
    subset: str | None,
    value: str | None = None,
) -> str:
    """Return a digest of every setting that determines weights, and the name of the subset if any.

    Args:
        settings: settings of the task, see `with_chosen_rate`.
        encoding, version: label and version of the encoding.
        seed: seed of weights and batches.
        subset: the subset that the model is trained for; None: all subsets.
        value: value that a search has chosen for an option of the encoding; None: its default.
    """
    values = () if value is None else (value,)
    found = digest_settings(settings, encoding, version, seed, *values)
    return found if subset is None else f"{found}/{slug(subset)}"


def with_chosen_rate(
    settings: Mapping[str, Any], rate: float, *, from_scratch: bool
) -> dict[str, Any]:
    """Return settings of a task with the learning rate that a search has chosen.

    The weights do not depend on the search that led to the rate, so that another search finds the
    trained model. Without `from_scratch`, they depend on the search of the earlier phase.
    """
    found = {**settings, "train": {**settings["train"], "lr": rate}}
    if from_scratch:
        del found["tune"]
    return found


def tuning_path(results: Path, task: str, encoding: str, identity: str) -> Path:
    """Return the path of the file with the chosen learning rates of an encoding.

    Args:
        results: the results folder.
        task, encoding: labels.
        identity: digest of the settings of the task, and of the label and version of the encoding.
    """
    return results / TUNING / slug(task) / f"{slug(encoding)}-{identity}.json"


def settings_of_phases(settings: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    """Yield the settings of a task, and then of the tasks that it starts from."""
    while settings:
        yield settings
        settings = settings.get("start")


def describe_change(what: str, before: object, now: object) -> str:
    """Return a change of the version of a plugin or of a part of the engine, in words."""
    return f"version {before} of {what}, now {now}"


def flatten_settings(tree: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Flatten nested settings into a dict from dotted paths to JSON values.

    Args:
        tree: the settings, or another nested mapping.
        above: prefix of all paths.
    """
    found: dict[str, Any] = {}
    for name, value in json.loads(json.dumps(tree, default=str)).items():
        if isinstance(value, dict):
            found |= flatten_settings(value, f"{above}{name}.")
        else:
            found[f"{above}{name}"] = value
    return found


def setting_of(settings: Mapping[str, Any], name: str) -> Any:
    """Return a flat setting; None if neither the settings nor the configs have it.

    Records of earlier versions lack options that have been added since. They have the defaults.
    """
    _, _, of_phase = name.rpartition("start.")
    return settings.get(name, DEFAULTS.get(of_phase))


def without_defaults(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings without defaults, so that a new field does not change digests.

    Settings of a record from elsewhere may be incomplete.
    """
    found = dict(settings)
    for name, config in (("model", ModelConfig()), ("train", TrainConfig())):
        defaults = asdict(config)
        if name in settings:
            found[name] = {
                k: v for k, v in settings[name].items() if _plain(v) != defaults.get(k, ABSENT)
            }
    if settings.get("start"):
        found["start"] = without_defaults(settings["start"])
    return found


def _plain(value: Any) -> Any:
    """Convert a list from JSON to a tuple, as in a config."""
    return tuple(value) if isinstance(value, list) else value


DEFAULTS = flatten_settings({"model": asdict(ModelConfig()), "train": asdict(TrainConfig())})
