"""The commands. Each one is a module whose `main(values)` returns the exit code."""
