"""What ``pyspark.streaming`` of Spark 2.4 makes of the bytes of a message, unless told otherwise.

In a module of its own, because workers import it.
"""

from __future__ import annotations


def utf8_decoder(s: bytes | None) -> str | None:
    """Decode the unicode as UTF-8; None stays None."""
    if s is None:
        return None
    return s.decode("utf-8")
