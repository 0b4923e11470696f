"""pe-bench: positional encodings for transformers, compared side by side."""

__version__ = "0.1.0"
