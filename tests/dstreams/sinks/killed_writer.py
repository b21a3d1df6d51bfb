"""A program that writes batches into a database, and is killed and started again.

Arguments: what to connect to, kills, seed, and whether partitions are written apart. Each life goes
on after the last batch that it is known to have ended, so the batch it was killed in runs again.
More kills, of lives that may last longer, follow until some batches are there.
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, cast

from pyspark import RDD

from dstreams.sinks import OutputBatch, TransactionalSink
from dstreams.spark.worker_gc import settle_worker
from tests.support.postgres import connect as connect_postgres

ROWS = 40
PARTS = 3
BATCHES = 10


class Numbers:
    """As much of an RDD as the sink uses: numbers of one batch, in three partitions."""

    def __init__(self, batch_id: int) -> None:
        self.first = batch_id * ROWS
        self.task: Callable[[int, Iterable[Any]], Iterator[Any]] | None = None

    def toLocalIterator(self) -> Iterator[tuple[int, int]]:
        for number in range(self.first, self.first + ROWS):
            yield number, self.first // ROWS

    def getNumPartitions(self) -> int:
        return PARTS

    def mapPartitionsWithIndex(self, task: Any) -> Numbers:
        self.task = task
        return self

    def collect(self) -> list[Any]:
        assert self.task is not None
        for split in range(PARTS):
            rows = [row for row in self.toLocalIterator() if row[0] % PARTS == split]
            list(self.task(split, rows))
        return []


def connect_sqlite(path: str) -> Any:
    return sqlite3.connect(path, timeout=30, isolation_level="IMMEDIATE")


def connector(target: str) -> Callable[[], Any]:
    if target.startswith("host="):
        return partial(connect_postgres, target)
    return partial(connect_sqlite, target)


def write(mark: str, cursor: Any, rows: Iterable[Any]) -> None:
    for number, batch_id in rows:
        cursor.execute(f"INSERT INTO numbers VALUES ({mark}, {mark})", (number, batch_id))  # noqa: S608


def live(sink: TransactionalSink, ended: int) -> None:
    """Run batches for ever, and say after each that it has ended."""
    batch_id = int(os.pread(ended, 20, 0) or b"-1") + 1
    while True:
        batch = OutputBatch("stream-1-ab", batch_id, 1000 * (batch_id + 1))
        sink.write_batch(batch, cast(RDD[Any], Numbers(batch_id)))
        os.pwrite(ended, b"%020d" % batch_id, 0)
        batch_id += 1


def main(target: str, kills: int, seed: int, per_partition: bool) -> None:
    moments = random.Random(seed)
    mark = "%s" if target.startswith("host=") else "?"
    sink = TransactionalSink(connector(target), partial(write, mark), per_partition=per_partition)
    ended = os.memfd_create("ended")  # outlives those who write it
    settle_worker()  # not in each life
    for kill in range(10 * kills):
        if kill >= kills and int(os.pread(ended, 20, 0) or b"-1") >= BATCHES:
            break
        child = os.fork()
        if child == 0:
            try:
                live(sink, ended)
            finally:
                os._exit(1)
        # No condition: the kill is to come at any moment of the life.
        time.sleep(moments.uniform(0.002, 0.1 * (1 + kill // kills)))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), "a life ended by itself"
    # The batch of the last kill, once more.
    last = int(os.pread(ended, 20, 0) or b"-1") + 1
    final = OutputBatch("stream-1-ab", last, 1000 * (last + 1))
    sink.write_batch(final, cast(RDD[Any], Numbers(last)))
    print(last)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "apart")
