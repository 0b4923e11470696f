"""Merging of chosen learning rates; existing choices are compared, never overwritten."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pe_bench.config import show_rate
from pe_bench.errors import InputError
from pe_bench.results.identity import digest_settings, tuning_path
from pe_bench.results.record import RunRecord
from pe_bench.results.record_parts import SearchJson
from pe_bench.system.files import LARGEST
from pe_bench.system.sealed import DamagedError, read_sealed, write_sealed


def copy_tuning(path: Path, copy: Path) -> str:
    """Copy the chosen learning rates of an encoding.

    Args:
        path: file of the choices.
        copy: file to add them to, which may exist.

    Returns:
        A sentence if they are not copied, because the file is damaged or contradicts existing
        choices; else "".
    """
    try:
        content = read_sealed(path, owner=path.stem, kind=SearchJson, limit=LARGEST)
    except (DamagedError, InputError) as error:
        return f"{error}: left out"
    return add_choices(content, path, copy)


def restore_tuning(record: RunRecord, target: Path) -> list[str]:
    """Write the chosen learning rates in the record of a run to the tuning folder.

    Returns:
        A sentence for each phase whose choices are not written, as in `copy_tuning`.
    """
    complaints = []
    for name, settings in (("task", record.settings), ("start", _settings_of_start(record))):
        content = (record.tuning or {}).get(name)
        if content and {"model", "train", "start"} <= settings.keys():
            names = (content["task"], content["encoding"])
            identity = digest_settings(settings, content["encoding"], content["encoding_version"])
            copy = tuning_path(target, *names, identity)
            complaints.append(add_choices(content, record.folder or target, copy))
    return list(filter(None, complaints))


def _settings_of_start(record: RunRecord) -> Mapping[str, Any]:
    """Return the settings of the task that a run starts from; empty if it has no such task.

    An adapted encoding starts from the same task, trained with its origin.
    """
    if "from" in record.settings:
        return {name: value for name, value in record.settings.items() if name != "from"}
    return record.settings.get("start") or {}


def add_choices(content: Mapping[str, Any], source: Path, copy: Path) -> str:
    """Add choices that do not exist yet; return a sentence if they contradict existing ones."""
    try:
        existing = read_sealed(copy, owner=copy.stem, kind=SearchJson)
    except FileNotFoundError:
        existing = {}
    except (DamagedError, InputError) as error:
        return f"{error}: run it again, or remove it"
    rates, existing_rates = content.get("lr", {}), existing.get("lr", {})
    common = rates.keys() & existing_rates.keys()
    if any(rates[phase] != existing_rates[phase] for phase in common):
        return (
            f"{content['encoding']} · {content['task']}: other learning rates were chosen in "
            f"{source} ({_show(rates)}) than in {copy} ({_show(existing_rates)}), which stay: "
            "their runs do not belong in one table"
        )
    known = [_identity_of(trial) for trial in existing.get("tried", [])]
    new = [trial for trial in content.get("tried", []) if _identity_of(trial) not in known]
    if new or len(common) < len(rates):
        joined = {**content, **existing}
        for name, value in content.items():
            if isinstance(value, dict):  # keyed by phase; existing choices stay
                joined[name] = {**value, **existing.get(name, {})}
        joined["tried"] = [*existing.get("tried", []), *new]
        write_sealed(copy, joined, owner=copy.stem)
    return ""


def _identity_of(trial: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the identity of a trial within its search; other machines have other losses."""
    return trial["phase"], trial["lr"], trial.get("value"), trial["seed"]


def _show(rates: Mapping[str, float]) -> str:
    return ", ".join(f"{phase}: {show_rate(lr)}" for phase, lr in rates.items())
