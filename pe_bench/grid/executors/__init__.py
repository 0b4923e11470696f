"""Executors of a grid's runs: in this process, in worker processes, on a Ray cluster."""
