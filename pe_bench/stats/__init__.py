"""Statistics of results: tests, comparisons, rankings. Functions of numbers; no files."""
