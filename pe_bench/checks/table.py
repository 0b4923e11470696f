"""`pe-bench check`: tables of check results and of the costs of encodings."""

import math
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pe_bench.checks import encodings as encoding_checks
from pe_bench.checks import tasks as task_checks
from pe_bench.checks.costs import SHAPE, measure_costs
from pe_bench.checks.depth import DEEP, describe_unlike, find_unlike_layers
from pe_bench.checks.findings import Finding, describe_crash, run_check
from pe_bench.checks.other_process import processes
from pe_bench.checks.shortcuts import ShortcutScore, strongest
from pe_bench.checks.subject import CONFIG, Subject
from pe_bench.checks.task_subject import TaskSubject
from pe_bench.errors import InputError
from pe_bench.registry import plugins
from pe_bench.registry.versions import is_shipped
from pe_bench.results.labels import plugin_name
from pe_bench.system.console import info
from pe_bench.system.files import cache_folder

SHAPE_OF_TENSOR = r"\([\d, ]+\)"

COSTS = {
    "parameters": "of all layers",
    "extra FLOPs": "floating-point operations per token",
    "extra cache": "numbers kept per token; -: no cache can be used",
}
COUNTS = {
    "hold": "checks that hold; --wide has a column for each of them, -v a line",
    "n/a": "checks of properties that are not claimed, or do not apply",
    "wrong": "checks that fail; the reasons are below",
}
COSTS_LEGEND = (
    f"Costs are beyond a decoder without positions\n({SHAPE.layers} layers, {SHAPE.heads} heads, "
    f"width {SHAPE.width}, {SHAPE.train_length} tokens)."
)
SHORTCUTS_LEGEND = (
    "Shortcuts use neither question nor positions. 0 %: chance, 100 %: the ceiling,\n"
    "in (ID) and out of distribution (OOD); -v prints all."
)
ABSENT = "-"
TERMINAL = 80  # columns
UNKNOWN = ("?",) * len(COSTS)


def check_encodings(
    specs: Sequence[str],
    device: str = "cpu",
    *,
    kv_heads: int = 0,
    verbose: bool = False,
    wide: bool = False,
) -> bool:
    """Run every check on every encoding and print a table; return whether all hold.

    Args:
        specs: specs of the encodings. Those of the user are also checked with their own `variants`.
        device: "cpu" or "cuda".
        kv_heads: number of key heads of the models; 0: the number of query heads.
        verbose: whether to print every finding instead of only failures.
        wide: whether to print a column for each check instead of the number of checks that hold.

    Raises:
        InputError: an encoding cannot be loaded or built.
    """
    loaded = []
    for spec in specs:
        plugin = plugins.load("encoding", spec)
        loaded.append(plugin)
        if not is_shipped(plugin.cls) and not plugin.options:
            for variant in vars(plugin.cls).get("variants", ()):
                loaded.append(plugins.load("encoding", f"{spec.rstrip(':')}:{variant}"))
    subjects = {p.label: Subject(p.make, device, kv_heads) for p in loaded}
    for label, subject in subjects.items():  # report build errors before printing the table
        _build(label, subject.model)
    checks = encoding_checks.CHECKS
    width = max(map(len, subjects))
    info(" ".join([" " * width, *(checks if wide else COUNTS), *COSTS]))
    findings = {}
    notes = []
    for label, subject in subjects.items():
        found = encoding_checks.examine(subject)
        costs, found["costs"] = _costs(subject)
        findings[label] = found
        cells = _cells(found, checks) if wide else _counts(found, checks)
        info(" ".join([label.ljust(width), *cells, *_align(costs, COSTS)]))
        notes += [f"{label}: {note}" for note in _depth_note(subject)]
    info("")
    legend = {name: _first_line(check) for name, check in checks.items()}
    _print_legend((legend if wide else COUNTS) | COSTS, closed=wide)
    info(COSTS_LEGEND)
    for line in [*describe_findings(findings, verbose=verbose), *notes]:
        info(line)
    return _all_hold(findings)


def check_tasks(
    specs: Sequence[str],
    *,
    data: Mapping[str, Path] | None = None,
    verbose: bool = False,
    wide: bool = False,
) -> bool:
    """Run every check on every task and print a table; return whether all hold.

    Args:
        specs: specs of the tasks.
        data: folder with data of each task by name; the key "" stands for all other tasks.
        verbose: whether to print every finding instead of only failures.
        wide: whether to print a column for each check instead of the number of checks that hold.

    Raises:
        InputError: a task cannot be loaded or built.
    """
    cache = cache_folder()
    loaded = [plugins.load("task", spec, "quick") for spec in specs]
    folders = data or {}
    subjects = {}
    for plugin in loaded:
        name = plugin_name(plugin.label)
        folder = folders.get(name, folders.get(""))
        subjects[plugin.label] = TaskSubject.of(plugin, cache, folder)
    for label, subject in subjects.items():
        _build(label, subject.make)
    checks = {**task_checks.CHECKS, "processes": processes}
    width = max(map(len, subjects))
    info(" ".join([" " * width, *(checks if wide else COUNTS)]))
    findings = {}
    for label, subject in subjects.items():
        found = task_checks.examine(subject)
        found["processes"] = run_check(processes, subject)
        findings[label] = found
        cells = _cells(found, checks) if wide else _counts(found, checks)
        info(" ".join([label.ljust(width), *cells]))
    info("")
    legend = {name: _first_line(check) for name, check in checks.items()}
    _print_legend(legend if wide else COUNTS, closed=wide)
    searched = {
        label: subject.shortcut_scores
        for label, subject in subjects.items()
        if findings[label]["shortcuts"].status in ("ok", "FAIL")
    }
    if searched:
        info("")
        _print_shortcuts(searched, verbose=verbose)
    for line in describe_findings(findings, verbose=verbose):
        info(line)
    return _all_hold(findings)


