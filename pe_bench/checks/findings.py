"""Results of checks."""

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from pe_bench.encoding import Encoding, StatefulEncoding
from pe_bench.errors import InputError, as_exception, describe_error
from pe_bench.task import Task

Subject = TypeVar("Subject")


class NotApplicable(Exception):
    """The plugin does not claim the checked property; the message names it."""


@dataclass(frozen=True)
class Finding:
    """Result of one check.

    Attributes:
        status: "ok", "-" (does not apply), "FAIL" or "ERROR".
        reason: one sentence; empty for "ok".
    """

    status: str
    reason: str = ""

    @property
    def bad(self) -> bool:
        """Whether the plugin violates the property or raises an error."""
        return self.status in ("FAIL", "ERROR")


def run_check(check: Callable[[Subject], str | None], subject: Subject) -> Finding:
    """Run one check. An exception becomes a finding, so that checks of other plugins continue."""
    try:
        with as_exception():
            wrong = check(subject)
    except NotApplicable as claim:
        return Finding("-", str(claim))
    except InputError as error:
        return Finding("ERROR", str(error))
    except Exception as error:
        return Finding("ERROR", describe_crash(error))
    return Finding("FAIL", wrong) if wrong else Finding("ok")


def describe_crash(error: BaseException) -> str:
    """Return hook, type, message, file and line of an exception in a plugin, in one line."""
    hook = hook_of(error)
    words = describe_error(error)
    return f"{hook}: {words}" if hook else words


def hook_of(error: BaseException) -> str:
    """Return the innermost hook in the traceback, as "Mine.bias"; "" if there is none."""
    hook = ""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        owner = frame.f_locals.get("self")
        name = frame.f_code.co_name
        if _is_hook(owner, name):
            hook = f"{type(owner).__name__}.{name}"  # keep the innermost hook
    return hook


def _is_hook(owner: object, name: str) -> bool:
    if isinstance(owner, Encoding):
        return hasattr(StatefulEncoding, name)
    return isinstance(owner, Task) and hasattr(Task, name)
