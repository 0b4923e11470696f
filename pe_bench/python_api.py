"""The commands as functions: what `import pe_bench` offers besides models."""

import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pe_bench.errors import InputError
from pe_bench.registry import plugins

if (
    TYPE_CHECKING
):  # each function imports what it needs: pictures need no torch, encodings no pandas
    import pandas as pd
    from matplotlib.figure import Figure

    from pe_bench.decoder.model import MakeEncoding
    from pe_bench.pretrained.inside import PeBenchForCausalLM
    from pe_bench.runs.tuning import Tuning


def load_encoding(spec: str) -> "MakeEncoding":
    """Return what makes the encoding of a spec: `load_encoding("tape")(config, layer)`.

    Args:
        spec: "rope", "rope:base=500000" or "./mine.py:size=4", as on the command line.

    Raises:
        InputError: unknown name or option, a value of the wrong type, a file that does not import.
    """
    make: MakeEncoding = plugins.load("encoding", spec).make
    return make


def put_encoding(llama: Any, spec: str) -> "PeBenchForCausalLM":
    """Return a Llama of transformers with another encoding in it.

    It has the parameters of the one given, no copies, and those that the encoding starts with; it
    trains, generates and is saved as models of transformers are. The encoding rotates as the
    Llama does where the spec says nothing else: a new `tape` begins with the Llama's logits.

    Args:
        llama: `LlamaForCausalLM`, or that of Mistral or Qwen2.
        spec: of the encoding, as on the command line.

    Raises:
        InputError: a model that this suite's decoder cannot be, or an encoding that does not fit.
    """
    from pe_bench.pretrained.inside import wrap

    return wrap(llama, spec)


def run(
    encodings: str | Iterable[str],
    tasks: str | Iterable[str],
    *,
    seeds: int | Iterable[int] = 0,
    preset: str = "quick",
    protocol: str = "strict",
    results: Path | str = "results",
    data: Path | str | Mapping[str, Path | str] | None = None,
    subsets: Iterable[str] | None = None,
    tokenizer: str | None = None,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    precision: Literal["auto", "fp32", "bf16"] = "auto",
    train: Mapping[str, Any] | None = None,
    pretrain: Mapping[str, Any] | None = None,
    model: Mapping[str, Any] | None = None,
    origin: str | None = None,
    adapt: Mapping[str, Any] | None = None,
    tune: bool | Mapping[Literal["lr", "seeds"], Iterable[Any]] = False,
    keep: bool = False,
    jobs: int | None = None,
    devices: int = 1,
    strategy: Literal["auto", "ddp", "fsdp"] = "auto",
) -> "pd.DataFrame":
    """Run every encoding on every task under every seed, as `pe-bench run` does.

    What the results folder has already is not run again. A run that fails is a warning, and the
    others go on.

    Args:
        encodings, tasks: one spec or several.
        seeds: one or several.
        preset, protocol, tokenizer, device, precision: as on the command line.
        results: folder to write to.
        data: folder with data for the tasks, or a folder for each task's name.
        subsets: subsets of the task to run; None: all, or those that the preset chooses.
        tune: choose the learning rate of every encoding; `{"lr": [1e-3, 3e-3], "seeds": [1000]}`:
            from these, with models of these seeds.
        keep: leave the trained models in the folders of their runs.
        jobs: runs at once, in processes with one thread each; None: one after the other, here.
        devices: processes that train each run together, each on a device of its own.
        strategy: of theirs, as on the command line.
        train, pretrain, model: changed values of the preset: `train={"steps": 20}`.
        origin: encoding whose trained models the others go on from, `--from` on the command line.
        adapt: how they go on: `adapt={"steps": 100, "method": "lora"}`; None: not at all.

    Returns:
        One row per number and seed of these runs, the columns as in `read_results`.

    Raises:
        InputError: bad input; nothing has been trained.
    """
    import torch

    from pe_bench.commands.device import find_device, find_precision
    from pe_bench.grid.execution import ExecutionOptions
    from pe_bench.grid.grid import run_grid
    from pe_bench.reporting.frames import read_results
    from pe_bench.runs.options import RunOptions

    device_type = find_device(device, preset)
    options = RunOptions(
        preset=preset,
        protocol=protocol,
        tokenizer=tokenizer,
        precision=find_precision(precision, device_type, preset),
        data=_data(data),
        subsets=tuple(subsets) if subsets else None,
        train=dict(train or {}),
        pretrain=dict(pretrain or {}),
        model=dict(model or {}),
        origin=origin,
        adapt=dict(adapt or {}),
        tune=_tuning(tune),
        keep=keep,
    )
    torch.set_flush_denormal(True)  # as the command does, so that the numbers are the same
    outcomes = run_grid(
        options,
        _several(encodings),
        _several(tasks),
        [seeds] if isinstance(seeds, int) else list(seeds),
        results=Path(results),
        device=device_type,
        how=ExecutionOptions(jobs=jobs, devices=devices, strategy=strategy),
    )
    for outcome in outcomes:
        if outcome.status == "failed":
            reason = outcome.cause or " ".join(outcome.complaints)
            warnings.warn(f"{outcome.title} failed: {reason}", stacklevel=2)
    names = [outcome.folder.name for outcome in outcomes if outcome.folder]
    rows = read_results(results)
    return rows[rows["run"].isin(names)].reset_index(drop=True)


def draw_figures(results: Path | str = "results") -> "dict[str, Figure]":
    """Return the report's pictures of a results folder as matplotlib figures, by file name.

    Raises:
        InputError: there is nothing to draw.
    """
    from pe_bench.reporting.pictures import draw
    from pe_bench.reporting.tables import read_tables
    from pe_bench.system.files import slug

    figures: dict[str, Figure] = {}
    tables = read_tables(results)
    for table in tables:
        for subset, figure in draw(table, tables).items():
            figures[f"{table.name}-{slug(subset)}".strip("-")] = figure
    if not figures:
        raise InputError(f"there are no finished runs in {results}: use pe_bench.run first")
    return figures


def _several(specs: str | Iterable[str]) -> list[str]:
    return [specs] if isinstance(specs, str) else list(specs)


def _tuning(tune: bool | Mapping[Any, Iterable[Any]]) -> "Tuning | None":
    from pe_bench.runs.tuning import SEEDS, Tuning

    if not tune:
        return None
    given = {} if tune is True else dict(tune)
    wrong = [name for name in given if name not in ("lr", "seeds")]
    if wrong:
        raise InputError(f"tune has no '{wrong[0]}'; it has lr, seeds")
    return Tuning(tuple(given.get("lr", ())), tuple(given.get("seeds", SEEDS)))


def _data(data: Path | str | Mapping[str, Path | str] | None) -> dict[str, Path]:
    if data is None:
        return {}
    if isinstance(data, Mapping):
        return {name: Path(folder) for name, folder in data.items()}
    return {"": Path(data)}
