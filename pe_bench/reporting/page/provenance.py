"""Provenance of numbers: code, device, settings."""

import json
from collections.abc import Mapping
from typing import Any

from pe_bench.config import show_rate
from pe_bench.reporting.tables import Table
from pe_bench.system.commit import show_commit


def training_facts(table: Table) -> list[tuple[str, str]]:
    """Return size, steps and similar facts of a table's models in readable form."""
    settings = table.about.settings
    model: Mapping[str, Any] = settings.get("model") or {}
    train: Mapping[str, Any] = settings.get("train") or {}
    found = []
    if model:
        shape = f"{model.get('layers')} layers, width {model.get('width')}, "
        shape += f"{model.get('heads')} heads"
        found.append(("model", shape))
    parameters = [one.parameters for one in table.records if one.parameters is not None]
    if parameters:
        low, high = min(parameters), max(parameters)
        found.append(("parameters", f"{low:,}" if low == high else f"{low:,} to {high:,}"))
    if train.get("steps"):
        found.append(("training", f"{train['steps']:,} steps of {train.get('batch_size')} rows"))
        rate = "chosen for every encoding" if settings.get("tune") else show_rate(train["lr"])
        found.append(("learning rate", rate))
    if table.about.train_length:
        found.append(("training length", f"{table.about.train_length:,} tokens"))
    if settings.get("precision"):
        found.append(("precision", str(settings["precision"])))
    return found


def list_runs(table: Table) -> list[dict[str, Any]]:
    """Return the runs of a table in readable form, ordered by encoding and seed."""
    runs = []
    for record in sorted(table.records, key=lambda one: (one.encoding, one.seed)):
        runs.append(
            {
                "encoding": record.encoding,
                "seed": record.seed,
                "run": record.name,
                "version": record.encoding_version,
                "commit": show_commit(record.environment),
                "device": str(record.environment.get("device") or ""),
                "finished": record.finished[:16].replace("T", " "),
                "seconds": None if record.seconds is None else round(record.seconds, 1),
            }
        )
    return runs


def show_settings(table: Table) -> str:
    """Return everything that decides a number except encoding and seed, as JSON."""
    return json.dumps(table.about.settings, indent=1, ensure_ascii=False, sort_keys=True)


def show_versions(table: Table) -> str:
    """Return the versions of Python and of the packages that a table was measured with."""
    environment = table.about.environment
    versions = [f"{name} {v}" for name, v in (environment.get("versions") or {}).items() if v]
    python = [f"Python {environment['python']}"] if environment.get("python") else []
    return ", ".join([*python, *versions])
