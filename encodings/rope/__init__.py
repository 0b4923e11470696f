"""What other encodings import: `from pe_bench.encodings.rope import RoPE, rotate`."""

from pe_bench.encodings.rope.encoding import RoPE, geometric, rotate

__all__ = ["RoPE", "geometric", "rotate"]
