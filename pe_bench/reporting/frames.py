"""Rows and learning curves of finished runs as pandas frames."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pe_bench.errors import InputError
from pe_bench.results.labels import plugin_name
from pe_bench.results.learning_curves import OF_A_RUN, POINT
from pe_bench.results.measurement import CSV_COLUMNS
from pe_bench.results.metrics import Metric, find_metric
from pe_bench.results.reading import find_baselines, read_with_warnings
from pe_bench.results.record import RunRecord
from pe_bench.results.row_files import read_lines
from pe_bench.results.run_data import read_run_curves, read_run_lines, rows_path
from pe_bench.results.store import key_of, latest_copies
from pe_bench.stats.significance import student_quantile

# Columns that identify a number within a run.
NUMBER = ["subset", "length", "second_axis", "metric", "status"]

INTEGER_COLUMNS = ("seed", "n")
FLOAT_COLUMNS = ("length", "value", "stderr", "ci_low", "ci_high")


def read_results(results: Path | str) -> pd.DataFrame:
    """Return the numbers of all finished runs in a results folder, one row each.

    Args:
        results: the folder given to `pe-bench run --results`.

    Returns:
        The columns of rows.csv (`pe_bench.results.measurement.CSV_COLUMNS`), and two columns from
        the run's record: `settings`, a digest of everything that decides its numbers except
        encoding and seed, and `parameters`. Compare only numbers with equal `settings`.

    A run that cannot be read is left out, with a warning on standard error.

    Raises:
        InputError: there is no such folder, or a file of an earlier version cannot be read.
    """
    return rows_of(read_with_warnings(Path(results)))


def rows_of(records: Iterable[RunRecord]) -> pd.DataFrame:
    """Return the numbers of finished runs, see `read_results`."""
    frames = [
        read_rows([record]).assign(settings=record.settings_digest, parameters=record.parameters)
        for record in finished_runs(records)
    ]
    if not frames:
        return pd.DataFrame(columns=[*CSV_COLUMNS, "settings", "parameters"])
    return pd.concat(frames, ignore_index=True)


def read_curves(results: Path | str) -> pd.DataFrame:
    """Return the learning curves of all finished runs in a results folder.

    Args:
        results: the folder given to `pe-bench run --results`, or an export.

    Returns:
        One row per point, about 200 for each training. Columns: encoding, task, seed, and

        settings: digest of everything but encoding and seed, as in `read_results`.
        phase: "task", or "start" for the training of the model that the task starts from.
        subset: the subset that the model was trained for; "" if it was trained for all.
        step: optimizer steps done at the end of the interval that the point summarizes.
        loss: mean training loss over the interval, nats per target.
        lr: learning rate of the interval's last step.
        grad_norm: mean norm of the gradient over the interval, before clipping.
        tokens_per_second: throughput, padding included.

        Runs of versions that kept no curves, and runs without training, have no rows. A run that
        cannot be read is left out, with a warning on standard error.

    Raises:
        InputError: a file cannot be read.
    """
    columns = ["encoding", "task", "seed", "settings", *OF_A_RUN, *POINT]
    frames = []
    for record in finished_runs(read_with_warnings(Path(results))):
        for (phase, subset), curve in read_run_curves(record).items():
            points = pd.DataFrame(asdict(curve)).assign(
                encoding=record.encoding,
                task=record.task,
                seed=record.seed,
                settings=record.settings_digest,
                phase=phase,
                subset=subset,
            )
            frames.append(points[columns])
    if not frames:
        return pd.DataFrame(columns=columns)
    return pd.concat(frames, ignore_index=True)


def tidy_rows(records: Sequence[RunRecord]) -> pd.DataFrame:
    """Return the numbers of the finished runs among `records`, with columns from their records.

    Returns:
        One row per number, with the columns of docs/results.md: the columns of rows.csv, unit and
        direction of the metric, and fields of the run's record; empty without finished runs.

    Raises:
        InputError: a file cannot be read.
    """
    shown = {key_of(record) for record in finished_runs(records)}
    done = latest_copies(record for record in records if record.status == "done")
    lines: list[list[str]] = []
    metrics: list[Metric] = []
    headline: list[bool] = []
    runs: list[dict[str, Any]] = []
    counts: list[int] = []  # rows of each run
    for record in done:
        own = read_run_lines(record)
        lines += own
        metrics += _find_metrics(record, own)
        headline += _find_headline(record, own)
        runs.append(_describe_run(record) | {"in_reports": key_of(record) in shown})
        counts.append(len(own))
    if not lines:
        return pd.DataFrame()
    rows = _make_frame(lines, "the rows of a run")
    # One frame for all runs, because a frame for each run takes milliseconds. The columns of runs
    # are of objects until all values are known: a count of parameters may be missing.
    about = pd.DataFrame(runs, dtype=object).loc[np.repeat(range(len(runs)), counts)]
    about = about.reset_index(drop=True).infer_objects()
    better = [metric.higher_is_better for metric in metrics]
    rows = rows.assign(
        run=about.pop("run"),
        unit=[metric.unit for metric in metrics],
        higher_is_better=pd.Series(better, dtype="boolean"),
        headline=headline,
    )
    rows = pd.concat([rows, about], axis=1)
    return rows.astype({"length": "Int64"})  # a float would be written as 1e+06


def _find_metrics(record: RunRecord, lines: Sequence[Sequence[str]]) -> list[Metric]:
    """Return the metric of each row of a run."""
    column = CSV_COLUMNS.index("metric")
    names = {line[column] for line in lines}
    metrics = {name: find_metric(name, record.metrics) for name in names}
    return [metrics[line[column]] for line in lines]


def _find_headline(record: RunRecord, lines: Sequence[Sequence[str]]) -> list[bool]:
    """Return for each row of a run whether it is the headline."""
    assert record.headline is not None  # every finished run has one
    names = ("subset", "metric", "length", "second_axis")
    columns = [CSV_COLUMNS.index(name) for name in names]
    wanted = [record.headline.subset, record.headline.metric, "", ""]
    found = []
    for line in lines:
        cells = [line[column] for column in columns]
        found.append(cells == wanted)
    return found


def _describe_run(record: RunRecord) -> dict[str, Any]:
    """Return the columns of a run's record."""
    return {
        "run": record.name,
        "settings": record.settings_digest,
        "encoding_version": record.encoding_version,
        "tuned": record.tuning is not None,
        "parameters": record.parameters,
        "seconds": record.seconds,
        "device": record.environment.get("device"),
        "commit": (record.environment.get("git") or {}).get("commit"),
        "finished": record.finished,
    }


