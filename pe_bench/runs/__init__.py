"""One run: from a spec to a result."""
