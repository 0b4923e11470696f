"""`python -m pe_bench` is `pe-bench`."""

import sys

from pe_bench.cli import main

if __name__ == "__main__":  # processes that it starts import this file too
    sys.exit(main())