def finished_runs(records: Iterable[RunRecord]) -> list[RunRecord]:
    """Return the finished runs, one for each settings, encoding and seed.

    The latest run counts, together with all runs of the same code version. The seeds of a mean
    have therefore run the same code, even if an edit was reverted later.
    """
    done = latest_copies(record for record in records if record.status == "done")
    done.sort(key=lambda record: record.age)
    versions = {(r.settings_digest, r.encoding): r.encoding_version for r in done}  # the latest
    found: dict[tuple[str, str, int], RunRecord] = {}
    for record in done:
        group = (record.settings_digest, record.encoding)
        if record.encoding_version == versions[group]:
            found[*group, record.seed] = record
    return list(found.values())


def describe_unused_runs(
    records: Iterable[RunRecord], encodings: Sequence[str] = (), tasks: Sequence[str] = ()
) -> list[str]:
    """Return the runs without a result and those of earlier code, a line for each encoding.

    Args:
        records: all records; damaged ones are reported when they are read.
        encodings: only those of these encodings; empty: all.
        tasks: only those of these tasks, with or without options; empty: all.
    """
    records = list(records)
    latest = {(r.settings_digest, r.encoding): r.encoding_version for r in finished_runs(records)}
    reasons: dict[str, Counter[str]] = {}
    for record in records:
        if record.status == "damaged" or (encodings and record.encoding not in encodings):
            continue
        if tasks and not {record.task, plugin_name(record.task)} & {*tasks}:
            continue
        reason: str = record.status
        if record.status == "done":
            if latest[record.settings_digest, record.encoding] == record.encoding_version:
                continue
            reason = "of an earlier version of the code"
        where = f"{record.encoding} on {record.task}"
        reasons.setdefault(where, Counter())[reason] += 1
    lines = []
    for where, counts in reasons.items():
        runs = ", ".join(f"{number} {reason}" for reason, number in counts.items())
        lines.append(f"runs of {where} are left out: {runs}")
    return lines


def read_rows(records: Sequence[RunRecord]) -> pd.DataFrame:
    """Return the concatenated rows of runs with the columns of rows.csv.

    Raises:
        InputError: a file is missing or malformed.
    """
    lines = [line for record in records for line in read_run_lines(record)]
    return _make_frame(lines, f"{rows_path(records[0])} or a file of its table")


