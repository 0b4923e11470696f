"""What goes along with training: the stream of batches, saving now and then, the progress bar."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lightning as L
from lightning.fabric.plugins import CheckpointIO
from lightning.pytorch.callbacks import Callback, ProgressBar

from pe_bench.batch import Batch
from pe_bench.system.console import Bar, progress
from pe_bench.train.checkpoints import write_checkpoint
from pe_bench.train.process_group import Group
from pe_bench.train.training_module import TrainingModule


class Stream:
    """Batches of a phase; Lightning saves its state, so a resumed run continues after them."""

    def __init__(self, batch: Callable[[int], Batch], module: TrainingModule) -> None:
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


class CheckpointFiles(CheckpointIO):
    """Lets Lightning write and read checkpoints of this form.

    Args:
        of: what they belong to.
        content: of the checkpoint to go on from, if any.
    """

    def __init__(self, of: str, content: dict[str, Any] | None) -> None:
        self.of = of
        self.content = content

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        write_checkpoint(Path(path), checkpoint, of=self.of)

    def load_checkpoint(self, path: Any, *args: Any, **more: Any) -> dict[str, Any]:
        assert self.content is not None
        return self.content

    def remove_checkpoint(self, path: Any) -> None:
        Path(path).unlink(missing_ok=True)


class Autosave(Callback):
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


class Progress(ProgressBar):
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
        assert isinstance(module, TrainingModule) and self.bar is not None
        if time.monotonic() - self.shown > 0.5:  # reading the loss waits for the device
            self.bar.note = f"loss {module.recent_loss():.3f}"
            self.shown = time.monotonic()
        self.bar.update()

    def on_exception(self, *args: Any) -> None:
        if self.bar is not None:
            self.bar.close()

    def on_train_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        assert isinstance(module, TrainingModule) and self.bar is not None
        self.bar.note = f"loss {module.recent_loss():.3f}"
        self.bar.close()
