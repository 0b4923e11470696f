"""Whether encodings do what they declare, and what they cost."""
