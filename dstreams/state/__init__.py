"""User functions over state, and their stored state."""
