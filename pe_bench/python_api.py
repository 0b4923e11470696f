"""The Python API: encodings from specs, runs, and figures."""

import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pe_bench.commands.run import GROUPS, GridOptions, expand_like, make_grid
from pe_bench.commands.values import Values, signature, take_keywords
from pe_bench.errors import InputError
from pe_bench.registry import plugins

# Each function imports only the packages that it needs: figures do not need torch, and encodings
# do not need pandas.
if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from pe_bench.decoder.model import MakeEncoding
    from pe_bench.pretrained.inside import PeBenchForCausalLM


def load_encoding(spec: str) -> "MakeEncoding":
    """Return the function that makes an encoding: `load_encoding("tape")(config, layer)`.

    Args:
        spec: "rope", "rope:base=500000" or "./mine.py:size=4", as on the command line.

    Raises:
        InputError: unknown name or option, a value of the wrong type, or an import that fails.
    """
    make: MakeEncoding = plugins.load("encoding", spec).make
    return make


def put_encoding(model: Any, spec: str) -> "PeBenchForCausalLM":
    """Return a Llama, or another model of transformers, with another encoding.

    The result shares the parameters of the given model, and has the initial parameters of the
    encoding. Projections of GPT-2 and Phi-3, which are stored together or transposed, are copied.
    The result is trained, saved and used for generation like other models of transformers, but has
    no dropout. The encoding has the same rotation as the model, unless the spec gives another one:
    for example, the initial logits of a new `tape` are equal to the logits of a Llama.

    GPT-2 has learned positions. `learned` keeps them: its table is the weight `wpe`. Any other
    encoding replaces them, without `wpe`, and changes the logits until the model is trained.

    Args:
        model: `LlamaForCausalLM`, or a model of another family that `open_checkpoint` supports,
            such as `Qwen3ForCausalLM`, `Olmo2ForCausalLM` or `GPT2LMHeadModel`.
        spec: spec of the encoding, as on the command line.

    Raises:
        InputError: the decoder of pe-bench cannot represent the model, or the encoding does not fit
            it.
    """
    from pe_bench.pretrained.inside import wrap

    return wrap(model, spec)


def run(
    encodings: str | Iterable[str], tasks: str | Iterable[str] | None = None, **options: Any
) -> "pd.DataFrame":
    """Run every encoding on every task with every seed, as `pe-bench run` does.

    Runs that the results folder already has are not repeated. A run that fails causes a warning,
    and the others continue.

    Args:
        encodings, tasks: one spec or several; with `like`, no tasks stand for all of that folder.
        **options: the options of `pe-bench run` by name, with the same defaults: `seeds=[0, 1]`,
            `preset="small"`, `jobs=2`. None stands for the default. The values of these
            options differ from the command line:

            - `data`: folder with data for all tasks, or a mapping from task names to folders.
            - `train`, `pretrain`, `model`, `adapt`: changed values of the preset, such as
              `train={"steps": 20}`.
            - `tune`: True, or a search with options: `{"lr": [1e-3, 3e-3], "seeds": [1000]}`.
            - `origin`: called `--from` on the command line.

    Returns:
        One row per number and seed of these runs, with columns as in `read_results`.

    Raises:
        InputError: bad input, found before anything is trained.
    """
    from pe_bench.grid.grid import run_grid
    from pe_bench.reporting.frames import read_results, rows_of

    keywords = {"encodings": encodings, **options}
    if tasks is not None:
        keywords["tasks"] = tasks
    elif options.get("like") is None:
        raise InputError("run needs tasks, or the folder of finished runs as like")
    values = Values(take_keywords("run", OPTIONS, keywords))
    grids, problems = expand_like([values])
    outcomes = [outcome for grid in grids for outcome in run_grid(make_grid(grid))]
    for problem in problems:
        warnings.warn(problem, stacklevel=2)
    for outcome in outcomes:
        if outcome.status == "failed":
            reason = outcome.cause or " ".join(outcome.complaints)
            warnings.warn(f"{outcome.title} failed: {reason}", stacklevel=2)
    names = [outcome.folder.name for outcome in outcomes if outcome.folder]
    rows = read_results(grids[0].make(GridOptions).results) if names else rows_of([])
    return rows[rows["run"].isin(names)].reset_index(drop=True)


OPTIONS = [one for group in GROUPS for one in group.options]
run.__signature__ = signature(run, OPTIONS)  # type: ignore[attr-defined]


def draw_figures(results: Path | str = "results") -> "dict[str, Figure]":
    """Return the figures of a results folder's report, by file name.

    Runs that cannot be read are left out, with a warning on standard error.

    Raises:
        InputError: there is nothing to draw.
    """
    from pe_bench.reporting.figure_files import draw
    from pe_bench.reporting.tables import make_tables
    from pe_bench.results.reading import read_with_warnings
    from pe_bench.system.files import slug

    figures: dict[str, Figure] = {}
    tables = make_tables(read_with_warnings(Path(results)))
    for table in tables:
        for subset, figure in draw(table, tables).items():
            figures[f"{table.name}-{slug(subset)}".strip("-")] = figure
    if not figures:
        raise InputError(f"there are no finished runs in {results}: use pe_bench.run first")
    return figures
