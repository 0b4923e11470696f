"""Names for other encodings: `from pe_bench.encodings.rope import RoPE, rotate`."""

from pe_bench.encodings.rope.encoding import BASE, RoPE, geometric, rotate
from pe_bench.encodings.rope.remap import Remap

__all__ = ["BASE", "Remap", "RoPE", "geometric", "rotate"]
