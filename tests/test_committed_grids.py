"""Every committed folder has the grid file that makes its runs."""

from dataclasses import replace
from itertools import product

import pytest
from helpers import some_slow
from test_committed import FOLDERS, FROM_CHECKPOINTS, RESULTS

from pe_bench.cli import COMMANDS
from pe_bench.commands.parser import parse
from pe_bench.commands.run import make_grid
from pe_bench.grid import plan as planning
from pe_bench.grid.execution import ExecutionOptions
from pe_bench.grid.spec import GridSpec
from pe_bench.results.record import RunRecord
from pe_bench.results.store import read_records
from pe_bench.runs.run import Run

Cell = tuple[str, str, int, str, str, int, int, float | None, tuple[int, ...]]
"""Task, encoding, seed, preset, protocol, layers, width, a given rate, and seeds of a search."""


def plan(spec: GridSpec) -> list[Run]:
    """Return the runs of a grid that can be run."""
    made = planning.make_plan(replace(spec, execution=ExecutionOptions(dry_run=True)))
    return [planned.run for planned in made.runs if planned.skip is None]


def of_run(run: Run) -> Cell:
    context = run.resolved.task.context
    tuning = run.resolved.tuning
    return (
        run.resolved.label,
        run.encoding.label,
        run.seed,
        context.preset,
        context.protocol,
        run.resolved.model.layers,
        run.resolved.model.width,
        None if tuning else run.resolved.task.train.lr,
        tuning.seeds if tuning else (),
    )


def of_record(record: RunRecord) -> Cell:
    tune = record.settings.get("tune")
    return (
        record.task,
        record.encoding,
        record.seed,
        record.preset,
        record.protocol,
        record.settings["model"]["layers"],
        record.settings["model"]["width"],
        None if tune else record.settings["train"]["lr"],
        tuple(tune["seeds"]) if tune else (),
    )


@pytest.mark.parametrize("folder", some_slow(FOLDERS, []))
def test_the_grid_beside_results_makes_their_runs(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = RESULTS / folder / "grid.toml"
    assert path.exists(), f"{folder}: write grid.toml, the grid of its runs"
    monkeypatch.setattr(planning, "describe_depths", lambda *_: [])  # takes most of the time
    _, grids = parse(COMMANDS, ["run", str(path)])
    measured = {of_record(record) for record in read_records(RESULTS / folder)}
    planned: set[Cell] = set()
    for grid in grids:
        runs = plan(make_grid(grid))
        planned |= {of_run(run) for run in runs}
        for task in {run.resolved.label for run in runs}:
            cells = {of_run(run) for run in runs if run.resolved.label == task}
            # A grid may still be running, task by task.
            assert not cells & measured or cells <= measured, f"{folder}: {task} is incomplete"
    assert measured <= planned, f"{folder}: {sorted(measured - planned)[:3]} are in no grid"


@pytest.mark.parametrize("folder", FROM_CHECKPOINTS)
def test_the_grid_beside_results_lists_their_runs_from_a_checkpoint(folder: str) -> None:
    path = str(RESULTS / folder / "grid.toml")
    _, grids = parse(COMMANDS, ["run", path, "--device", "cpu"])  # some are for a GPU
    records = read_records(RESULTS / folder)
    measured = set()
    for one in records:
        assert one.adaptation is not None
        config = one.adaptation["config"]
        method = str(config["method"]), str(config.get("also"))
        measured.add((one.task, one.adaptation["encoding"], one.seed, method))
    planned: set[tuple[str, str, int, tuple[str, str]]] = set()
    for grid in grids:
        spec = make_grid(grid)
        assert {(one.adaptation or {})["from"] for one in records} == {spec.options.origin}
        adapt = spec.options.adapt
        method = str(adapt.get("method", "full")), str(adapt.get("also"))
        cells = set(product(spec.tasks, spec.encodings, spec.seeds, [method]))
        assert not cells & measured or cells <= measured, f"{folder}: a grid is incomplete"
        planned |= cells
    assert measured <= planned
