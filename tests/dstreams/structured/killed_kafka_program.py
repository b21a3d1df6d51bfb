"""A query from Kafka to Kafka, to be killed at a step of a batch (:mod:`dstreams.common.faults`).

python -m tests.dstreams.structured.killed_kafka_program BROKERS SOURCE TARGET DIRECTORY
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark import SparkContext

from dstreams import tuned_context
from dstreams.structured import StreamSession


def run(spark: SparkContext, brokers: str, source: str, target: str, directory: Path) -> None:
    """Count values, two records a batch, until there is nothing to do."""
    session = StreamSession(
        spark,
        {
            "spark.sql.shuffle.partitions": "2",
            "spark.dstreams.state.localDirectory": str(directory / "local"),
        },
    )
    reader = session.readStream.format("kafka").option("kafka.bootstrap.servers", brokers)
    reader = reader.options(subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger=2)
    counts = reader.load().groupByKey(lambda row: row.value).count()
    writer = counts.map(lambda pair: (pair[0], str(pair[1]))).writeStream.format("kafka")
    writer = writer.option("kafka.bootstrap.servers", brokers).option("topic", target)
    writer = writer.outputMode("update").trigger(availableNow=True)
    writer.start(checkpointLocation=str(directory / "checkpoint")).awaitTermination()


if __name__ == "__main__":
    context = tuned_context("killed", "local[2,4]", {"spark.ui.enabled": "false"})
    try:
        run(context, *sys.argv[1:4], Path(sys.argv[4]))
    finally:
        context.stop()
