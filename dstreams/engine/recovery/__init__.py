"""Going on after an earlier run: one module for each of its phases."""
