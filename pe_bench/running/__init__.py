"""From a command to rows: options, plan, grid, runs, training."""
