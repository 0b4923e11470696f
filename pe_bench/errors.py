"""The one exception that is the user's to fix."""


class InputError(ValueError):
    """Bad input. Its message is one sentence: what is wrong, then what would be right.

    The command line prints it without a traceback and exits with code 2.
    """
