"""Which encodings and tasks there are, and what decides their numbers."""
