"""`pe-bench checkpoint`: a trained model as a Hugging Face folder."""

from dataclasses import dataclass
from pathlib import Path

from pe_bench.commands.command import Command, OptionGroup, results_option
from pe_bench.commands.values import Values
from pe_bench.option_table import argument, option
from pe_bench.system.console import info


@dataclass(frozen=True)
class CheckpointOptions:
    """The options of `pe-bench checkpoint`."""

    run: str = argument("folder of a run, or encoding/task/seed", "RUN")
    folder: Path = argument("a new folder", "DIR")
    subset: str | None = option(
        None, "subset of the model, if each subset has its own", metavar="NAME"
    )
    results: Path = results_option("results folder with encoding/task/seed; default: ./results")


def main(values: Values) -> int:
    """Copy the model of a run, and print how to load it."""
    from pe_bench.pretrained.rotation import names_only_shipped
    from pe_bench.pretrained.saving import MODELING
    from pe_bench.results.store import find_run
    from pe_bench.runs.trained_models import copy_kept

    options = values.make(CheckpointOptions)
    record = find_run(options.run, options.results)
    copy_kept(record, options.folder, options.subset)
    more = ""
    if (options.folder / MODELING).exists():
        more = ", trust_remote_code=True"
        spec = (record.adaptation or {}).get("encoding", record.encoding)
        if not names_only_shipped(spec):
            more += f', encoding_spec="path/to/{spec}"'
    info(f'AutoModelForCausalLM.from_pretrained("{options.folder}"{more})')
    return 0


COMMAND = Command(
    name="checkpoint",
    main=main,
    help="a trained model as a Hugging Face folder",
    usage="pe-bench checkpoint RUN DIR [options]",
    description="""\
Copy the model of a run with --keep to a folder that transformers loads. If a Llama, SmolLM3,
Mistral, Gemma 3 or another model of transformers computes the same, it is saved as that model.
Otherwise the folder has code that needs trust_remote_code=True and an installed pe-bench.""",
    groups=[OptionGroup(CheckpointOptions)],
)
