"""The process of `pe-bench`, which is also `python -m pe_bench`."""

import os
import sys
import threading
from typing import NoReturn

from pe_bench.cli import main

GRACE = 2.0  # seconds that threads and exit handlers of plugins have to end by themselves


def run() -> NoReturn:
    """Run the command of this process, and end the process.

    Threads and exit handlers that a plugin has left behind cannot keep it alive.
    """
    code = main()
    deadline = threading.Timer(GRACE, os._exit, (code,))  # all output and all files are written
    deadline.daemon = True
    deadline.start()
    sys.exit(code)


if __name__ == "__main__":  # processes that it starts import this file too
    run()
