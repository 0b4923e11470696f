"""Entry point of `pe-bench`: one module of `pe_bench.commands` for each command.

These modules import slow packages, such as torch, only when their command is run.
"""

import contextlib
import errno
import signal
import sys
from collections.abc import Sequence

from pe_bench.commands import (
    attention,
    cache,
    check,
    checkpoint,
    compare,
    cost,
    export,
    import_model,
    list,
    merge,
    prune,
    report,
    rerun,
    results,
    run,
    show,
    status,
)
from pe_bench.commands.parser import BAD_INPUT, parse
from pe_bench.errors import InputError, InputErrors, SavingError
from pe_bench.system.console import warn
from pe_bench.system.stopping import stopping_cleanly

FAILED = 1
MODULES = (
    run,
    cost,
    list,
    report,
    status,
    show,
    prune,
    results,
    export,
    merge,
    rerun,
    checkpoint,
    attention,
    import_model,
    compare,
    check,
    cache,
)
COMMANDS = [module.COMMAND for module in MODULES]


def main(args: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        args: words of the command line; None: the arguments of this process.

    Returns:
        The exit code: 0 success, 1 a run failed, 2 bad input, 130 after Ctrl-C, 128 plus the number
        of the signal after another signal to stop.
    """
    with stopping_cleanly() as received:
        try:
            return _run(args)
        except KeyboardInterrupt:
            number = received[0] if received else signal.SIGINT
            by = "" if number == signal.SIGINT else f" by {number.name}"
            with contextlib.suppress(OSError):  # the terminal may be gone
                print(file=sys.stderr)  # below a progress bar
                warn(f"stopped{by}; the same command continues from here")
            return 128 + number


def _run(args: Sequence[str] | None) -> int:
    try:
        command, values = parse(COMMANDS, sys.argv[1:] if args is None else args)
        return command.main(*values)
    except InputError as error:
        sentences = error.problems if isinstance(error, InputErrors) else (str(error),)
        for sentence in sentences:
            warn(sentence)
        return BAD_INPUT
    except SavingError as error:
        warn(str(error))
        return FAILED
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        warn(f"{error.filename} cannot be used: the path, or a name in it, is too long")
        return BAD_INPUT
