"""What tasks that make their own sequences share."""
