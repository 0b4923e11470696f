"""One training phase with Lightning, alone or with other processes, that survives a kill.

Nothing here knows what is being benchmarked.
"""

import copy
import gc
import logging
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn

from pe_bench.batch import Batch
from pe_bench.config import TrainConfig
from pe_bench.decoder.model import Decoder
from pe_bench.system.console import info
from pe_bench.system.sealed import DamagedError, recall, set_aside
from pe_bench.train import adaptation_methods
from pe_bench.train.callbacks import Autosave, CheckpointFiles, Progress, Stream
from pe_bench.train.checkpoints import SUFFIX, read_checkpoint, write_checkpoint
from pe_bench.train.lightning_strategy import Together
from pe_bench.train.process_group import ALONE, Group
from pe_bench.train.training_module import TrainingModule
from pe_bench.train.training_result import Trained

# Its remarks on devices, logs and interruptions are printed elsewhere.
logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)

PRECISIONS = {"fp32": "32-true", "bf16": "bf16-mixed"}


def _alone(resumes: bool) -> AbstractContextManager[Group]:
    return nullcontext(ALONE)


def train(
    model: Decoder,
    batch: Callable[[int], Batch],
    config: TrainConfig,
    *,
    folder: Path,
    of: str,
    title: str,
    seed: int,
    device: str,
    precision: str,
    start: Callable[[], Mapping[str, Tensor]] | None = None,
    gather: Callable[[bool], AbstractContextManager[Group]] = _alone,
    loaded: bool = False,
    stop: Callable[[int, float], bool] | None = None,
) -> Trained:
    """Train a model in place, or load what an earlier call has trained.

    Args:
        model: with the weights to start from.
        batch: step -> data, a pure function.
        config: the phase.
        folder: holds `resume.safetensors` while training and `final.safetensors` after it.
        of: stands for all that decides the weights; files of something else are not read.
        title: of the progress bar.
        seed: of random numbers inside the model.
        device: "cpu" or "cuda".
        precision: a key of PRECISIONS.
        start: other weights to start from, called where nothing is trained yet.
        gather: lets other processes train with this one, from a checkpoint or not, by calling
            `follow`.
        loaded: a later call gives the same model again, with weights of somebody's: those that are
            not trained are in no file.
        stop: called now and then with the number of steps that are done and the mean loss of the
            last ones; True ends the training, whose model is then in no file.

    Raises:
        FloatingPointError: the loss is not finite any more.
    """
    final = folder / f"final{SUFFIX}"
    partly = loaded and bool(config.steps) and not adaptation_methods.trains_all(config)
    if partly:
        adaptation_methods.prepare(model, config, seed)
    kept = recall(lambda: _read(final, of, "weights", model, partly))
    if kept:
        model.load_state_dict(kept["weights"], strict=not partly)
        if partly:
            adaptation_methods.finish(model, config)
        return Trained.from_json(kept["trained"])
    _set_pickles_aside(folder)
    if start:
        model.load_state_dict(start())
    if not config.steps:  # an untrained model is made faster than it is read
        return TrainingModule(model, config, seed).trained()
    folder.mkdir(parents=True, exist_ok=True)
    if not partly:
        adaptation_methods.prepare(model, config, seed)
    resume = folder / f"resume{SUFFIX}"
    begun = recall(lambda: _read_resumable(resume, of, model, partly))
    if begun:
        info(f"{title}: goes on from step {begun['global_step']} of {config.steps}")
    with gather(bool(begun)) as group:
        saved = _Saved(resume, of, begun, partly)
        trained = _fit(model, batch, config, saved, title, seed, device, precision, group, stop)
    if trained.steps < config.steps:
        resume.unlink(missing_ok=True)
        return trained
    if not partly:
        adaptation_methods.finish(model, config)
    weights = adaptation_methods.saved_part(model.state_dict(), model, partly)
    write_checkpoint(final, {"weights": weights, "trained": trained.to_json()}, of=of)
    if partly:
        adaptation_methods.finish(model, config)
    if loaded:  # Lightning's objects refer to each other, and to a model that may be large
        gc.collect()
    resume.unlink(missing_ok=True)
    return trained


