"""The name under which the user has called the program, for commands to type next."""

import shlex
import shutil
import sys
from pathlib import Path

NAME = "pe-bench"


def program() -> str:
    """Return the word that calls this program in the user's shell.

    It is `pe-bench` if the shell finds the program by this name, and otherwise the path that the
    user has typed, such as `.venv/bin/pe-bench` where the environment is not activated.
    """
    typed = Path(sys.argv[0])
    if typed.name != NAME:  # python -m pe_bench, or a script
        return NAME
    found = shutil.which(NAME)
    if found is not None and typed.exists() and typed.samefile(found):
        return NAME
    return shlex.quote(sys.argv[0])
