"""From a command to rows: stages, cells of the grid, training."""
