"""Micro-batch execution of queries."""
