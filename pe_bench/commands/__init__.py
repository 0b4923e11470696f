"""The commands. Each one is a module whose `main(args)` returns the exit code."""
