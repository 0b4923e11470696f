"""What the suite asks of the machine: files, the console, the environment."""
