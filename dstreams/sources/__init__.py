"""Sources: where the records of input streams come from, one kind a module."""
