"""Writes safetensors files."""

from collections.abc import Mapping
from pathlib import Path

import safetensors
import safetensors.torch
from torch import Tensor

from pe_bench.system.files import replacing


def write_tensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> None:
    """Write tensors and their metadata atomically.

    Raises:
        SavingError: the file could not be saved.
    """
    with replacing(path) as aside:
        try:
            safetensors.torch.save_file(dict(tensors), aside, dict(about))
        except safetensors.SafetensorError as error:  # such as a full disk
            raise OSError(str(error)) from error
