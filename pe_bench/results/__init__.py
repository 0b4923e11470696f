"""Measurements: data classes, files, export and merging."""
