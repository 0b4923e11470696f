"""The process of `pe-bench`, also started by `python -m pe_bench`."""

import os
import sys
import threading
from typing import NoReturn

from pe_bench.cli import main

GRACE = 2.0  # seconds until threads and exit handlers of plugins are killed


def run() -> NoReturn:
    """Run the command of this process, and end the process.

    Remaining threads and exit handlers of a plugin cannot keep the process alive.
    """
    code = main()
    deadline = threading.Timer(GRACE, os._exit, (code,))  # safe: output and files are complete
    deadline.daemon = True
    deadline.start()
    sys.exit(code)


if __name__ == "__main__":  # child processes import this file too
    run()
