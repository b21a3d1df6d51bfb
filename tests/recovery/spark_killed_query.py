"""A query of Spark, in a process of its own that is killed by SIGKILL in a batch.

``python -m tests.recovery.spark_killed_query DIRECTORY MOMENT NUMBER`` reads the files in ``in``,
one in a batch, until it is killed at a moment of batch NUMBER.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.conformance.oracle_process import oracle_context

SCHEMA = "user string, at timestamp, n int, price double, cost decimal(20,2)"


def distinct_counts(rows: Any) -> Any:
    """Return the query: it has a state of what it has seen, and a state of windows."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - not before the process of Spark

    distinct = rows.withWatermark("at", "10 seconds").dropDuplicates(["user", "at"])
    return distinct.groupBy(f.window("at", "10 seconds")).agg(f.count("*"))


def _plan(rows: Any) -> None:
    """Compute nothing: only the offsets are logged."""


def _write_in_part(rows: Any) -> None:
    """Write the first state, and one of two partitions of the second."""
    rows.rdd.context.runJob(rows.rdd, list, [0])


MOMENTS: dict[str, Callable[[Any], None]] = {
    "planned": _plan,
    "state is written in part": _write_in_part,
}
"""What a batch does before the kill; at any other moment it is committed, and no other is begun."""


def main() -> None:
    """Run the query until it is killed."""
    from pyspark.sql import SparkSession  # noqa: PLC0415

    directory, moment, last = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    # A batch without data would begin as soon as the last one with data is committed.
    settings = {
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    }
    spark = SparkSession(oracle_context("killed query", 2, settings))

    def kill() -> None:
        gateway: Any = spark.sparkContext._gateway
        gateway.proc.kill()
        os.kill(os.getpid(), signal.SIGKILL)

    def take(rows: Any, number: int) -> None:
        if number == last and moment in MOMENTS:
            MOMENTS[moment](rows)
            kill()
        rows.collect()

    reader = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
    writer = distinct_counts(reader.json(f"file://{directory}/in")).writeStream.foreachBatch(take)
    query = writer.option("checkpointLocation", f"file://{directory}/spark").start()
    query.processAllAvailable()
    kill()


if __name__ == "__main__":
    main()
