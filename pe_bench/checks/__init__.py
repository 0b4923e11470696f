"""Checks of the declared properties of encodings and tasks, and costs of encodings."""
