"""Entry point of `pe-bench`: one module of `pe_bench.commands` for each command."""

import importlib
import os
import sys
from collections.abc import Sequence

from pe_bench.commands.parser import BAD_INPUT, make_parser
from pe_bench.errors import InputError, InputErrors, SavingError

FAILED = 1
INTERRUPTED = 130


def main(args: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        args: of the command line; None: those of this process.

    Returns:
        The exit code: 0 fine, 1 a run failed, 2 bad input, 130 interrupted.
    """
    parsed = make_parser().parse(sys.argv[1:] if args is None else args)
    # A command's module is imported when it is called: some of them need torch.
    command = importlib.import_module(f"pe_bench.commands.{parsed.command}")
    try:
        code: int = command.main(parsed)
        return code
    except InputError as error:
        sentences = error.problems if isinstance(error, InputErrors) else (str(error),)
        for sentence in sentences:
            print(f"pe-bench: {sentence}", file=sys.stderr)
        return BAD_INPUT
    except SavingError as error:
        print(f"pe-bench: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("\npe-bench: stopped; the same command goes on from here", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader of a pipe, say head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
