"""Sinks: what an output operation does with the RDD of a batch, one kind a module."""
