"""The constructor of a plugin takes what the engine passes to it, and options by keyword."""

import inspect
from collections.abc import Container, Iterable, Mapping
from typing import Any

from pe_bench.errors import InputError
from pe_bench.registry.importing import Kind
from pe_bench.registry.options import option_of

ARGUMENTS: Mapping[Kind, tuple[str, ...]] = {"encoding": ("model", "layer"), "task": ("context",)}
"""What the engine passes to the constructor by position."""


def check_constructor(kind: Kind, cls: type[Any]) -> None:
    """Check that the engine can call the constructor of a class.

    Raises:
        InputError: it does not take the arguments of `ARGUMENTS`, or requires more by position.
    """
    arguments = ARGUMENTS[kind]
    signature = inspect.signature(cls)
    try:
        signature.bind_partial(*arguments)
    except TypeError:
        shown = ", ".join(arguments)
        raise InputError(
            f"{cls.__name__}.__init__ must take {' and '.join(arguments)}, and options by keyword: "
            f"def __init__(self, {shown}, *, ...)"
        ) from None
    for parameter in [*signature.parameters.values()][len(arguments) :]:
        has_place = parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        if has_place and parameter.default is parameter.empty:
            raise InputError(_not_keyword_only(cls, parameter.name))


def refuse_positional(
    where: str, cls: type[Any], known: Container[str], given: Iterable[str]
) -> None:
    """Refuse an option that is a parameter of the constructor, but not keyword-only.

    Args:
        where: name of the plugin, for the message.
        cls: its class.
        known: names of its options.
        given: names of the given options.

    Raises:
        InputError: there is such a parameter; the message says how to make it an option.
    """
    parameters = inspect.signature(cls.__init__).parameters
    for key in given:
        if key in parameters and key not in known and key not in ("self", "model", "layer"):
            raise InputError(f"{where}: {_not_keyword_only(cls, key)}")


def check_required(where: str, cls: type[Any], values: Mapping[str, Any]) -> None:
    """Check that every option that the constructor itself requires has a value.

    Args:
        where: name of the plugin, for the message.
        cls: its class.
        values: values of the options, `Parameter.empty` if there is neither value nor default.

    Raises:
        InputError: one has none.
    """
    for name in inspect.signature(cls).parameters:
        if values.get(name) is inspect.Parameter.empty:
            option = option_of(name)
            raise InputError(
                f"{where} needs a value of its option '{option}': write {where}:{option}=..., or "
                f"give it a default in {cls.__name__}.__init__"
            )


def _not_keyword_only(cls: type[Any], name: str) -> str:
    return (
        f"{name} is not an option, as it is not keyword-only: write * before it in "
        f"{cls.__name__}.__init__"
    )
