"""A training phase that survives interruptions: the training loop together with its checkpoints."""

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext

from torch import Tensor

from pe_bench.config import TrainConfig
from pe_bench.decoder.model import Decoder
from pe_bench.system import environment
from pe_bench.system.console import info
from pe_bench.system.time_limit import TimeLimit
from pe_bench.train import adaptation_methods
from pe_bench.train.checkpoint_store import CheckpointStore
from pe_bench.train.fabric import Logger
from pe_bench.train.loop import train
from pe_bench.train.process_group import SINGLE_PROCESS, ProcessGroup
from pe_bench.train.progress import Callbacks
from pe_bench.train.training_result import TrainingResult
from pe_bench.train.training_setup import Training


def _single_process(resumes: bool) -> AbstractContextManager[ProcessGroup]:
    return nullcontext(SINGLE_PROCESS)


def _no_logger() -> AbstractContextManager[Logger | None]:
    return nullcontext()


def ensure_trained(
    training: Training,
    store: CheckpointStore,
    *,
    initial_weights: Callable[[], Mapping[str, Tensor]] | None = None,
    distributed: Callable[[bool], AbstractContextManager[ProcessGroup]] = _single_process,
    logged: Callable[[], AbstractContextManager[Logger | None]] = _no_logger,
    stop: Callable[[int, float], bool] | None = None,
    limit: TimeLimit | None = None,
) -> TrainingResult:
    """Load a trained model from its store, or train it and save it there.

    Args:
        training: model, batches and configuration.
        store: the checkpoint files of this phase.
        initial_weights: replaces the weights of the model before the first step.
        distributed: context manager that starts the other ranks, which call `join_training`. Its
            argument tells them whether to resume from the checkpoint.
        logged: context manager that opens the logger of the training.
        stop, limit: see `pe_bench.train.progress.Callbacks`. A training that `stop` ends leaves no
            checkpoint.

    Raises:
        FloatingPointError: the loss is not finite.
        TimedOut: the time limit is over. The next call resumes the training.
    """
    model, config = training.model, training.config
    result = _load_final(training, store)
    if result is not None:
        return result
    if initial_weights:
        model.load_state_dict(initial_weights())
    if not config.steps:  # making an untrained model is faster than reading it
        memory = environment.peak_memory("cpu")
        return TrainingResult(0, 0, 0.0, math.nan, memory, config.micro_batch)
    if not store.trainable_only:  # otherwise `_load_final` has prepared it
        adaptation_methods.prepare(model, config, training.seed)
    state = store.load_resume(model)
    if state:
        info(f"{training.title}: resumes from step {state.step} of {config.steps}")

    with logged() as logger, distributed(state is not None) as group:
        callbacks = Callbacks(
            save=lambda current: store.save_resume(model, current),
            stop=stop,
            limit=limit,
            logger=logger,
        )
        result = train(training, group=group, state=state, callbacks=callbacks)
    if result.steps < config.steps:
        store.discard_resume()
    else:
        _save_final(model, config, store, result)
    return result


def _load_final(training: Training, store: CheckpointStore) -> TrainingResult | None:
    """Load the trained weights into the model if there are any.

    A checkpoint of the trainable parameters has the weights of adapters, so the model needs the
    adapters before it can be loaded. A full checkpoint has weights with the adapters merged.
    """
    if not store.trainable_only:
        return store.load_final(training.model)
    adaptation_methods.prepare(training.model, training.config, training.seed)
    result = store.load_final(training.model)
    if result is not None:
        adaptation_methods.finish(training.model, training.config)
    return result


def _save_final(
    model: Decoder, config: TrainConfig, store: CheckpointStore, result: TrainingResult
) -> None:
    """Save a trained model and merge its adapters, in the order that `_load_final` expects."""
    if store.trainable_only:
        store.save_final(model, result)
        adaptation_methods.finish(model, config)
    else:
        adaptation_methods.finish(model, config)
        store.save_final(model, result)


def join_training(
    training: Training, store: CheckpointStore, *, group: ProcessGroup, resumes: bool
) -> None:
    """Train a model together with the rank that called `ensure_trained`, and save nothing.

    Args:
        training, store: as in `ensure_trained`.
        group: the process group; this process must not be its first rank.
        resumes: whether to start from the checkpoint.
    """
    adaptation_methods.prepare(training.model, training.config, training.seed)
    state = store.load_resume_or_raise(training.model) if resumes else None
    train(training, group=group, state=state)
