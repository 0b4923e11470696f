"""What other encodings import: `from pe_bench.encodings.rope import RoPE, rotate`."""

from pe_bench.encodings.rope.encoding import RoPE, geometric, rotate
from pe_bench.encodings.rope.remap import Remap

__all__ = ["Remap", "RoPE", "geometric", "rotate"]
