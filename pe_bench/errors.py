"""The exceptions that the command line answers with a sentence instead of a traceback."""


class InputError(ValueError):
    """Bad input. Its message is one sentence: what is wrong, then what would be right.

    The command line prints it and exits with code 2; the rest of a grid goes on.
    """


class SavingError(Exception):
    """A result could not be saved. It stops everything: to go on would be to lose work."""
