"""What Lightning trains: one optimizer step per batch, its schedule, and what a checkpoint has."""

import math
import time
from collections.abc import Callable
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn

from pe_bench.batch import Batch
from pe_bench.config import IGNORE, TrainConfig
from pe_bench.decoder.losses import scored_tokens
from pe_bench.decoder.model import Decoder
from pe_bench.system import environment
from pe_bench.system.console import warn
from pe_bench.train import adaptation_methods
from pe_bench.train.curve_recorder import CurveRecorder
from pe_bench.train.lightning_strategy import gathered, whole
from pe_bench.train.process_group import ALONE, Group
from pe_bench.train.training_result import Trained


class TrainingModule(L.LightningModule):
    """Takes one optimizer step per batch; a large batch goes through the model in slices.

    Each process of a group has its share of each slice.
    """

    def __init__(
        self,
        model: Decoder,
        config: TrainConfig,
        seed: int,
        group: Group = ALONE,
        stop: Callable[[int, float], bool] | None = None,
    ) -> None:
        super().__init__()
        self.stop = stop
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
        self.trained_parameters: list[nn.Parameter] = []
        self.losses: Tensor  # of each step, on the device
        self.register_buffer("losses", torch.zeros(config.steps), persistent=False)
        self.recorder = CurveRecorder(config.steps)

    def configure_optimizers(self) -> Any:
        config = self.train_config
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.trained_parameters = parameters
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
        self.recorder.begin(step)
        optimizer: Any = self.optimizers()
        loss = self._accumulate(batch, step)
        while loss is None:  # the gradients of an attempt that failed do not count
            optimizer.zero_grad()
            loss = self._accumulate(batch, step)
        norm = self._clip()
        optimizer.step()
        optimizer.zero_grad()
        self.lr_schedulers().step()  # type: ignore[union-attr]  # there is one
        self.tokens += batch.tokens.numel()
        self.losses[step] = loss
        self.recorder.record(step, norm, batch.tokens.numel())
        self._end_early(step + 1)

    def _end_early(self, steps: int) -> None:
        """Ask, at every twentieth of the planned steps, whether the training is to end."""
        every = max(1, self.train_config.steps // 20)
        if self.stop is None or steps % every or steps == self.train_config.steps:
            return
        recent = float(self.losses[steps - every : steps].mean())
        if self.stop(steps, recent):
            self.trainer.should_stop = True

    def _clip(self) -> Tensor:
        """Clip the gradient, where that is asked for; return its norm before, a scalar."""
        parameters = self.trained_parameters
        clip = self.train_config.clip
        if clip:
            # Lightning's own refuses fused optimizers under bf16, where nothing is scaled.
            norm = nn.utils.clip_grad_norm_(parameters, clip)
        else:
            norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        return gathered(norm)

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
        self._seed((1_000_003 * self.seed + step) % 2**32)  # a CPU has 32 bits of a seed
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

    def _seed(self, seed: int) -> None:
        """Seed the generators that this training uses.

        `torch.manual_seed` also visits all other devices, which takes a millisecond.
        """
        torch.default_generator.manual_seed(seed)
        if self.device.type == "cuda":
            torch.cuda.manual_seed_all(seed)

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
            self.global_step if self.train_config.steps else 0,
            self.tokens,
            round(seconds, 3),
            self.recent_loss(),
            self.peak_memory(),
            self.slice,
            self.recorder.curve(self.global_step, self.losses, self._rate),
        )

    def _rate(self, step: int) -> float:
        """Return the learning rate of a step."""
        return self.train_config.lr * scale(step, self.train_config)

    def peak_memory(self) -> int:
        """Return the most bytes in use, in this call or before an interruption."""
        return max(self.peak, environment.peak_memory(self.device.type))

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        seconds = self.seconds + time.monotonic() - self.started
        partly = not self.strict_loading
        checkpoint["state_dict"] = adaptation_methods.saved_part(
            checkpoint["state_dict"], self, partly
        )
        checkpoint["progress"] = {
            "tokens": self.tokens,
            "seconds": seconds,
            "peak_memory_bytes": self.peak_memory(),
            "losses": self.losses[: self.global_step].tolist(),
            "curve": self.recorder.kept(self.global_step),
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        saved = checkpoint["progress"]
        self.tokens = saved["tokens"]
        self.seconds = saved["seconds"]
        self.peak = saved["peak_memory_bytes"]
        self.losses[: len(saved["losses"])] = torch.tensor(saved["losses"])
        if "curve" in saved:  # not in what an earlier version has left
            self.recorder.go_on(saved["curve"])


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
