"""Files, the console, the environment."""