def _print_shortcuts(searched: Mapping[str, Sequence[ShortcutScore]], *, verbose: bool) -> None:
    """Print the score of each task's strongest shortcut, or of all shortcuts if `verbose`."""
    rows = []
    for label, scores in searched.items():
        for score in scores if verbose else strongest(scores):
            name = f"{label} {score.subset}".rstrip()
            rows.append([name, score.shortcut, _percent(score.inside), _percent(score.outside)])
    header = ["", "shortcuts" if verbose else "strongest shortcut", "ID", "OOD"]
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in [header, *rows]:
        words = [cell.ljust(width) for cell, width in zip(row[:2], widths[:2], strict=True)]
        numbers = [cell.rjust(width) for cell, width in zip(row[2:], widths[2:], strict=True)]
        info(" ".join([*words, *numbers]))
    info("")
    info(SHORTCUTS_LEGEND)
    info("")


def _percent(share: float) -> str:
    return ABSENT if math.isnan(share) else f"{100 * share:.0f} %"


def describe_findings(
    findings: Mapping[str, Mapping[str, Finding]], *, verbose: bool
) -> Iterable[str]:
    """Return a line for each failed finding, or for all findings. Equal reasons share a line.

    So do reasons that differ only in the shape of a tensor; the line has the first shape.

    Args:
        findings: findings by label and check.
        verbose: whether to include findings that did not fail.
    """
    for label, found in findings.items():
        by_kind: dict[Finding, list[tuple[str, Finding]]] = {}
        for name, finding in found.items():
            if finding.bad or verbose:
                kind = replace(finding, reason=re.sub(SHAPE_OF_TENSOR, "()", finding.reason))
                by_kind.setdefault(kind, []).append((name, finding))
        for group in by_kind.values():
            checks = [name for name, _ in group]
            finding = group[0][1]
            words = [label, ", ".join(checks)]
            if verbose:
                words.append(finding.status)
            if finding.reason:
                words.append(finding.reason)
            yield ": ".join(words)


def _all_hold(findings: Mapping[str, Mapping[str, Finding]]) -> bool:
    return not any(finding.bad for found in findings.values() for finding in found.values())


def _build(label: str, make: Callable[[], object]) -> None:
    """Build a plugin.

    Raises:
        InputError: the plugin cannot be built.
    """
    try:
        make()
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{label} cannot be built: {describe_crash(error)}") from error


def _cells(found: Mapping[str, Finding], checks: Iterable[str]) -> list[str]:
    return [found[name].status.ljust(len(name)) for name in checks]


def _counts(found: Mapping[str, Finding], checks: Iterable[str]) -> list[str]:
    """Return the numbers of checks that hold, do not apply and fail."""
    statuses = [found[name].status for name in checks]
    wrong = sum(found[name].bad for name in checks)
    return _align([str(statuses.count("ok")), str(statuses.count("-")), str(wrong)], COUNTS)


def _align(costs: Sequence[str], columns: Iterable[str]) -> list[str]:
    return [cell.rjust(len(name)) for cell, name in zip(costs, columns, strict=True)]


def _print_legend(legend: Mapping[str, str], *, closed: bool = True) -> None:
    """Explain the columns and, if `closed`, a dash in the column of a check."""
    width = max(map(len, legend))
    for name, meaning in legend.items():
        first = f"{name.ljust(width)}  "
        info(
            textwrap.fill(
                meaning, TERMINAL, initial_indent=first, subsequent_indent=" " * len(first)
            )
        )
    if closed:
        info(f"{'-'.ljust(width)}  not claimed, or does not apply")


def _first_line(check: Callable[..., Any]) -> str:
    return (check.__doc__ or "").partition("\n")[0]


def _costs(subject: Subject) -> tuple[Sequence[str], Finding]:
    """Return an encoding's costs as text, and an error finding if they cannot be measured."""
    try:
        costs = measure_costs(subject.make_encoding)
    except InputError as error:
        return UNKNOWN, Finding("ERROR", str(error))
    except Exception as error:
        return UNKNOWN, Finding("ERROR", describe_crash(error))
    share = costs.flops / costs.bare_flops
    cache = "-" if costs.cache is None else f"{costs.cache / costs.bare_cache:+.1%}"
    return (f"{costs.parameters:,}", f"{share:+.2%}", cache), Finding("ok")


def _depth_note(subject: Subject) -> list[str]:
    """Return a note on an encoding that has an effect only from the third or a later layer on."""
    config = replace(CONFIG, layers=DEEP)
    try:
        unlike = find_unlike_layers(subject.make_encoding, config)
        if not unlike or unlike[0] < 2:
            return []
        # Unlike a layer index, a fraction of the layers also exists in shallow models.
        if find_unlike_layers(subject.make_encoding, replace(config, layers=unlike[0])):
            return []
    except Exception:  # a crash is already among the findings
        return []
    return [
        f"note: {describe_unlike(unlike)}; in a model of {unlike[0]} layers or fewer all are equal"
    ]
