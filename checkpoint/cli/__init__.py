"""Command-line tools for checkpoints, one command per module."""
