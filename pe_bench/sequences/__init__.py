"""Shared code of tasks that generate their own sequences."""
