"""The training loop: data, forward, backward, clip, step, log, save.

`train` is the loop; the classes and functions below it are its steps. Lightning Fabric provides the
device and the precision. The loop is independent of files (`checkpoint_store`) and tasks.
"""

import copy
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from pe_bench.batch import Batch
from pe_bench.config import IGNORE, TrainConfig
from pe_bench.decoder.losses import scored_tokens
from pe_bench.decoder.model import Decoder
from pe_bench.errors import InputError
from pe_bench.system import console, environment
from pe_bench.system.time_limit import TimeLimit
from pe_bench.train.fabric import Fabric, Logger, MixedPrecision, Precision
from pe_bench.train.loggers import log_curve
from pe_bench.train.optimizer import learning_rate, make_optimizer, trained_parameters
from pe_bench.train.process_group import SINGLE_PROCESS, ProcessGroup
from pe_bench.train.sharding import gather, gather_tree, shard, sharded_optimizer_state
from pe_bench.train.training_log import TrainingLog
from pe_bench.train.training_result import TrainingResult
from pe_bench.train.training_setup import Training
from pe_bench.train.training_state import TrainingState

logging.getLogger("lightning.fabric").setLevel(logging.WARNING)

SHOW_EVERY = 0.5  # seconds between updates of the shown loss, each of which waits for the device


@dataclass(frozen=True)
class Callbacks:
    """What the training loop calls between two steps, on the first rank only.

    Attributes:
        save: called with the current state about every `config.save_every` seconds. The next step
            changes the tensors of the state in place.
        stop: called every `config.check_every` steps with the number of completed steps and the
            mean loss since the previous call; True ends the training.
        limit: time limit. When it is over, the state is saved before the training ends with an
            exception.
        logger: gets each point of the learning curve, also the points before an interruption.
    """

    save: Callable[[TrainingState], None] | None = None
    stop: Callable[[int, float], bool] | None = None
    limit: TimeLimit | None = None
    logger: Logger | None = None


NO_CALLBACKS = Callbacks()


def train(
    training: Training,
    *,
    group: ProcessGroup = SINGLE_PROCESS,
    state: TrainingState | None = None,
    callbacks: Callbacks = NO_CALLBACKS,
) -> TrainingResult:
    """Train a model in place.

    Every rank of a process group calls this with the same arguments, except for `callbacks`. If
    weights are sharded, only the first rank's model has the trained weights afterwards.

    Args:
        training: model, batches and configuration. The model has the weights to start from, or the
            weights of `state`.
        group: the processes that train the model together.
        state: state to resume from.
        callbacks: what the loop calls between two steps.

    Raises:
        FloatingPointError: the loss is not finite.
        TimedOut: the time limit is over before the last step.
    """
    config = training.config
    progress = Progress(training.device, state)
    fabric = _make_fabric(training.device, training.precision, group)
    model = _move_to_device(training.model, fabric, group, broadcast=state is None)
    model.recompute = config.recompute
    parameters = trained_parameters(model)
    optimizer = make_optimizer(model, config)
    rate = partial(learning_rate, config=config)
    log = TrainingLog(config.steps, fabric.device)
    accumulator = GradientAccumulator(model, fabric, group, config.micro_batch, training.seed)
    if state:
        optimizer.load_state_dict(sharded_optimizer_state(state.optimizer, optimizer, group))
        log.load_state_dict(state.log)

    def current_state() -> TrainingState:
        return TrainingState(
            progress.steps,
            gather_tree(model.state_dict(), group),
            gather_tree(optimizer.state_dict(), group),
            progress.seconds(),
            progress.peak_memory(),
            log.state_dict(progress.steps),
        )

    saver = Saver(config, group, callbacks, current_state)
    shown = time.monotonic()
    logged = 0  # number of logged points
    with console.progress(training.title, config.steps, initial=progress.steps) as bar:
        for step in range(progress.steps, config.steps):
            # Data.
            batch = training.batches(step)  # (B, T)
            log.begin(step)

            # Forward and backward.
            loss = accumulator.backward(batch, step)

            # Clip.
            norm = _clip(parameters, config.clip)

            # Step.
            for parameter_group in optimizer.param_groups:
                parameter_group["lr"] = rate(step)
            optimizer.step()
            optimizer.zero_grad()
            progress.steps = step + 1

            # Log.
            log.record(step, loss, norm, batch.tokens.numel())
            if callbacks.logger and log.is_point(progress.steps):
                points = log.curve(progress.steps, rate, first=logged)
                log_curve(callbacks.logger, points)
                logged += len(points)
            if group.rank == 0 and time.monotonic() - shown > SHOW_EVERY:
                bar.note = f"loss {log.recent_loss(progress.steps):.3f}"
                shown = time.monotonic()
            bar.update()

            # Stop early, or save.
            if _stops(callbacks, config, log, progress.steps):
                break
            saver.save_if_due(progress.steps)
        bar.note = f"loss {log.recent_loss(progress.steps):.3f}"
    model.recompute = False
    if group.shards_weights:
        weights = gather_tree(model.state_dict(), group)
        if group.rank == 0:
            training.model.load_state_dict(weights)
    return TrainingResult(
        progress.steps,
        log.tokens,
        round(progress.seconds(), 3),
        log.recent_loss(progress.steps),
        progress.peak_memory(),
        accumulator.micro_batch,
        log.curve(progress.steps, rate),
    )


