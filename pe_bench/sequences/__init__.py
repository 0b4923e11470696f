"""Shared code of tasks that make their own sequences."""
