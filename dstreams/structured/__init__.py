"""Structured queries: planned, explained and executed on RDDs, with exactly-once state."""
