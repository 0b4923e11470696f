"""Where the cells of a grid run: here one after the other, in processes beside it, on a cluster."""
