"""A query of Spark on a topic, in a process of its own, because Spark's source of Kafka is a jar.

``python -m tests.recovery.spark_kafka_query JARS BROKERS TOPIC DIRECTORY`` counts the records of
each value. It writes the rows of each batch to ``rows.json``, and copies the checkpoint in each
batch, as a kill would leave it.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from tests.conformance.oracle_process import oracle_context


def main() -> None:
    """Run the query over the records that there are, three of them in a batch."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - not where the tests run

    jars, brokers, topic, place = sys.argv[1:]
    directory = Path(place)
    settings = {"spark.driver.extraClassPath": jars, "spark.sql.shuffle.partitions": "2"}
    spark = SparkSession(oracle_context("query of Kafka", 1, settings))
    found: dict[int, Any] = {}

    def take(rows: Any, number: int) -> None:
        shutil.copytree(directory / "spark", directory / f"killed-{number}")
        found[number] = sorted(map(list, rows.collect()))

    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", brokers)
    reader = reader.option("subscribe", topic).option("startingOffsets", "earliest")
    records = reader.option("maxOffsetsPerTrigger", 3).load()
    counts = records.selectExpr("cast(value as string) as word").groupBy("word").count()
    writer = counts.writeStream.outputMode("update").foreachBatch(take)
    writer = writer.option("checkpointLocation", f"file://{directory}/spark")
    writer.trigger(availableNow=True).start().awaitTermination()
    (directory / "rows.json").write_text(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main()
