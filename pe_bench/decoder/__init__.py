"""The decoder that all encodings share, with its attention, cache and generation."""

VERSION = 2
"""Part of the settings of every run. Raise it when results of the decoder change, also through a
change of `pe_bench/encoding.py` or `pe_bench/positions.py`."""
