"""One training phase with Lightning: steps, schedule, progress, checkpoints that survive a kill.

Nothing here knows what is being benchmarked.
"""

import copy
import gc
import logging
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback, ProgressBar
from torch import Tensor, nn

from pe_bench.config import IGNORE, TrainConfig
from pe_bench.decoder.losses import scored_tokens
from pe_bench.decoder.model import Decoder
from pe_bench.running import methods
from pe_bench.running.checkpoints import (
    SUFFIX,
    CheckpointFiles,
    read_checkpoint,
    write_checkpoint,
)
from pe_bench.running.group import Group, Together, whole
from pe_bench.system import environment
from pe_bench.system.console import Bar, info, progress, warn
from pe_bench.system.sealed import DamagedError, recall, set_aside
from pe_bench.task import Batch

# Its remarks on devices, logs and interruptions are printed elsewhere.
logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)

VERSION = 1
"""Part of every run's settings: raise it when the same batches train another model."""

PRECISIONS = {"fp32": "32-true", "bf16": "bf16-mixed"}
ALONE = Group()


def _alone(resumes: bool) -> AbstractContextManager[Group]:
    return nullcontext(ALONE)


@dataclass(frozen=True)
class Trained:
    """Cost and end of a training phase.

    Attributes:
        steps: optimizer steps.
        tokens: tokens seen, padding included.
        seconds: wall time, the parts before an interruption included.
        loss: mean training loss of the last tenth of the steps, nats per target.
        peak_memory_bytes: most memory in use by this process, before an interruption too.
        micro_batch: rows that went through the model at once in the end, fewer than asked for
            where memory did not suffice; None: all.
    """

    steps: int
    tokens: int
    seconds: float
    loss: float
    peak_memory_bytes: int = 0
    micro_batch: int | None = None


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

    Raises:
        FloatingPointError: the loss is not finite any more.
    """
    final = folder / f"final{SUFFIX}"
    partly = loaded and bool(config.steps) and not methods.trains_all(config)
    if partly:
        methods.prepare(model, config, seed)
    kept = recall(lambda: _read(final, of, "weights", model, partly))
    if kept:
        model.load_state_dict(kept["weights"], strict=not partly)
        if partly:
            methods.finish(model, config)
        return Trained(**kept["trained"])
    _set_pickles_aside(folder)
    if start:
        model.load_state_dict(start())
    if not config.steps:  # an untrained model is made faster than it is read
        return _Module(model, config, seed).trained()
    folder.mkdir(parents=True, exist_ok=True)
    if not partly:
        methods.prepare(model, config, seed)
    resume = folder / f"resume{SUFFIX}"
    begun = recall(lambda: _read_resumable(resume, of, model, partly))
    if begun:
        info(f"{title}: goes on from step {begun['global_step']} of {config.steps}")
    with gather(bool(begun)) as group:
        saved = _Saved(resume, of, begun, partly)
        trained = _fit(model, batch, config, saved, title, seed, device, precision, group)
    if not partly:
        methods.finish(model, config)
    weights = _saved_part(model.state_dict(), model, partly)
    write_checkpoint(final, {"weights": weights, "trained": vars(trained)}, of=of)
    if partly:
        methods.finish(model, config)
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
    methods.prepare(model, config, seed)
    resume = folder / f"resume{SUFFIX}"
    partly = loaded and not methods.trains_all(config)
    begun = _read_resumable(resume, of, model, partly) if resumes else None
    saved = _Saved(resume, of, begun, partly)
    _fit(model, batch, config, saved, "", seed, device, precision, group)


def read_trained(folder: Path, of: str) -> Trained | None:
    """Return cost and end of a phase that an earlier call of `train` has finished."""
    kept = recall(lambda: read_checkpoint(folder / f"final{SUFFIX}", of=of))
    return Trained(**kept["trained"]) if kept else None


def _read_resumable(path: Path, of: str, model: Decoder, partly: bool) -> dict[str, Any]:
    return _read(path, of, "state_dict", nn.ModuleDict({"model": model}), partly)


def _saved_part(
    weights: Mapping[str, Tensor], module: nn.Module, partly: bool
) -> dict[str, Tensor]:
    """Return those of a module's weights that a checkpoint has."""
    names = methods.trained_names(module) if partly else set(weights)
    return {name: tensor for name, tensor in weights.items() if name in names}


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
    expected = _saved_part(module.state_dict(), module, partly)
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
) -> Trained:
    """Train a model in place; under "fsdp" only the first process has its weights then."""
    if not saved.content:
        group.spread(model)
    module = _Module(copy.deepcopy(model) if group.shards else model, config, seed, group)
    module.strict_loading = not saved.partly
    module.model.recompute = config.recompute
    callbacks: list[Callback] = [_Progress(title)] if group.rank == 0 else []
    callbacks.append(_Autosave(saved.path, config.save_every, group))
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
            trainer.fit(module, _Stream(batch, module), ckpt_path=path)
        except SystemExit as error:
            if isinstance(error.__context__, KeyboardInterrupt):  # what Lightning makes of Ctrl-C
                raise KeyboardInterrupt from None
            raise
    module.model.recompute = False
    if group.shards and group.rank == 0:
        model.load_state_dict(module.weights)
    return module.trained()


