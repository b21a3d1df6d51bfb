"""A stream that counts and has a page; a test ends it and starts it again.

python -m tests.dstreams.monitoring.web.shown_program DIRECTORY PORT
"""

from __future__ import annotations

import sys
from datetime import datetime

from dstreams import StreamingContext, tuned_context


def digit(row: tuple[datetime, int]) -> tuple[str, int]:
    """Return a key of ten, and one."""
    return str(row[1] % 10), 1


def count(ones: list[int], before: int | None) -> int:
    """Return the new count of a key."""
    return sum(ones) + (before or 0)


def defined(directory: str, port: str) -> StreamingContext:
    """Return the streams, and a SparkContext of their own."""
    settings = {
        "spark.ui.enabled": "false",
        "spark.dstreams.ui.enabled": "true",
        "spark.dstreams.ui.port": port,
    }
    ssc = StreamingContext(tuned_context("shown", "local[2]", settings), 1)
    ssc.checkpoint(directory)
    rows = ssc.rateStream(100, uid="rows")
    counts = rows.map(digit).updateStateByKey(count, uid="counts")
    counts.foreachRDD(lambda rdd: rdd.count())
    return ssc


if __name__ == "__main__":
    place, at = sys.argv[1:]
    context = StreamingContext.getOrCreate(place, lambda: defined(place, at))
    context.start()
    context.awaitTermination()
