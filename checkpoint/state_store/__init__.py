"""Versioned key-value state, one store for each partition of an operator."""