def follow(
    model: Decoder,
    batch: Callable[[int], Batch],
    config: TrainConfig,
    *,
    folder: Path,
    of: str,
    seed: int,
    device: str,
    precision: str,
    group: Group,
    resumes: bool,
    loaded: bool = False,
) -> None:
    """Train a model together with the process that called `train`, and write nothing.

    Args:
        model, batch, config, folder, of, seed, device, precision: as there.
        group: this process's place, not the first.
        resumes: go on from the checkpoint.
        loaded: as there.
    """
    adaptation_methods.prepare(model, config, seed)
    resume = folder / f"resume{SUFFIX}"
    partly = loaded and not adaptation_methods.trains_all(config)
    begun = _read_resumable(resume, of, model, partly) if resumes else None
    saved = _Saved(resume, of, begun, partly)
    _fit(model, batch, config, saved, "", seed, device, precision, group)


def _read_resumable(path: Path, of: str, model: Decoder, partly: bool) -> dict[str, Any]:
    return _read(path, of, "state_dict", nn.ModuleDict({"model": model}), partly)


def _read(
    path: Path, of: str, name: str, module: nn.Module, partly: bool = False
) -> dict[str, Any]:
    """Return a checkpoint whose weights, under a name, have the shapes of a module's.

    Args:
        path, of: as in `read_checkpoint`.
        name: under which it has the weights.
        module: of these weights.
        partly: it has those alone that are trained.

    Raises:
        FileNotFoundError: there is none.
        DamagedError: it cannot be used.
    """
    content = read_checkpoint(path, of=of)
    shapes = {key: tensor.shape for key, tensor in content[name].items()}
    expected = adaptation_methods.saved_part(module.state_dict(), module, partly)
    if shapes != {key: tensor.shape for key, tensor in expected.items()}:
        raise DamagedError(path, "is of a model of another shape")
    return content


def _set_pickles_aside(folder: Path) -> None:
    for name in ("final.pt", "final.json", "resume.ckpt"):
        if (folder / name).exists():
            set_aside(DamagedError(folder / name, "is of an earlier version, which kept pickles"))


@dataclass(frozen=True)
class _Saved:
    """A resumable checkpoint.

    Attributes:
        path: its file.
        of: what it belongs to.
        content: if it is there.
        partly: it has those weights alone that are trained.
    """

    path: Path
    of: str
    content: dict[str, Any] | None
    partly: bool


def _fit(
    model: Decoder,
    batch: Callable[[int], Batch],
    config: TrainConfig,
    saved: _Saved,
    title: str,
    seed: int,
    device: str,
    precision: str,
    group: Group,
    stop: Callable[[int, float], bool] | None = None,
) -> Trained:
    """Train a model in place; under "fsdp" only the first process has its weights then."""
    if not saved.content:
        group.spread(model)
    own = copy.deepcopy(model) if group.shards else model
    module = TrainingModule(own, config, seed, group, stop)
    module.strict_loading = not saved.partly
    module.model.recompute = config.recompute
    callbacks: list[Callback] = [Progress(title)] if group.rank == 0 else []
    callbacks.append(Autosave(saved.path, config.save_every, group))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning, module="lightning")
        warnings.filterwarnings("ignore", message=".*LeafSpec.*")
        # Losses are a view, which nothing changes in place.
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view")
        trainer = L.Trainer(
            accelerator="gpu" if device == "cuda" else device,
            devices=group.size,
            strategy=Together(group, module.model) if group.size > 1 else "auto",
            precision=PRECISIONS[precision],  # type: ignore[arg-type]  # a literal, checked above
            max_steps=config.steps,
            max_epochs=-1,
            logger=False,
            enable_checkpointing=False,
            enable_model_summary=False,
            enable_progress_bar=group.rank == 0,
            default_root_dir=saved.path.parent,
            callbacks=callbacks,
            plugins=[CheckpointFiles(saved.of, saved.content)],
        )
        try:
            path = saved.path if saved.content else None
            trainer.fit(module, Stream(batch, module), ckpt_path=path)
        except SystemExit as error:
            if isinstance(error.__context__, KeyboardInterrupt):  # what Lightning makes of Ctrl-C
                raise KeyboardInterrupt from None
            raise
    module.model.recompute = False
    if group.shards and group.rank == 0:
        model.load_state_dict(module.weights)
    return module.trained()