def read_baselines(record: RunRecord) -> pd.DataFrame:
    """Return the rows of the baselines under a run's settings; empty if there are none.

    Raises:
        InputError: the file is malformed.
    """
    path = find_baselines(record)
    if path is None:
        return pd.DataFrame()
    return _make_frame(read_lines(path), str(path))


def _make_frame(lines: Sequence[Sequence[str]], source: str) -> pd.DataFrame:
    """Return lines of `row_files.read_lines` as a frame.

    Raises:
        InputError: a cell of a numeric column does not hold a number.
    """
    rows = pd.DataFrame(lines, columns=list(CSV_COLUMNS), dtype=str)
    try:
        for name in FLOAT_COLUMNS:
            rows[name] = rows[name].replace("", "nan").astype(float)
        rows["seed"] = rows["seed"].replace("", "0")  # baselines have no seed
        return rows.astype(dict.fromkeys(INTEGER_COLUMNS, int))
    except ValueError as error:
        raise InputError(f"cannot read {source} ({error}): remove the damaged file") from None


def compute_means(
    rows: pd.DataFrame, baselines: pd.DataFrame, metrics: Mapping[str, Metric]
) -> pd.DataFrame:
    """Return the means of encodings and of baselines in one frame, see `mean_over_seeds`.

    Args:
        rows: rows of all runs of a table.
        baselines: rows of the baselines under the same settings; may be empty.
        metrics: the task's own metrics.

    Returns:
        The columns of `mean_over_seeds`, and `baseline`, which is true for rows of baselines.
    """
    scores = mean_over_seeds(rows, metrics).assign(baseline=False)
    if baselines.empty:
        return scores
    reference = mean_over_seeds(baselines, metrics).assign(baseline=True)
    return pd.concat([scores, reference], ignore_index=True)


def mean_over_seeds(rows: pd.DataFrame, metrics: Mapping[str, Metric]) -> pd.DataFrame:
    """Return one row per encoding and number, averaged over seeds.

    Args:
        rows: rows of runs, or of baselines.
        metrics: the task's own metrics.

    Returns:
        Columns: encoding, the columns of `NUMBER` (the status is "partial" or "ranked"), and

        mean, sd: mean and standard deviation over all seeds. sd is nan for a single seed; both
            are nan if a seed has no number.
        ci_low, ci_high: 95 % interval of the mean over seeds (Student's t), within the possible
            values, or over items if there is a single seed.
        seeds: number of seeds.
        learned_seeds: number of seeds whose status is not "not_learned".
        learned_mean, learned_sd: mean and standard deviation over the seeds that learned.
        n: number of items of one seed.
    """
    learned = rows["status"] != "not_learned"
    marked = rows.assign(
        status=rows["status"].where(learned, "ranked"),
        has_learned=learned.astype(int),
        learned_value=rows["value"].where(learned),
    )
    groups = marked.groupby(["encoding", *NUMBER], dropna=False, sort=False)
    scores = groups.agg(
        mean=("value", "mean"),
        sd=("value", "std"),
        ci_low=("ci_low", "first"),
        ci_high=("ci_high", "first"),
        seeds=("seed", "nunique"),
        learned_seeds=("has_learned", "sum"),
        learned_mean=("learned_value", "mean"),
        learned_sd=("learned_value", "std"),
        n=("n", "first"),
        known=("value", "count"),
        rows=("value", "size"),
    ).reset_index()
    incomplete = scores["known"] < scores["rows"]
    scores = scores.drop(columns=["known", "rows"])
    scores.loc[incomplete, ["mean", "sd"]] = math.nan
    several = scores["seeds"] > 1
    quantiles = {n: student_quantile(n - 1) for n in set(scores["seeds"][several])}
    half = scores["seeds"].map(quantiles) * scores["sd"] / scores["seeds"] ** 0.5
    limited = scores["metric"].isin(_find_scores_in_percent(scores["metric"].unique(), metrics))
    for column, end in (("ci_low", scores["mean"] - half), ("ci_high", scores["mean"] + half)):
        possible = end.where(~limited, end.clip(0, 100))
        scores[column] = scores[column].where(~several, possible)
    return scores


def _find_scores_in_percent(names: Iterable[str], metrics: Mapping[str, Metric]) -> list[str]:
    """Return the metrics whose values are from 0 to 100 %; an error rate can be above 100 %."""
    found = []
    for name in names:
        metric = find_metric(name, metrics)
        if metric.is_percent and metric.higher_is_better:
            found.append(name)
    return found
