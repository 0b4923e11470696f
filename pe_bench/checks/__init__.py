"""Checks of properties that encodings and tasks declare, and costs of encodings."""
