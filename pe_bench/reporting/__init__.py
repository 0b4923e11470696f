"""From rows to tables and pictures. Never imports torch."""
