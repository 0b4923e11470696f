"""Names of the interface that the class of a plugin misspells or lacks."""

import inspect
import traceback
from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches

from pe_bench.errors import is_engine
from pe_bench.task import Task

SIMILAR_METHODS = 0.75  # minimum similarity, from 0 to 1
SIMILAR_ATTRIBUTES = 0.85  # their names are shorter, so more of them resemble each other
SET_BY_CONSTRUCTOR = ("context", "name", "train", "unavailable")  # by the one of `Task`


def find_misspelt(cls: type[Task], base: type[Task] | None = None) -> list[str]:
    """Return a sentence for each method or attribute of a task that resembles one of the interface.

    Args:
        cls: class of the task.
        base: class whose names are the interface; None: the nearest one of this package.
    """
    ancestors = cls.__mro__
    if base is None:
        base = next(one for one in ancestors if one.__module__.startswith("pe_bench."))
    own: dict[str, object] = {}
    for ancestor in ancestors[: ancestors.index(base)]:
        own = vars(ancestor) | own
    known = [name for name in dir(base) if not name.startswith("_")]
    methods = [name for name in known if inspect.isfunction(getattr(base, name))]
    for ancestor in base.__mro__:
        known += inspect.get_annotations(ancestor)
    return list(describe_similar(cls, own, base, methods, known))


def describe_similar(
    cls: type,
    own: Mapping[str, object],
    interface: type,
    methods: Collection[str],
    attributes: Collection[str],
) -> Iterator[str]:
    """Yield a sentence for each name that resembles one of an interface.

    Args:
        cls: class of the plugin.
        own: names and values that the plugin defines.
        interface: class that defines the interface; its names are correct.
        methods, attributes: names of the interface that a plugin may override.
    """
    for name, value in own.items():
        if name.startswith("_") or hasattr(interface, name):
            continue
        known, cutoff = (attributes, SIMILAR_ATTRIBUTES)
        if inspect.isfunction(value):
            known, cutoff = (methods, SIMILAR_METHODS)
        for right in get_close_matches(name, known, n=1, cutoff=cutoff):
            if right not in own:  # otherwise it may be a helper of that method
                yield f"{cls.__name__}.{name} is never used: did you mean {right}?"


def find_undefined(error: BaseException, cls: type[Task]) -> str | None:
    """Return a sentence on the part of the interface whose lack caused an error; None: another."""
    name = ""
    if isinstance(error, NotImplementedError):
        frame = traceback.extract_tb(error.__traceback__)[-1]
        name = frame.name if is_engine(frame.filename) and hasattr(cls, frame.name) else ""
    elif isinstance(error, AttributeError) and (error.obj is cls or type(error.obj) is cls):
        if error.name in SET_BY_CONSTRUCTOR:
            return (
                f"{cls.__name__}.__init__ must first call super().__init__, which sets {error.name}"
            )
        name = error.name if error.name in inspect.get_annotations(Task) else ""
    if not name:
        return None
    similar = get_close_matches(name, vars(cls), n=1, cutoff=SIMILAR_METHODS)
    hint = f", but {similar[0]}: rename it" if similar else ", which its runs need"
    return f"{cls.__name__} does not define {name}{hint}"
