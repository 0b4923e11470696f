"""The command line, option by option."""
