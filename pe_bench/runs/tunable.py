"""Values of the option that an encoding declares as tunable."""

from collections.abc import Sequence

from pe_bench.errors import InputError
from pe_bench.registry import plugins
from pe_bench.registry.options import plugin_options, show, split_spec, with_option
from pe_bench.registry.plugins import Plugin
from pe_bench.runs.initial_weights import Adapted, Pretrained
from pe_bench.runs.resolve import ResolvedTask


def with_value(encoding: Plugin, value: str | None) -> Plugin:
    """Return the encoding with a value of its tunable option; None: the encoding's default."""
    if value is None:
        return encoding
    option = encoding.cls.tunable.option
    return plugins.load("encoding", with_option(encoding.given, option, value))


def values_to_try(encoding: Plugin, task: ResolvedTask) -> Sequence[str]:
    """Return the values to try for an encoding's tunable option, as a spec writes them.

    There are none if the user gives the option, or if a model continues from another one. Values
    with which the encoding does not support the task are left out.
    """
    assert task.tuning is not None
    if isinstance(encoding, Adapted | Pretrained) or task.start or not task.tuning.values:
        return ()
    tunable = encoding.cls.tunable
    given = split_spec(encoding.given)[1]
    options = {option.name for option in plugin_options(encoding.cls)}
    if tunable is None or tunable.option in given or tunable.option not in options:
        return ()
    found = []
    for value in tunable.values(task.model):
        try:
            candidate = with_value(encoding, show(value))
            fits = task.task.skip(task.make_encoding(candidate)) is None
        except InputError:
            continue
        if fits and candidate.label != encoding.label:  # equal labels: the default value
            found.append(show(value))
    return found
