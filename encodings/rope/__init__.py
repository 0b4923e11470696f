"""Names for other encodings: `from pe_bench.encodings.rope import RoPE, rotate`."""

from pe_bench.encodings.rope.checks import check_base, check_head_dim
from pe_bench.encodings.rope.encoding import BASE, RoPE, geometric, rotate, rotate_by
from pe_bench.encodings.rope.remap import Remap

__all__ = [
    "BASE",
    "Remap",
    "RoPE",
    "check_base",
    "check_head_dim",
    "geometric",
    "rotate",
    "rotate_by",
]
