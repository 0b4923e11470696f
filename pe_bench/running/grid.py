"""The grid: plan, then one run after the other; whatever fails, the rest goes on."""

from collections.abc import Sequence
from pathlib import Path

from pe_bench.errors import InputError
from pe_bench.running.options import RunOptions
from pe_bench.running.plan import PlannedRun, make_plan
from pe_bench.running.references import write_references
from pe_bench.running.run import Busy, Outcome
from pe_bench.system.console import info, warn


def run_grid(
    options: RunOptions,
    encodings: Sequence[str],
    tasks: Sequence[str],
    seeds: Sequence[int] = (0,),
    *,
    results: Path = Path("results"),
    device: str = "cpu",
) -> list[Outcome]:
    """Run every encoding on every task under every seed; failures are recorded.

    Args:
        options: common to all runs.
        encodings, tasks: specs; "all" stands for every shipped one.
        seeds: of weights, batches and evaluation.
        results: folder to write to.
        device: "cpu" or "cuda".

    Returns:
        One outcome per run, and one per task or subset whose data are missing.

    Raises:
        InputErrors: bad input, before anything is trained.
        SavingError: a result could not be written.
    """
    plan = make_plan(options, encodings, tasks, seeds, results=results, device=device)
    outcomes = plan.outcomes
    busy: list[PlannedRun] = []
    for number, planned in enumerate(plan.runs, 1):
        info(f"[{number}/{len(plan.runs)}] {planned.run.title}")
        try:
            outcomes.append(_execute(planned))
        except Busy:
            info("another process is working on it: left for the end")
            busy.append(planned)
    for planned in busy:
        info(f"waiting for another process: {planned.run.title}")
        outcomes.append(_execute(planned, wait=True))
    return outcomes


def _execute(planned: PlannedRun, *, wait: bool = False) -> Outcome:
    """Do a run, or record that it is skipped.

    Raises:
        Busy: another process is working on it, and `wait` is False.
    """
    run = planned.run
    try:
        if planned.skip is None:
            outcome = run.execute(wait=wait)
            if outcome.status == "done":
                write_references(run.resolved, run.results)
            return outcome
        return run.skip(planned.skip, complain=planned.named)
    except InputError as error:
        return Outcome(run.title, "failed", (warn(f"{run.title}: {error}"),))
