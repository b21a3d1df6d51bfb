"""A stream that counts words."""
