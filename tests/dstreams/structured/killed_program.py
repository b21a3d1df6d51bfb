"""A query from Parquet to CSV, to be killed at a step of a batch (:mod:`dstreams.common.faults`).

python -m tests.dstreams.structured.killed_program DIRECTORY [URL]

Its checkpoint and its outputs, one of rejected rows, are below URL, or in DIRECTORY. Files that it
has read are archived.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import Row

from dstreams import tuned_context
from dstreams.structured import StreamSession, window


def event_ms(row: Row) -> int:
    """Return when a row happened."""
    return int(row.second) * 1000


def checked(row: Row) -> Row:
    """Return a row with a time, or fail."""
    if row.second < 0:
        raise ValueError(row.second)
    return row


def run(spark: SparkContext, directory: Path, url: str) -> None:
    """Count what there is, file by file, until there is nothing to do."""
    session = StreamSession(
        spark,
        {
            "spark.sql.shuffle.partitions": "2",
            "spark.dstreams.state.localDirectory": str(directory / "local"),
        },
    )
    rejected = session.sink("json", f"{url}/rejected")
    counted = (
        session.readStream.schema("second int")
        .options(cleanSource="archive", sourceArchiveDir=directory / "archive")
        .parquet(directory / "inputs", maxFilesPerTrigger=1)
        .map(checked, onError=rejected)
        .withWatermark(event_ms, "10 seconds", lateOutput=rejected)
        .groupByKey(window(event_ms, "5 seconds"))
        .count()
        .map(lambda row: (row[0].start_ms // 1000, row[1]))
    )
    writer = counted.writeStream.format("csv").option("sep", ":").trigger(availableNow=True)
    query = writer.start(f"{url}/output", checkpointLocation=f"{url}/checkpoint")
    query.awaitTermination()


if __name__ == "__main__":
    context = tuned_context("killed", "local[2,4]", {"spark.ui.enabled": "false"})
    try:
        run(context, Path(sys.argv[1]), sys.argv[-1])
    finally:
        context.stop()
