"""Checks of an encoding's support for a task, with an instance whose weights take no memory."""

from collections.abc import Sequence
from contextlib import suppress

from pe_bench.checks.depth import Depths
from pe_bench.checks.interface import find_oversights, find_unused_parameters
from pe_bench.checks.names import find_misspelt
from pe_bench.decoder.empty import without_memory
from pe_bench.encoding import Encoding
from pe_bench.errors import CRASHES, FaultyPlugin, InputError, as_exception
from pe_bench.pretrained.rotation import describe_rotation
from pe_bench.registry.plugins import Plugin
from pe_bench.registry.versions import is_shipped
from pe_bench.runs.initial_weights import Adapted
from pe_bench.runs.memory import check_encoding_fits
from pe_bench.runs.resolve import ResolvedTask
from pe_bench.train.adaptation_methods import check_method


def reason_to_skip(encoding: Plugin, task: ResolvedTask, fits: bool) -> str | None:
    """Return why an encoding does not support a task, or None if it does.

    An encoding that refuses a task even under its default options does not support the task. If
    the default options work, one of the given options is wrong.

    Args:
        encoding: the encoding.
        task: the task.
        fits: whether the task's model fits into memory. If not, nothing is allocated.

    Raises:
        InputError: an option is wrong, or the encoding cannot work at all.
    """
    try:
        instance = _instance(encoding, task, fits)
        check_encoding_fits(instance, encoding, task)
        check_method(instance, task.train)
        return task.task.skip(instance)
    except FaultyPlugin:
        raise
    except InputError as error:
        if encoding.options and _builds(encoding.without_options(), task, fits):
            raise
        return str(error)
    except CRASHES:
        return None  # a crash: the run records it, and other runs continue


def describe_depths(task: ResolvedTask, encodings: Sequence[Plugin], depths: Depths) -> list[str]:
    """Return a sentence for each encoding whose layers differ only in deeper models."""
    notes = []
    for encoding in encodings:
        try:
            with as_exception():
                note = depths.describe_missing_layers(encoding, task.model)
        except CRASHES:  # the run records the crash
            continue
        if note:
            notes.append(f"{encoding.label} on {task.label}: {note}")
    return notes


def describe_rotations(task: ResolvedTask, encodings: Sequence[Plugin]) -> list[str]:
    """Return a sentence for each encoding whose rotation differs from its model's.

    Encodings in a checkpoint are not here: they take over its rotation.
    """
    notes = []
    for encoding in encodings:
        if not isinstance(encoding, Adapted) or encoding.starts_from_checkpoint:
            continue
        with suppress(*CRASHES):  # the run records the crash
            notes += describe_rotation(encoding.encoding, encoding.origin, task.model)
    return notes


def describe_oversights(task: ResolvedTask, encodings: Sequence[Plugin]) -> list[str]:
    """Return a sentence for each likely mistake in the code of the user's task and encodings."""
    notes = [f"{task.label}: {sentence}" for sentence in find_misspelt(type(task.task))]
    for encoding in encodings:
        if is_shipped(encoding.cls):
            continue
        try:
            with as_exception():
                instance = _instance(encoding, task, fits=False)
                found = find_oversights(instance)
                # A forward pass may end the process, so only encodings that need it get one.
                if any(True for _ in instance.parameters()):
                    found += find_unused_parameters(encoding)
        except CRASHES:  # a crash: the run itself records it
            continue
        notes += [f"{encoding.label}: {sentence}" for sentence in found]
    return notes


def _instance(encoding: Plugin, task: ResolvedTask, fits: bool) -> Encoding:
    """Return the encoding on the meta device, or on the CPU if it cannot be built there."""
    try:
        with without_memory():
            return task.make_encoding(encoding)
    except InputError:
        raise
    except CRASHES:
        if not fits:
            raise
        return task.make_encoding(encoding)


def _builds(encoding: Plugin, task: ResolvedTask, fits: bool) -> bool:
    try:
        _instance(encoding, task, fits)
    except CRASHES:
        return False
    return True
