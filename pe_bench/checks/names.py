"""Names in the class of a user's task that resemble names of its interface, and are never used."""

import inspect
from difflib import get_close_matches

from pe_bench.task import Task

SIMILAR_METHODS = 0.75  # minimum similarity, from 0 to 1
SIMILAR_ATTRIBUTES = 0.85  # their names are shorter, so more of them resemble each other


def find_misspelt(cls: type[Task], base: type[Task] | None = None) -> list[str]:
    """Return a sentence for each method or attribute that resembles one of the interface.

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
    attributes = sorted({*known} - {*methods})
    found = []
    for name, value in own.items():
        if name.startswith("_") or name in methods or name in attributes:
            continue
        among, cutoff = ([*methods, *attributes], SIMILAR_ATTRIBUTES)
        if inspect.isfunction(value):
            among, cutoff = (methods, SIMILAR_METHODS)
        for right in get_close_matches(name, among, n=1, cutoff=cutoff):
            if right not in own:  # otherwise it may be a helper of that method
                found.append(f"{cls.__name__}.{name} is never used: did you mean {right}?")
    return found
