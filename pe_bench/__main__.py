"""`python -m pe_bench` is `pe-bench`."""

import sys

from pe_bench.cli import main

sys.exit(main())
