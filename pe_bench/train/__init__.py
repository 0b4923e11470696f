"""The training loop, its checkpoints and its processes, independent of tasks and runs."""
