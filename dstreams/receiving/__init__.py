"""Receivers at work: their life, their blocks, and the way from an executor to the driver."""
