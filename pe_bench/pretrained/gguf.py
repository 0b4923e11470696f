"""Import of a GGUF file, the format of llama.cpp, as a Hugging Face folder."""

import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from pe_bench.errors import InputError
from pe_bench.pretrained.checkpoint import Checkpoint, open_checkpoint
from pe_bench.pretrained.llama_config import parse_config
from pe_bench.system.files import follow_umask, saving

MAGIC = b"GGUF"
PACKAGES = ("transformers", "gguf", "accelerate")
"""Packages that transformers needs for a GGUF file."""

OF_FILE = ("quantization_config", "_name_or_path")
"""Fields of a config that describe the GGUF file instead of the model."""


def import_gguf(file: Path, folder: Path) -> Checkpoint:
    """Write the model and the tokenizer of a GGUF file as a Hugging Face folder.

    Quantized weights become float32 without further loss.

    Args:
        file: the GGUF file.
        folder: a new or empty folder.

    Raises:
        InputError: a package is missing; the file cannot be read; the decoder does not support
            its model; or the folder is not empty.
        SavingError: the folder cannot be written.
    """
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise InputError(f"import needs {missing[0]}: run pip install 'pe-bench[gguf]'")
    try:
        with file.open("rb") as start:
            magic = start.read(len(MAGIC))
    except OSError as error:
        raise InputError(f"{file} cannot be read ({error.strerror}): give a GGUF file") from None
    if magic != MAGIC:
        raise InputError(f"{file} is not a GGUF file: it does not begin with {MAGIC.decode()}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} is not empty: give a new folder")
    model, tokenizer = _read(file)
    with saving(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}") as written:
            path = Path(written, "new")
            model.save_pretrained(path)
            tokenizer.save_pretrained(path)
            follow_umask(path)
            path.replace(folder)
    return open_checkpoint(folder)


def _read(file: Path) -> tuple[Any, Any]:
    """Return the model and the tokenizer of a file, as objects of transformers."""
    import transformers

    where = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
    transformers.utils.logging.disable_progress_bar()
    try:
        config = transformers.AutoConfig.from_pretrained(**where)
        parse_config(_without_file(config.to_dict()))
        read = transformers.AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
        tokenizer = transformers.AutoTokenizer.from_pretrained(**where)
    except InputError as error:
        raise InputError(f"{file}: {error}") from None
    except Exception as error:  # transformers and gguf raise no specific errors
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"transformers cannot read {file} ({reason})") from error
    # transformers refuses to save a model that was quantized, even after dequantization.
    with torch.device("meta"):
        model = type(read)(type(config).from_dict(_without_file(read.config.to_dict())))
    model.load_state_dict(read.state_dict(), assign=True)
    model.tie_weights()
    return model, tokenizer


def _without_file(config: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name not in OF_FILE}
