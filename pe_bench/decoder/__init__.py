"""The decoder that every encoding is put into, its attention, cache and generation."""
