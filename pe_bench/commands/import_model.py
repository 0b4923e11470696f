"""`pe-bench import`: a GGUF file as a Hugging Face folder."""

from dataclasses import dataclass
from pathlib import Path

from pe_bench.commands.command import Command, OptionGroup
from pe_bench.commands.values import Values
from pe_bench.option_table import argument
from pe_bench.results.labels import plugin_name
from pe_bench.system.console import info
from pe_bench.system.program import program


@dataclass(frozen=True)
class ImportOptions:
    """The options of `pe-bench import`."""

    file: Path = argument("a GGUF file", "FILE")
    folder: Path = argument("a new folder", "DIR")


def main(values: Values) -> int:
    """Write the folder, and print how to use it."""
    from pe_bench.pretrained.gguf import import_gguf

    options = values.make(ImportOptions)
    checkpoint = import_gguf(options.file, options.folder)
    shape = checkpoint.model
    name = plugin_name(checkpoint.encoding)
    info(
        f"{shape.layers} layers of width {shape.width}, {shape.vocab_size:,} ids, trained on "
        f"{shape.train_length:,} tokens, encoding {checkpoint.encoding}"
    )
    info(f"{program()} run --from {options.folder} --encoding {name} --task ...")
    return 0


COMMAND = Command(
    name="import",
    main=main,
    help="a GGUF file as a Hugging Face folder",
    usage="pe-bench import FILE DIR",
    description="""\
Write the model and the tokenizer of a GGUF file, the format of llama.cpp, as a folder of
transformers, which `pe-bench run --from DIR` reads. Quantized weights become float32. The command
needs pip install 'pe-bench[gguf]'.""",
    groups=[OptionGroup(ImportOptions)],
)
