"""Receivers, which run in the driver: their life, their blocks, and the source of a batch."""
