"""Sinks of structured queries: what becomes of the rows of a batch."""
