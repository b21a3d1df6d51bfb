"""Logical plans of queries, the checks they must pass, and their planning."""
