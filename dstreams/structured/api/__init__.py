"""The public API of structured queries."""
