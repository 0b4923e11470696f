"""Statistics of results: intervals, tests, comparisons, rankings."""
