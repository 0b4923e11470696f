"""The training loop: data, forward and backward, clip, step, log, stop early or save.

Lightning Fabric provides the device and the precision. The loop is independent of files
(`checkpoint_store`) and tasks.
"""

import copy
import logging
from functools import partial

import torch

from pe_bench.config import TrainConfig
from pe_bench.decoder.model import Decoder
from pe_bench.system import console
from pe_bench.train.fabric import Fabric, MixedPrecision, Precision
from pe_bench.train.gradients import GradientAccumulator, clip
from pe_bench.train.optimizer import (
    learning_rate,
    make_optimizer,
    set_learning_rate,
    trained_parameters,
)
from pe_bench.train.process_group import SINGLE_PROCESS, ProcessGroup
from pe_bench.train.progress import NO_CALLBACKS, Callbacks, Progress, Report, Saver
from pe_bench.train.sharding import gather_tree, shard, sharded_optimizer_state
from pe_bench.train.training_log import TrainingLog
from pe_bench.train.training_result import TrainingResult
from pe_bench.train.training_setup import Training
from pe_bench.train.training_state import TrainingState

logging.getLogger("lightning.fabric").setLevel(logging.WARNING)


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
    with console.progress(training.title, config.steps, initial=progress.steps) as bar:
        report = Report(log, rate, bar, callbacks.logger, shows_loss=group.rank == 0)
        for step in range(progress.steps, config.steps):
            # Data.
            batch = training.batches(step)  # (B, T)
            log.begin(step)

            # Forward and backward.
            loss = accumulator.backward(batch, step)

            # Clip.
            norm = clip(parameters, config.clip)

            # Step.
            set_learning_rate(optimizer, rate(step))
            optimizer.step()
            optimizer.zero_grad()
            progress.steps = step + 1

            # Log.
            log.record(step, loss, norm, batch.tokens.numel())
            report.update(progress.steps)

            # Stop early, or save.
            if _stops(callbacks, config, log, progress.steps):
                break
            saver.save_if_due(progress.steps)
        report.show_loss(progress.steps)
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
