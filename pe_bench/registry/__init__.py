"""The registry of encodings and tasks: names, options, and versions of their code."""
