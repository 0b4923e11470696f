"""The decoder that every encoding is put into, its attention, cache and generation."""

VERSION = 2
"""Part of every run's settings: raise it when the decoder gives other numbers, here or by what it
takes from `pe_bench/encoding.py` and `pe_bench/positions.py`."""
