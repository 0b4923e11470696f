"""Where the runs of a grid are executed: in this process, in worker processes, on a Ray cluster."""
