"""`pe-bench show`: the record and the numbers of one run."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pe_bench.commands.command import Command, OptionGroup, results_option
from pe_bench.commands.values import Values
from pe_bench.option_table import argument
from pe_bench.system.commit import show_commit
from pe_bench.system.console import info, show_duration

if TYPE_CHECKING:
    from pe_bench.results.record import RunRecord


@dataclass(frozen=True)
class ShowOptions:
    """The options of `pe-bench show`."""

    run: str = argument("folder of a run, or encoding/task/seed", "RUN")
    results: Path = results_option("results folder with encoding/task/seed; default: ./results")


def main(values: Values) -> int:
    """Print the facts in the record of a run, and its summary rows."""
    from pe_bench.results.identity import flatten_settings
    from pe_bench.results.labels import run_title
    from pe_bench.results.store import find_run, results_of

    options = values.make(ShowOptions)
    record = find_run(options.run, options.results)
    info(run_title(record.encoding, record.task, record.seed))
    _print("", _facts(record))
    _print("numbers, with their intervals over items", _numbers(record))
    if record.status == "done":
        results = shlex.quote(str(results_of(record)))
        info(f"  chance, ceiling and other seeds: pe-bench report --results {results}")
    settings = flatten_settings(record.settings)
    _print("settings", {name: str(value) for name, value in settings.items()})
    _print("sources", {name: str(path) for name, path in record.sources.items()})
    if record.reason:
        info(f"\nreason\n  {record.reason}")
    return 0


def _facts(record: "RunRecord") -> dict[str, str]:
    """Return state, times, versions and paths of a run."""
    from pe_bench.runs.trained_models import list_kept

    environment = record.environment
    packages = environment.get("versions") or {}
    found = {
        "state": record.status,
        "folder": str(record.folder),
        "finished": record.finished,
        "took": "" if record.seconds is None else show_duration(record.seconds),
        "device": str(environment.get("device", "")),
        "commit": show_commit(environment),
        "encoding version": record.encoding_version,
        "packages": ", ".join(f"{name} {version}" for name, version in packages.items() if version),
        "data": str(record.data.get("label", "")),
        "parameters": "" if record.parameters is None else f"{record.parameters:,}",
        "learning rates": str((record.tuning or {}).get("task", {}).get("lr", "")),
        "numbers taken from": record.reused or "",
        "kept models": ", ".join(map(str, list_kept(record).values())),
    }
    return {name: value for name, value in found.items() if value}


def _numbers(record: "RunRecord") -> dict[str, str]:
    """Return the numbers of a finished run, except those for single lengths."""
    from pe_bench.results.run_data import read_run_rows

    if record.status != "done":
        return {}
    found = {}
    for row in read_run_rows(record):
        if not row["length"] and not row["second_axis"]:
            value, low, high = (_short(row[name]) for name in ("value", "ci_low", "ci_high"))
            interval = f" ({low} to {high})" if low else ""
            found[f"{row['subset']} {row['metric']}"] = f"{value}{interval}"
    return found


def _short(number: str) -> str:
    return f"{float(number):.4g}" if number else ""


def _print(heading: str, lines: Mapping[str, str]) -> None:
    """Print a table of names and values below a heading."""
    if heading and lines:
        info(f"\n{heading}")
    widest = max(map(len, lines), default=0)
    for name, value in lines.items():
        info(f"  {name:{widest}}  {value}")


COMMAND = Command(
    name="show",
    main=main,
    help="describe one run: times, versions, numbers, settings, files",
    usage="pe-bench show RUN [options]",
    description="Print the record of a run in a results folder or an export.",
    groups=[OptionGroup(ShowOptions)],
)
