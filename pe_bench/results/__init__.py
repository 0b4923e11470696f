"""Measurements: what they are, how they are kept, what is computed from them."""