class _Module(L.LightningModule):
    """Takes one optimizer step per batch; a large batch goes through the model in slices.

    Each process of a group has its share of each slice.
    """

    def __init__(
        self, model: Decoder, config: TrainConfig, seed: int, group: Group = ALONE
    ) -> None:
        super().__init__()
        self.model = model
        self.group = group
        self.weights: dict[str, Any] = {}  # in the end, where no process has all of them
        self.train_config = config
        self.seed = seed
        self.automatic_optimization = False
        self.tokens = 0
        self.seconds = 0.0
        self.peak = 0
        self.started = time.monotonic()
        self.slice = config.micro_batch  # rows that go through at once, None: all
        self.losses: Tensor  # of each step, on the device
        self.register_buffer("losses", torch.zeros(config.steps), persistent=False)

    def configure_optimizers(self) -> Any:
        config = self.train_config
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        groups: list[dict[str, Any]] = [
            {"params": [p for p in parameters if p.dim() > 1]},
            {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
        ]
        optimizer = torch.optim.AdamW(
            groups,
            lr=config.lr,
            betas=(0.9, config.beta2),
            weight_decay=config.weight_decay,
            fused=True,
        )
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: scale(step, config))
        return {"optimizer": optimizer, "lr_scheduler": scheduler}

    def training_step(self, batch: Batch, index: int) -> None:
        step = self.global_step
        optimizer: Any = self.optimizers()
        loss = self._accumulate(batch, step)
        while loss is None:  # the gradients of an attempt that failed do not count
            optimizer.zero_grad()
            loss = self._accumulate(batch, step)
        if self.train_config.clip:
            # Lightning's own refuses fused optimizers under bf16, where nothing is scaled.
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.train_config.clip)
        optimizer.step()
        optimizer.zero_grad()
        self.lr_schedulers().step()  # type: ignore[union-attr]  # there is one
        self.tokens += batch.tokens.numel()
        self.losses[step] = loss

    def transfer_batch_to_device(
        self, batch: Batch, device: torch.device, dataloader_idx: int
    ) -> Batch:
        """Targets stay on the CPU, which knows at once how many there are."""
        return batch._replace(tokens=batch.tokens.to(device, non_blocking=True))

    def _accumulate(self, batch: Batch, step: int) -> Tensor | None:
        """Add a step's gradients, slice by slice; return its loss, a scalar.

        None where a GPU's memory does not suffice: slices are then half as large from now on,
        which changes sums by rounding alone.
        """
        # Random numbers depend on the seed and the step alone: a resumed run repeats them.
        # Torch keeps 32 bits of a seed on the CPU.
        torch.manual_seed((1_000_003 * self.seed + step) % 2**32)
        count = (batch.targets != IGNORE).sum().clamp(min=1)
        total = torch.zeros((), device=self.device)
        lacked = False  # memory
        rows = min(self.slice or len(batch.tokens), len(batch.tokens))
        slices = zip(batch.tokens.split(rows), batch.targets.split(rows), strict=True)
        try:
            for rows_of_all in slices:  # (b, T) each
                tokens, targets = self.group.share(*rows_of_all)
                where = scored_tokens(targets)
                loss = self.model.token_losses(tokens, targets, scored=where).sum() / count
                total += loss.detach()
                extra = self.model.extra_loss()
                if extra is not None:
                    loss = loss + extra * (len(tokens) / len(batch.tokens))
                self.manual_backward(loss)
        except torch.OutOfMemoryError:
            # Under "fsdp" the others wait for this process's weights.
            if rows <= self.group.size or self.group.shards:
                raise
            lacked = True
        if self.group.any(lacked):
            self.slice = (rows + 1) // 2
            warn(f"memory does not suffice for {rows} rows at once: going on with {self.slice}")
            return None
        return self.group.add_up(self.model.parameters(), total)

    def on_train_end(self) -> None:
        if self.group.shards:
            self.weights = whole(self.model.state_dict(), self.group)

    def recent_loss(self) -> float:
        """Return the mean loss of the last tenth of the planned steps."""
        count = max(1, self.train_config.steps // 10)
        step = self.global_step
        loss = float(self.losses[max(0, step - count) : step].mean()) if step else math.nan
        if step and not math.isfinite(loss):
            raise FloatingPointError(
                f"the loss is {loss} at step {self.global_step}: lower --train.lr or raise "
                "--train.warmup"
            )
        return loss

    def trained(self) -> Trained:
        seconds = self.seconds + time.monotonic() - self.started
        return Trained(
            self.train_config.steps,
            self.tokens,
            round(seconds, 3),
            self.recent_loss(),
            self.peak_memory(),
            self.slice,
        )

    def peak_memory(self) -> int:
        """Return the most bytes in use, in this call or before an interruption."""
        return max(self.peak, environment.peak_memory(self.device.type))

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        seconds = self.seconds + time.monotonic() - self.started
        partly = not self.strict_loading
        checkpoint["state_dict"] = _saved_part(checkpoint["state_dict"], self, partly)
        checkpoint["progress"] = {
            "tokens": self.tokens,
            "seconds": seconds,
            "peak_memory_bytes": self.peak_memory(),
            "losses": self.losses[: self.global_step].tolist(),
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        saved = checkpoint["progress"]
        self.tokens = saved["tokens"]
        self.seconds = saved["seconds"]
        self.peak = saved["peak_memory_bytes"]
        self.losses[: len(saved["losses"])] = torch.tensor(saved["losses"])


def scale(step: int, config: TrainConfig) -> float:
    """Return the factor of the peak learning rate at a step."""
    warmup = max(1, round(config.warmup * config.steps))
    if step < warmup:
        return (step + 1) / warmup
    if config.schedule == "constant":
        return 1.0
    done = (step - warmup) / max(1, config.steps - warmup)
    if config.schedule == "linear":
        return 1 - done
    return 0.5 * (1 + math.cos(math.pi * min(1.0, done)))


class _Stream:
    """Batches of a phase; Lightning saves its state, so a resumed run continues after them."""

    def __init__(self, batch: Callable[[int], Batch], module: _Module) -> None:
        self.batch = batch
        self.module = module
        self.first = 0

    def __iter__(self) -> Iterator[Batch]:
        return map(self.batch, range(self.first, len(self)))

    def __len__(self) -> int:
        """Return all steps. Without a length Lightning fetches one batch too many."""
        return self.module.train_config.steps

    def state_dict(self) -> dict[str, int]:
        return {"first": self.module.global_step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.first = state["first"]


class _Autosave(Callback):
    """Saves everything needed to resume, at most once in `seconds`."""

    def __init__(self, path: Path, seconds: float, group: Group) -> None:
        self.path = path
        self.seconds = seconds
        self.group = group
        self.last = time.monotonic()

    def on_train_batch_end(self, trainer: L.Trainer, *args: Any) -> None:
        due = time.monotonic() - self.last >= self.seconds and trainer.global_step > 0
        if self.group.any(due and self.group.rank == 0):  # all have to save, or none
            trainer.save_checkpoint(self.path)
            self.last = time.monotonic()


class _Progress(ProgressBar):
    """Shows title, steps, time left and current loss."""

    def __init__(self, title: str) -> None:
        super().__init__()
        self.title = title
        self.shown = time.monotonic()
        self.bar: Bar | None = None

    def disable(self) -> None:
        pass  # Lightning would silence it on all processes but the first

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self.bar = progress(self.title, trainer.max_steps, initial=trainer.global_step)

    def on_train_batch_end(self, trainer: L.Trainer, module: L.LightningModule, *args: Any) -> None:
        assert isinstance(module, _Module) and self.bar is not None
        if time.monotonic() - self.shown > 0.5:  # reading the loss waits for the device
            self.bar.note = f"loss {module.recent_loss():.3f}"
            self.shown = time.monotonic()
        self.bar.update()

    def on_exception(self, *args: Any) -> None:
        if self.bar is not None:
            self.bar.close()

    def on_train_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        assert isinstance(module, _Module) and self.bar is not None
        self.bar.note = f"loss {module.recent_loss():.3f}"
        self.bar.close()
