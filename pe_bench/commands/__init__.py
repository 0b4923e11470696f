"""The commands, a module each: `main(args)` returns the exit code."""
