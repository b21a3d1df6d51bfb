"""Tools that look into a checkpoint, judge it, and mend it; a module for each command."""