class Progress:
    """Completed steps, time and memory of a training, including those before an interruption.

    Args:
        device: "cpu" or "cuda".
        state: state to resume from; None: the training begins.

    Attributes:
        steps: number of completed steps.
    """

    def __init__(self, device: str, state: TrainingState | None) -> None:
        self.steps = state.step if state else 0
        self._device = device
        self._started = time.monotonic()
        self._seconds_before = state.seconds if state else 0.0
        self._peak_before = state.peak_memory_bytes if state else 0

    def seconds(self) -> float:
        """Return the wall time of the training so far."""
        return self._seconds_before + time.monotonic() - self._started

    def peak_memory(self) -> int:
        """Return the highest memory use so far, in bytes."""
        return max(self._peak_before, environment.peak_memory(self._device))


class Saver:
    """Saves the state of a training at intervals, and when the time limit is over.

    Args:
        config: the training phase.
        group: the processes that train the model together.
        callbacks: `save` and `limit` of the first rank.
        current_state: returns the state of the training. All ranks call it together, because each
            may hold a shard of the weights.
    """

    def __init__(
        self,
        config: TrainConfig,
        group: ProcessGroup,
        callbacks: Callbacks,
        current_state: Callable[[], TrainingState],
    ) -> None:
        self.config = config
        self.group = group
        self.callbacks = callbacks
        self.current_state = current_state
        self.saved = time.monotonic()

    def save_if_due(self, steps: int) -> None:
        """Save the state after `steps` completed steps if it is time to.

        Raises:
            TimedOut: the time limit is over before the last step.
        """
        limit = self.callbacks.limit
        is_due = time.monotonic() - self.saved >= self.config.save_every
        timed_out = limit is not None and limit.is_over and steps < self.config.steps
        if self.group.any((is_due or timed_out) and self.group.rank == 0):
            state = self.current_state()
            if self.callbacks.save:
                self.callbacks.save(state)
            self.saved = time.monotonic()
        if limit and timed_out:
            limit.check(f"in training after step {steps} of {self.config.steps}")


def _stops(callbacks: Callbacks, config: TrainConfig, log: TrainingLog, steps: int) -> bool:
    """Return whether the training ends early, after `steps` completed steps."""
    is_check = steps % config.check_every == 0 and steps < config.steps
    if callbacks.stop is None or not is_check:
        return False
    return callbacks.stop(steps, log.mean_loss(steps - config.check_every, steps))


def _make_fabric(device: str, precision: str, group: ProcessGroup) -> Fabric:
    """Return a Fabric with the device and the precision of this rank."""
    plugin = _MixedPrecision("bf16-mixed", device) if precision == "bf16" else Precision()
    devices = [group.rank] if device == "cuda" else 1
    fabric = Fabric(accelerator=device, devices=devices, plugins=plugin)
    fabric.launch()
    return fabric


