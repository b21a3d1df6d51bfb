"""A driver that runs a batch of every program for each line it is sent.

Its argument is a :class:`Job` in JSON. Its standard output has a JSON object for the start, and one
for each line: the rows of each program, by number of the batch.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from pyspark import RDD, SparkContext

from checkpoint import CommitLog, open_files
from dstreams import StreamingContext, tuned_context
from dstreams.structured import StreamSession
from dstreams.testing import ManualClock
from tests.cluster.programs import RECORDS, STREAMS, from_topic_to_topic, numbers_of, query
from tests.support.gates import DIRECTORY
from tests.support.jvms import OF_SPARK

PARTITIONS = 3


@dataclass(frozen=True)
class Job:
    """What a driver runs, and where.

    Args:
        master: URL of the Spark master.
        host: address of the driver.
        checkpoint: URL below which streams and the query have their checkpoints.
        files: directory of the input of the query.
        brokers: of Kafka; empty to leave its program out.
        topics: its input and output.
        settings: of Spark, in addition to those of all drivers.
    """

    master: str
    host: str
    checkpoint: str
    files: str
    brokers: str = ""
    topics: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)


_rows: dict[int, dict[str, list[Any]]] = {}


def keep(program: str, batch: int, rdd: RDD[Any]) -> None:
    """Keep the rows of a batch for the next answer."""
    _rows.setdefault(batch, {})[program] = rdd.collect()


def keep_at(program: str, time: Any, rdd: RDD[Any]) -> None:
    keep(program, round(time.timestamp()), rdd)


def define(spark: SparkContext, job: Job) -> StreamingContext:
    ssc = StreamingContext(spark, 1, clock=ManualClock())
    numbers = ssc.rateStream(RECORDS, numPartitions=PARTITIONS, uid="numbers").map(
        lambda row: row[1]
    )
    for name, program in STREAMS.items():
        program(numbers).foreachRDD(partial(keep_at, name))
    if job.brokers:
        from_topic_to_topic(ssc, job.brokers, *job.topics)
    return ssc


def write_file(directory: Path, batch: int) -> None:
    """Write the input of the query for a batch, unless a driver before did."""
    file = directory / f"{batch:04}.txt"
    if not file.exists():
        hidden = directory / f".{file.name}"
        hidden.write_text("".join(f"{number}\n" for number in numbers_of(batch)))
        hidden.rename(file)


def newest_batch(checkpoint: str) -> int:
    """Return the number of the newest committed batch, 0 if there is none."""
    latest = CommitLog(open_files(checkpoint)).latest()
    return 0 if latest is None else latest.batch_time_ms // 1000


def tell(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def run(spark: SparkContext, job: Job) -> None:
    streams = f"{job.checkpoint}/streams"
    newest = newest_batch(streams)
    ssc = StreamingContext.restore(streams, partial(define, spark, job))
    files = Path(job.files)
    started = query(StreamSession(spark), files, f"{job.checkpoint}/query", keep)
    tell(ready=os.getpid())
    while text := sys.stdin.readline().strip():
        batch = int(text)
        if batch > newest:  # else a driver before was killed after its commit
            # The next batch, if that commit became visible only now.
            newest = ssc.step()[-1].batch_time_ms // 1000
        write_file(files, batch)
        started.processAllAvailable()
        tell(rows={number: _rows.pop(number) for number in sorted(_rows) if number <= batch})
    started.stop()
    ssc.stop(stopSparkContext=False)


def main(job: Job) -> None:
    settings = {
        "spark.driver.bindAddress": job.host,
        "spark.driver.host": job.host,
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.default.parallelism": str(PARTITIONS),
        "spark.task.maxFailures": "20",
        "spark.stage.maxConsecutiveAttempts": "100",
        "spark.ui.enabled": "false",
        "spark.dstreams.ui.enabled": "false",
        "spark.python.daemon.module": "tests.cluster.worker_daemon",
        "spark.executor.extraJavaOptions": OF_SPARK,
        "spark.driver.extraJavaOptions": OF_SPARK,
        f"spark.executorEnv.{DIRECTORY}": os.environ[DIRECTORY],
    }
    spark = tuned_context("a cluster under faults", job.master, {**settings, **job.settings})
    try:
        run(spark, job)
    finally:
        spark.stop()


if __name__ == "__main__":
    main(Job(**json.loads(sys.argv[1])))
