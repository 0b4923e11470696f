"""The decoder that all encodings share, with its attention, cache and generation."""

VERSION = 2
"""Part of the settings of every run. Increase it when results of the decoder change, including
changes in `pe_bench/encoding.py` or `pe_bench/positions.py`."""
