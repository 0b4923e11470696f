"""The exceptions that the command line answers with a sentence instead of a traceback."""

import difflib


class InputError(ValueError):
    """Bad input. Its message is one sentence: what is wrong, then what would be right.

    The command line prints it and exits with code 2; the rest of a grid goes on.
    """


class SavingError(Exception):
    """A result could not be saved. It stops everything: to go on would be to lose work."""


def suggest(wrong: str, right: list[str]) -> str:
    """ " (did you mean 'x'?)" where something close exists, else an empty string."""
    close = difflib.get_close_matches(wrong, right, n=1, cutoff=0.6)
    return f" (did you mean '{close[0]}'?)" if close else ""
