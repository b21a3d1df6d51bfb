"""What ``pyspark.streaming.util`` has for programs: the names of directories of batches."""

from __future__ import annotations

from datetime import datetime

from dstreams.common.durations import batch_time_ms
from dstreams.sinks.text_files import TextFilesWriter

__all__ = ["rddToFileName"]


def rddToFileName(prefix: str, suffix: str | None, timestamp: datetime | int) -> str:
    """Return the name that ``saveAsTextFiles`` gives the directory of a batch.

    >>> rddToFileName("counts", "txt", 12345678910)
    'counts-12345678910.txt'

    Args:
        prefix: what is before the dash and the time.
        suffix: what follows the time after a dot. None: nothing.
        timestamp: batch time, as a datetime or in milliseconds.

    Semantics: pyspark.streaming.util.rddToFileName.
    """
    if isinstance(timestamp, datetime):
        timestamp = batch_time_ms(timestamp, "timestamp")
    return TextFilesWriter(prefix, suffix).directory(timestamp)
