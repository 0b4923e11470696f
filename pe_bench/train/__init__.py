"""The training loop, its checkpoints and its processes. It knows no task and no run."""
