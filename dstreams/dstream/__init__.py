"""Streams as programs see them."""

from dstreams.dstream.dstream import DStream

__all__ = ["DStream"]