class _MixedPrecision(MixedPrecision):
    """Autocast that casts a weight at every use.

    Gradients of a weight that several layers share are then summed in float32, not in bfloat16.
    """

    def forward_context(self) -> torch.autocast:
        return torch.autocast(self.device, dtype=torch.bfloat16, cache_enabled=False)


def _move_to_device(
    model: Decoder, fabric: Fabric, group: ProcessGroup, *, broadcast: bool
) -> Decoder:
    """Move the model to this rank's device and return it, or a sharded copy."""
    if broadcast:
        group.broadcast(model)
    if not group.shards_weights:
        return model.to(fabric.device)
    copied = copy.deepcopy(model).to(fabric.device)
    shard(copied, group, fabric.device)
    return copied


class GradientAccumulator:
    """Accumulates the gradient of a batch's mean loss, in micro-batches.

    If GPU memory runs out, micro-batches are halved from then on, which changes sums only by
    rounding. Each rank has a shard of the rows of every micro-batch.

    Args:
        model: the model.
        fabric: device and precision.
        group: the processes that train the model together.
        micro_batch: number of rows of a forward pass; None: the whole batch.
        seed: seed of the training.
    """

    def __init__(
        self,
        model: Decoder,
        fabric: Fabric,
        group: ProcessGroup,
        micro_batch: int | None,
        seed: int,
    ) -> None:
        self.model = model
        self.fabric = fabric
        self.group = group
        self.micro_batch = micro_batch
        self.seed = seed

    def backward(self, batch: Batch, step: int) -> Tensor:
        """Set the gradients of all parameters; return the mean loss over all targets, a scalar.

        Raises:
            torch.OutOfMemoryError: memory does not suffice for a single row.
        """
        loss = self._try(batch, step)
        while loss is None:
            self.model.zero_grad()  # discard gradients of the attempt that ran out of memory
            loss = self._try(batch, step)
        return loss

    def _try(self, batch: Batch, step: int) -> Tensor | None:
        """Do one attempt and return the loss, or None if a rank ran out of memory."""
        # Random numbers depend only on seed and step, so a resumed training repeats them.
        _seed_generators((1_000_003 * self.seed + step) % 2**32, self.fabric.device)
        size = len(batch.tokens)
        rows = min(self.micro_batch or size, size)
        # Targets stay on the CPU, where counting them does not wait for the device.
        tokens_on_device = batch.tokens.to(self.fabric.device, non_blocking=True)  # (B, T)
        count = (batch.targets != IGNORE).sum()
        if not count:
            sentence = f"the batch of step {step} has no target, so it trains nothing"
            if not step:
                raise InputError(sentence)
            console.warn(sentence)
        count = count.clamp(min=1)
        total = torch.zeros((), device=self.fabric.device)
        is_out_of_memory = False
        micro_batches = zip(tokens_on_device.split(rows), batch.targets.split(rows), strict=True)
        try:
            with self.fabric.autocast():
                for micro_batch in micro_batches:
                    tokens, targets = self.group.shard_rows(*micro_batch)  # (b, T) each
                    where = scored_tokens(targets)
                    loss = self.model.token_losses(tokens, targets, scored=where).sum() / count
                    total += loss.detach()
                    extra = self.model.extra_loss()
                    if extra is not None:
                        loss = loss + extra * (len(tokens) / size)
                    self.fabric.backward(loss)
        except torch.OutOfMemoryError:
            # With sharded weights the other ranks wait for this rank's shards.
            if rows <= self.group.size or self.group.shards_weights:
                raise
            is_out_of_memory = True
        if self.group.any(is_out_of_memory):
            self.micro_batch = (rows + 1) // 2
            console.warn(
                f"memory does not suffice for {rows} rows: continuing with {self.micro_batch} rows"
            )
            return None
        return self.group.all_reduce(self.model.parameters(), total)


def _seed_generators(seed: int, device: torch.device) -> None:
    """Seed the random generators of a training.

    `torch.manual_seed` also visits all other devices, which takes a millisecond.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed_all(seed)


def _clip(parameters: list[nn.Parameter], largest: float) -> Tensor:
    """Clip the gradient to the norm `largest` (0: no clipping); return the norm before clipping."""
    if largest:
        return gather(nn.utils.clip_grad_norm_(parameters, largest))
    return gather(nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None]))
