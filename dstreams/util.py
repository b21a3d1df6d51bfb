"""The public function of ``pyspark.streaming.util``: names of output directories."""

from __future__ import annotations

from datetime import datetime

from dstreams.common.durations import batch_time_ms
from dstreams.sinks.text_files import TextFilesWriter

__all__ = ["rddToFileName"]


def rddToFileName(prefix: str, suffix: str | None, timestamp: datetime | int) -> str:
    """Return the name of a batch's directory, as written by ``saveAsTextFiles``.

    >>> rddToFileName("counts", "txt", 12345678910)
    'counts-12345678910.txt'

    Args:
        prefix: text before the dash and the time.
        suffix: text after the time and a dot. None: nothing.
        timestamp: batch time, a datetime or milliseconds.

    Semantics: pyspark.streaming.util.rddToFileName.
    """
    if isinstance(timestamp, datetime):
        timestamp = batch_time_ms(timestamp, "timestamp")
    return TextFilesWriter(prefix, suffix).directory(timestamp)
