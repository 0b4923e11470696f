"""The code that is committed with the results measures the same settings."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers import some_slow

from pe_bench.config import AdaptConfig, ModelConfig
from pe_bench.registry import plugins
from pe_bench.reporting import known_problems
from pe_bench.reporting.sizes import SHAPE
from pe_bench.results.identity import digest, without_defaults
from pe_bench.results.layout import REFERENCES
from pe_bench.results.record import RunRecord
from pe_bench.results.store import read_records
from pe_bench.runs import baselines
from pe_bench.runs.adaptation import _deciding, continue_from_origin
from pe_bench.runs.options import RunOptions
from pe_bench.runs.resolve import resolve
from pe_bench.runs.tuning import Tuning

RESULTS = Path(__file__).parents[1] / "results"
OTHER_DATA = ["ruler-2456ddca", "perplexity-2c227030"]  # not made any more
FROM_CHECKPOINTS = ["pretrained"]  # the models that these runs start from are not at hand
ALL = {path.name for path in RESULTS.iterdir() if (path / "leaderboard.md").exists()}
FOLDERS = sorted(ALL - {*FROM_CHECKPOINTS})


def exported(folder: str) -> list[RunRecord]:
    """Return a record for each table of a folder."""
    tables = {record.settings_digest: record for record in read_records(RESULTS / folder)}
    return list(tables.values())


def without_text(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings without the fingerprint of Python's sources, which differ by version.

    New config fields with default values are left out as well.
    """
    found = {name: value for name, value in without_defaults(settings).items() if name != "data"}
    if settings.get("start"):
        found["start"] = without_text(settings["start"])
    return found


def known(settings: Mapping[str, Any]) -> Any:
    """Return settings in the format of files, without defaults."""
    found = without_text(without_defaults(settings))
    return json.loads(json.dumps(found))


def other_size(record: RunRecord) -> dict[str, Any]:
    """Return the size of a model if it is not that of the preset (results/sizes, results/tape)."""
    preset = plugins.load("task", record.task).cls.presets[record.preset]
    shape = preset.model or ModelConfig()
    recorded = record.settings["model"]
    return {name: recorded[name] for name in SHAPE if recorded[name] != getattr(shape, name)}


def other_training(record: RunRecord) -> dict[str, Any]:
    """Return learning rates and steps of a run if they are not the preset's (results/tape)."""
    preset = plugins.load("task", record.task).cls.presets[record.preset]
    recorded = record.settings["train"]
    names = ("lr", "encoding_lr_factor", "steps")
    known = {name: recorded[name] for name in names if name in recorded}  # by earlier versions
    return {name: value for name, value in known.items() if value != getattr(preset.train, name)}


@pytest.mark.parametrize("folder", some_slow(FOLDERS, ["quick"]))
def test_a_committed_table_is_what_the_code_makes(folder: str, tmp_path: Path) -> None:
    records = exported(folder)
    assert records
    for record in records:
        if known_problems.find(record.settings_digest):
            continue  # its task has changed since
        tune = record.settings.get("tune")
        options = RunOptions(
            preset=record.preset,
            protocol=record.protocol,
            cache=tmp_path,
            tune=Tuning.from_settings(tune) if tune else None,
            model=other_size(record) if folder in ("sizes", "tape") else {},
            train=other_training(record) if folder == "tape" else {},
        )
        made = resolve(options, record.task)
        if record.adaptation is not None:
            origin = plugins.load("encoding", record.adaptation["from"])
            made = continue_from_origin(made, origin, replace(options, origin=origin.label))
        if "conditions" in record.settings:
            made = made.with_conditions(record.settings["conditions"])
        stale = f"{folder}: {record.task} was measured under other settings, measure it again"
        assert known(made.settings) == known(record.settings), stale
        # The sources of Python, which differ by version, were the default corpus of perplexity.
        reads_text = "stdlib" in str(record.data)
        assert reads_text or made.digest() == record.settings_digest, stale


@pytest.mark.parametrize("folder", sorted(ALL))
def test_committed_baselines_are_of_the_present_version(folder: str) -> None:
    for path in sorted((RESULTS / folder / REFERENCES).glob("*.csv")):
        if path.stem in OTHER_DATA:
            continue
        sealed = path.with_suffix(".json")
        assert sealed.exists(), f"{folder}: {path.stem} was measured before versions existed"
        version = json.loads(sealed.read_text(encoding="utf-8")).get("version")
        assert version == baselines.VERSION, f"{folder}: measure the baselines {path.stem} again"


@pytest.mark.parametrize("folder", some_slow(FOLDERS, ["scrolls"]))
def test_committed_runs_are_of_the_encodings_as_they_are(folder: str) -> None:
    for record in read_records(RESULTS / folder):
        going_on = record.adaptation or {"encoding": record.encoding}
        labels = [going_on["encoding"], *([going_on["from"]] if "from" in going_on else [])]
        versions = [plugins.load("encoding", label).version for label in labels]
        config = going_on.get("config", {})
        if config.get("steps"):
            versions.append(digest(_deciding(AdaptConfig(**config))))
        found = record.encoding_version.split("<")
        assert found == versions, f"{folder}: {' or '.join(labels)} has changed"


@pytest.mark.parametrize("folder", FROM_CHECKPOINTS)
def test_runs_from_checkpoints_are_of_the_plugins_as_they_are(folder: str) -> None:
    for record in read_records(RESULTS / folder):
        assert record.adaptation is not None
        encoding = plugins.load("encoding", record.adaptation["encoding"])
        task = plugins.load("task", record.task, record.preset)
        assert record.encoding_version.partition("<")[0] == encoding.version, encoding.label
        assert record.settings["versions"]["task"] == task.version, task.label
