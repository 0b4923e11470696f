"""Records, items and baselines of the runs of `shown_results`."""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from made_runs import write_record, write_rows

from pe_bench.reporting.published import Published
from pe_bench.results import row_files
from pe_bench.results.item_files import write_items
from pe_bench.results.items import Items, RowKey
from pe_bench.results.layout import baselines_path
from pe_bench.results.learning_curves import LearningCurve
from pe_bench.results.measurement import CSV_COLUMNS, Measurement
from pe_bench.results.record import RunRecord
from pe_bench.results.views import Headline
from pe_bench.system.files import slug

ROPE, WIDE, OWN, FREE = "rope", "rope:base=500000", "mine.py:size=3", "größe.py"

PUBLISHED = (
    Published("passkey", "far", "accuracy", 96, "rope", 12.5, 1.25, "%", "Roe 2024, table 2",
              "published", "Other model.", ""),
    Published("passkey", "far", "accuracy", 192, "rope", 7.0, None, "%", "Roe 2024, table 2",
              "published", "Other model.", ""),
    Published("passkey", "far", "accuracy", 96, "theirs", 3.75, None, "%", "Roe 2024, table 2",
              "published", "Other model.", "wrong seed"),
    Published("passkey", "near", "correct_prefix", None, "alibi", 55.0, None, "%", "Doe 2023",
              "second-hand", "", ""),
)  # fmt: skip


def noise(*keys: int) -> float:
    """Return a number from -3 to 3 that depends on all keys."""
    return zlib.crc32(repr(keys).encode()) % 61 / 10 - 3


def settings(task: str, **changed: Any) -> dict[str, Any]:
    """Return the settings of tuned runs from scratch."""
    found: dict[str, Any] = {
        "task": task,
        "preset": "quick",
        "protocol": "strict",
        "precision": "bf16",
        "model": {"layers": 2, "heads": 4, "width": 48, "mlp_width": 96},
        "train": {"steps": 1200, "lr": 0.002, "batch_size": 24},
        "start": None,
        "tune": {"lr": [0.0005, 0.002], "seeds": [1000, 1001], "version": 2},
    }
    return found | changed


def tuning(encoding: str, place: int, phases: Sequence[str] = ("all",)) -> dict[str, Any]:
    """Return a search for the learning rate of each phase; a rate of 0.004 is at the edge."""
    rates = dict(zip(phases, ((0.002, 0.0005, 0.004) * 2)[place % 3 :], strict=False))
    tried: list[dict[str, Any]] = []
    for phase in phases:
        for seed in (1000, 1001):
            for lr in (0.0005, 0.002, 0.004):
                loss = 0.25 + lr + seed / 1e5
                tried.append({"phase": phase, "lr": lr, "seed": seed, "training_loss": loss})
    search = {
        "task": "mqar",
        "encoding": encoding,
        "encoding_version": "3",
        "lr": rates,
        "values": {phase: "7" if encoding == OWN else None for phase in phases},
        "option": "size" if encoding == OWN else None,
        "at_edge": {phase: rate == 0.004 for phase, rate in rates.items()},
        "trainings": {phase: 3.5 + place for phase in phases},
        "tried": tried,
    }
    return {"task": search}


def describe(encoding: str) -> dict[str, Any]:
    """Return the description of an encoding in a record."""
    found: dict[str, Any] = {
        "summary": f"Summary of {encoding.partition(':')[0]} with `code`.",
        "text": f"Text of {encoding}.\n\nA second paragraph.",
        "facts": {"prefix_consistent": True, "shift_invariant": encoding != OWN},
        "runs_on": ["sdpa", "blocked"],
    }
    if encoding == OWN:
        found["facts"]["max_position"] = 4096
        found["style"] = {"label": "Mine", "family": "own", "colour": "#123456", "marker": "D"}
    return found


def put(
    root: Path,
    task: str,
    encoding: str,
    seed: int,
    rows: Sequence[Measurement],
    *,
    place: int,
    digest: str,
    headline: Headline,
    items: bool = False,
    **changed: Any,
) -> Path:
    """Write a run and return its folder.

    Args:
        root, task, encoding, seed, rows, digest, headline, changed: parts of the record.
        place: number of the encoding in its task, on which its costs depend.
        items: whether to write scores of items with the mean of the first row.
    """
    training = {"loss": 0.31 + seed / 64, "seconds": 11.5 + place + seed / 8}
    fields: dict[str, Any] = {
        "status": "done",
        "encoding_version": "3",
        "preset": "quick",
        "protocol": "strict",
        "data": {"label": "generated"},
        "settings": settings(task),
        "options": ("--tune",),
        "tuning": tuning(encoding, place),
        "axes": {"length": "tokens", "second": "depth"},
        "max_train_axis": 32,
        "train_length": 48,
        "described": {
            "encoding": describe(encoding),
            "task": {"summary": f"Summary of {task}.", "text": f"Text of {task}, with *stars*."},
        },
        "environment": {
            "device": "H100" if seed == 2 else "CPU",
            "python": "3.11.7",
            "versions": {"torch": "2.9.1", "numpy": "2.3.0"},
            "git": {"commit": "abcde"[seed % 5] * 40, "dirty": seed == 0},
        },
        "finished": f"2026-0{1 + seed}-03T04:05:06+00:00",
        "parameters": 61_000 + 100 * place,
        "encoding_parameters": 1_000 + 100 * place,
        "seconds": 17.4 + seed + 2 * place,
        "peak_memory_bytes": (30 + 2 * seed + place) << 20,
        "costs": {"all": {"training": training}},
    }
    names = {"task": task, "encoding": encoding, "seed": seed}
    record = RunRecord(**(fields | names | changed), headline=headline, settings_digest=digest)
    folder = root / "runs" / slug(task) / slug(encoding) / f"seed{seed}-{digest}"
    write_rows(folder / "rows.csv", rows, **names)
    if items:
        each = rows[0].value + np.linspace(-8, 8, 12)
        cell = Items("cell", headline.metric, each, groups=(RowKey(headline.subset),))
        write_items(folder / "items.parquet", [cell])
    write_record(folder, record)
    return folder


def put_baselines(
    root: Path, task: str, digest: str, values: Mapping[str, Sequence[Measurement]]
) -> None:
    rows = []
    for name, own in values.items():
        rows += [{"task": task, "encoding": name, "seed": 0} | asdict(row) for row in own]
    row_files.write_rows(baselines_path(root, task, digest), rows, CSV_COLUMNS)


def cells(place: int, seed: int) -> list[Measurement]:
    """Return the numbers of a map and of a gallery."""
    rows = []
    for length in (16, 8):
        for depth in (2, 0, 1):
            value = 40 + 10 * depth - length + noise(place, seed, depth)
            logit = 0.5 * depth - length / 10 + noise(place, seed) / 10
            at = (5, 1.0, length, f"{depth}")
            rows.append(Measurement("grid", "accuracy", value, *at))
            rows.append(Measurement("logits", "mean_logit", logit, *at))
    return rows


def make_curve(place: int, seed: int) -> LearningCurve:
    """Return a learning curve of five points."""
    steps = (100, 200, 300, 400, 450)
    return LearningCurve(
        step=steps,
        loss=tuple(800 / (step * (1 + place)) + seed / 8 for step in steps),
        lr=tuple((500 - step) / 250_000 for step in steps),
        grad_norm=tuple(1 + step / 200 + place / 4 + seed / 16 for step in steps),
        tokens_per_second=tuple(2000 + 10 * seed + step / 5 for step in steps),
    )
