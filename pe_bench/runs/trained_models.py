"""Models that `--keep` leaves in the folders of runs, in the format of transformers."""

import errno
import json
import shutil
from pathlib import Path

from pe_bench.decoder.model import Decoder
from pe_bench.errors import InputError
from pe_bench.pretrained.saving import write_folder
from pe_bench.pretrained.weight_files import find_tensors
from pe_bench.registry.plugins import Plugin
from pe_bench.results.record import RunRecord
from pe_bench.system.files import list_files, real_path, saving, slug
from pe_bench.system.sealed import DamagedError, set_aside
from pe_bench.task import Vocabulary
from pe_bench.text.tokenizer import Tokenizer

WHOLE = "model"
"""Subfolder of a run's folder with the model for all subsets, or with one folder per subset."""


def model_folder(run: Path, subset: str | None) -> Path:
    """Return the folder of a kept model.

    Args:
        run: folder of the run.
        subset: subset that the model was trained for; None: all subsets.
    """
    return run / WHOLE if subset is None else run / WHOLE / slug(subset)


def is_kept(folder: Path) -> bool:
    """Return whether a folder contains a kept model."""
    return (folder / "config.json").is_file()


def is_damaged(folder: Path) -> bool:
    """Return whether the configuration or a header of the weights of a kept model is unreadable."""
    try:
        json.loads((folder / "config.json").read_text(encoding="utf-8"))
        find_tensors(folder)
    except (InputError, OSError, ValueError):
        return True
    return False


def save_model(
    model: Decoder, folder: Path, encoding: Plugin, vocabulary: Vocabulary | Tokenizer
) -> None:
    """Write a model as a Hugging Face folder, completely or not at all.

    Args:
        model: the trained model.
        folder: folder for the model; nothing is done if it contains a kept model. A damaged one is
            moved aside.
        encoding: encoding of the model.
        vocabulary: vocabulary of the task.
    """
    if folder.exists():
        if is_kept(folder) and not is_damaged(folder):
            return
        set_aside(DamagedError(folder, "is incomplete or damaged"))
    aside = folder.with_name(f".{folder.name}.unfinished")
    shutil.rmtree(aside, ignore_errors=True)
    tokenizer = vocabulary if isinstance(vocabulary, Tokenizer) else None
    with saving(folder):
        aside.mkdir(parents=True)
    write_folder(model, aside, encoding, tokenizer)
    with saving(folder):
        aside.rename(folder)


def list_kept(record: RunRecord) -> dict[str, Path]:
    """Return the folders of the models that a run has kept, by subset; "" is for all subsets."""
    assert record.folder is not None
    kept = record.folder / WHOLE
    if is_kept(kept):
        return {"": kept}
    return {path.parent.name: path.parent for path in sorted(kept.glob("[!.]*/config.json"))}


def find_kept(record: RunRecord, subset: str | None = None) -> Path:
    """Return the folder of the model that a run has kept.

    Args:
        record: record of the run.
        subset: subset of the model; None: the run has only one model.

    Raises:
        InputError: there is no such model.
    """
    folders = list_kept(record)
    if not folders:
        raise InputError(f"{record.folder} has no model: repeat the command of the run with --keep")
    name = slug(subset or "")
    if name not in folders and (subset or len(folders) > 1):
        names = ", ".join(sorted(folders)) or "one for all"
        raise InputError(f"there are models of these subsets: {names}; write --subset NAME")
    return folders.get(name) or next(iter(folders.values()))


def copy_kept(record: RunRecord, folder: Path, subset: str | None = None) -> None:
    """Copy the model that a run has kept.

    Args:
        record: record of the run.
        folder: a new or empty folder.
        subset: subset of the model; None: the run has only one model.

    Raises:
        InputError: there is no such model, its files are damaged, or the folder has files already.
        SavingError: the copy cannot be written.
    """
    source = find_kept(record, subset)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} is not empty: give a new folder")
    try:
        files = list_files(source)
        assert record.folder is not None
        if not real_path(source).is_relative_to(real_path(record.folder)):
            raise OSError(errno.EINVAL, f"a link that leads out of {record.folder}", str(source))
    except OSError as error:
        raise InputError(f"{error.filename} is {error.strerror}: replace it with a file") from None
    if any(path.suffix == ".safetensors" for path in files):
        find_tensors(source)  # checks them
    with saving(folder):
        for path in files:
            copy = folder / path.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
