"""What BatchInfo says of records: of files and RDD queues as well, without a job for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import RDD, SparkContext

from dstreams import BatchFailedError, StreamingContext
from dstreams.spark.partitioner import StablePartitioner
from dstreams.testing import BatchDriver, ManualClock
from tests.support.jobs import count_jobs


@pytest.fixture
def ssc(sc: SparkContext) -> Iterator[StreamingContext]:
    context = StreamingContext(sc, 1, clock=ManualClock())
    yield context
    context.stop(stopSparkContext=False)


def test_queues_of_rdds_and_files_are_counted(
    ssc: StreamingContext, sc: SparkContext, tmp_path: Path
) -> None:
    """One job for the one output, and both counts."""
    queue = [sc.parallelize(range(number), 2) for number in (5, 0)]
    lines = ssc.fileStream(str(tmp_path), newFilesOnly=False, maxFileAge=float("inf"))
    lines.union(ssc.queueStream(queue).map(str)).foreachRDD(lambda rdd: rdd.count())
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    (tmp_path / "b.txt").write_text("three")
    infos: list[Any] = []
    assert count_jobs(sc, lambda: infos.extend(ssc.step(3))) == 3
    name = f"fileStream({tmp_path})"
    assert [info.records for info in infos] == [
        {name: 3, "queueStream": 5},
        {name: 0, "queueStream": 0},
        {name: 0, "queueStream": 0},
    ]
    assert [info.inputs[0].records for info in infos] == [3, 0, 0]


def test_what_nobody_reads_is_not_counted(ssc: StreamingContext, sc: SparkContext) -> None:
    """Not by an output that asks for no record, and not when no output uses the stream."""
    used, unused = (ssc.queueStream([sc.parallelize(range(5), 2)]) for _ in range(2))
    assert unused is not used
    used.foreachRDD(lambda rdd: rdd.getNumPartitions())
    (info,) = ssc.step()
    assert info.records == {"queueStream #0": None, "queueStream #1": None}


def test_what_is_read_in_part_is_not_counted(ssc: StreamingContext, sc: SparkContext) -> None:
    """take(1) leaves it open; reading the rest, also by another output, settles it."""
    numbers = ssc.queueStream([sc.parallelize(range(10), 2) for _ in range(2)])
    numbers.foreachRDD(lambda rdd: rdd.take(1))
    reads_all: list[bool] = [False, True]
    numbers.foreachRDD(lambda rdd: rdd.count() if reads_all.pop(0) else None)
    assert [info.records for info in ssc.step(2)] == [{"queueStream": None}, {"queueStream": 10}]


def test_a_batch_that_failed_says_what_was_read(ssc: StreamingContext, sc: SparkContext) -> None:
    """Its input was read to the end by the output before the one that failed."""

    def fail(rdd: RDD[int]) -> None:
        raise RuntimeError("no")

    numbers = ssc.queueStream([sc.parallelize(range(10), 2)])
    numbers.foreachRDD(lambda rdd: rdd.count())
    numbers.foreachRDD(fail)
    with pytest.raises(BatchFailedError) as failed:
        ssc.step()
    assert failed.value.batch_infos[0].records == {"queueStream": 10}


def test_a_state_reads_its_input_once(sc: SparkContext) -> None:
    """Counted where the shuffle reads it, and an RDD that is placed already is not moved."""
    placed = StablePartitioner(2)
    pairs = sc.parallelize([(word, 1) for word in "aabc"], 3)
    with BatchDriver(sc) as driver:
        stream = driver.input([pairs, pairs.partitionBy(2, placed.partitionFunc), None])
        counts = stream.updateStateByKey(lambda values, state: sum(values) + (state or 0))
        totals = driver.output(counts)
        infos = driver.run(3)
    assert [info.records for info in infos] == [
        {"queueStream": 4},
        {"queueStream": 4},
        {"queueStream": 0},
    ]
    assert totals[2] is not None
    assert sorted(totals[2]) == [("a", 4), ("b", 2), ("c", 2)]


def test_a_known_count_is_told_before_anything_runs(ssc: StreamingContext) -> None:
    """Lists are counted by their length, whether they are read or not."""
    ssc.queueStream([[1, 2, 3]]).foreachRDD(lambda rdd: None)
    (info,) = ssc.step()
    assert info.records == {"queueStream": 3}
