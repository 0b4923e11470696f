"""Removal of dangerous characters from text of untrusted sources."""

import re

# Control characters, characters that change the direction of text, and surrogates.
FORBIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """Replace the characters that could control a terminal."""
    return text if text.isprintable() else FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", text)
