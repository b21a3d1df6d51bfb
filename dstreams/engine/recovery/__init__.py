"""Resuming a stream from its checkpoint."""
