"""Sinks of structured queries."""
