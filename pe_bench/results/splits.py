"""Names of the splits of evaluation points, and of the means over them."""

ID = "in-distribution"
OOD = "out-of-distribution"
FAR = "far"
"""Lengths far beyond the lengths of OOD, for encodings that support such positions."""
