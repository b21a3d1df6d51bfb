"""A query over files, to be killed at a step of a batch (:mod:`dstreams.common.faults`).

python -m tests.dstreams.structured.killed_program DIRECTORY
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark import SparkContext

from dstreams import tuned_context
from dstreams.structured import StreamSession, window


def event_ms(line: str) -> int:
    """Return when a line happened."""
    return int(line) * 1000


def run(spark: SparkContext, directory: Path) -> None:
    """Count what there is, file by file, until there is nothing to do."""
    session = StreamSession(
        spark,
        {
            "spark.sql.shuffle.partitions": "2",
            "spark.dstreams.state.localDirectory": str(directory / "local"),
        },
    )
    counted = (
        session.readStream.text(str(directory / "inputs"), maxFilesPerTrigger=1)
        .withWatermark(event_ms, "10 seconds")
        .groupByKey(window(event_ms, "5 seconds"))
        .count()
        .map(lambda row: f"{row[0].start_ms // 1000}:{row[1]}")
    )
    writer = counted.writeStream.format("text").trigger(availableNow=True)
    query = writer.start(
        str(directory / "output"), checkpointLocation=str(directory / "checkpoint")
    )
    query.awaitTermination()


if __name__ == "__main__":
    context = tuned_context("killed", "local[2,4]", {"spark.ui.enabled": "false"})
    try:
        run(context, Path(sys.argv[1]))
    finally:
        context.stop()
