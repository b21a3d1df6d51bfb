"""The offsets, RDDs and record counts of inputs."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import RDD, SparkContext

from checkpoint import BeginRecord
from checkpoint.storage.json_records import encode
from dstreams import BatchFailedError, StreamingContext
from dstreams.engine.inputs import InputOffsets, planned_before, planned_in
from dstreams.sources.source import PlannedInput
from dstreams.spark.partitioner import StablePartitioner
from dstreams.testing import BatchDriver, ManualClock
from tests.support.jobs import count_jobs


class Partitions:
    """A reader whose offset has a number per partition of a topic, and that records calls."""

    not_replayable_reason: str | None = None

    def __init__(self, size: int | None = 0) -> None:
        self.size = size
        self.calls: list[tuple[str, Any]] = []

    def snapshot_size(self) -> int | None:
        return self.size

    def snapshot(self, end: Any) -> Mapping[str, Any]:
        return {"upto": end}

    def retire(self, end: Any) -> None:
        self.calls.append(("retire", end))

    def release(self, end: Any) -> None:
        self.calls.append(("release", end))


def at(number: int) -> dict[str, int]:
    return {"0": number, "1": 2 * number}


def begun(*batches: tuple[int, PlannedInput | None]) -> dict[int, BeginRecord]:
    """Return begin records as a restart reads them, of batches with or without the input."""
    return {
        time_ms: BeginRecord(
            "stream", 0, time_ms, 1, {} if one is None else {"topic": read_back(one.to_record())}
        )
        for time_ms, one in batches
    }


def read_back(said: Mapping[str, Any]) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(encode(said))
    return read


def planned(time_ms: int, start: int | None, end: int | None, **more: Any) -> PlannedInput:
    first, last = (None if number is None else at(number) for number in (start, end))
    return PlannedInput(time_ms, first, last, **more)


@pytest.mark.parametrize(
    "one",
    [
        planned(1000, None, None),
        planned(1000, None, 3),
        planned(1000, 3, 3, description="nothing new"),
        planned(1000, 3, 4, facts={"files": ["a"]}, records=None, description="a"),
        planned(1000, 3, 4, records=0),
    ],
)
def test_what_a_batch_reads_comes_back_from_its_record(one: PlannedInput) -> None:
    """Each batch counts, with or without records, from the previous end or from the beginning."""
    assert PlannedInput.from_record(1000, read_back(one.to_record())) == one


def test_the_next_batch_reads_after_the_last_one() -> None:
    """Also after a restart, with batches between that did not have the input."""
    before = begun((1000, planned(1000, None, 1)), (2000, None), (3000, planned(3000, 1, 2)))
    reader: Any = Partitions()
    ends = InputOffsets({"topic": reader}, before, 2000)
    assert ends.newest("topic") == at(1)
    assert [ends.at("topic", ms) for ms in (999, 1000, 2500)] == [None, at(1), at(1)]
    ends.begun(3000, {"topic": at(2), "of another stream": 7})
    assert ends.newest("topic") == at(2)
    assert planned_in(before, "topic") == {
        1000: planned(1000, None, 1),
        3000: planned(3000, 1, 2),
    }


@pytest.mark.parametrize(("size", "is_kept"), [(0, True), (None, False)])
def test_ends_are_kept_as_long_as_a_snapshot_may_ask(size: int | None, is_kept: bool) -> None:
    """Only for readers that depend on history; for others as long as RDDs are used."""
    one = Partitions(size)
    reader: Any = one
    ends = InputOffsets({"topic": reader}, {}, 0)
    for number in range(1, 5):
        ends.begun(number * 1000, {"topic": at(number)})
    ends.release("topic", 500)
    ends.release("topic", 3000)
    assert one.calls == [("release", at(3))]
    assert ends.at("topic", 2000) == (at(2) if is_kept else None)
    assert ends.snapshot(2999) == ({"topic": {"upto": at(2)}} if is_kept else {})
    ends.retire(2999)
    assert one.calls[1:] == ([("retire", at(2))] if is_kept else [])
    assert ends.at("topic", 1999) is None
    assert ends.at("topic", 3000) == at(3)
    assert ends.newest("topic") == at(4)


def test_what_is_gone_with_a_driver_is_planned_no_more(caplog: pytest.LogCaptureFixture) -> None:
    """The log reports the number of lost records and the reason; offsets continue after them."""
    caplog.set_level(logging.WARNING)
    source: Any = SimpleNamespace(name="lines", restart_refusal=None)
    reader: Any = Partitions()
    said = planned(1000, 1, 2, records=5).to_record()
    assert planned_before(source, reader, 1000, said) == planned(1000, 1, 2, records=5)
    assert planned_before(source, reader, 1000, None) is None
    reader.not_replayable_reason = "it cannot replay"
    assert planned_before(source, reader, 1000, said) == planned(1000, 2, 2, description="lost")
    assert caplog.messages == [
        "lines: 5 records of the batch at 1000 ms are lost: it cannot replay"
    ]
    source.restart_refusal = "it cannot be resumed"
    assert planned_before(source, reader, 1000, said) == planned(1000, 1, 2, records=5)


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
    """Inputs without an output, and inputs whose output reads no record, are not counted."""
    used, unused = (ssc.queueStream([sc.parallelize(range(5), 2)]) for _ in range(2))
    assert unused is not used
    used.foreachRDD(lambda rdd: rdd.getNumPartitions())
    (info,) = ssc.step()
    assert info.records == {"queueStream #0": None, "queueStream #1": None}


def test_what_is_read_in_part_is_not_counted(ssc: StreamingContext, sc: SparkContext) -> None:
    """After take(1) the count is unknown; another output that reads the rest completes it."""
    numbers = ssc.queueStream([sc.parallelize(range(10), 2) for _ in range(2)])
    numbers.foreachRDD(lambda rdd: rdd.take(1))
    reads_all: list[bool] = [False, True]
    numbers.foreachRDD(lambda rdd: rdd.count() if reads_all.pop(0) else None)
    assert [info.records for info in ssc.step(2)] == [{"queueStream": None}, {"queueStream": 10}]


def test_a_batch_that_failed_says_what_was_read(ssc: StreamingContext, sc: SparkContext) -> None:
    """The output before the failed one read the input to its end."""

    def fail(rdd: RDD[int]) -> None:
        raise RuntimeError("no")

    numbers = ssc.queueStream([sc.parallelize(range(10), 2)])
    numbers.foreachRDD(lambda rdd: rdd.count())
    numbers.foreachRDD(fail)
    with pytest.raises(BatchFailedError) as failed:
        ssc.step()
    assert failed.value.batch_infos[0].records == {"queueStream": 10}


def test_a_state_reads_its_input_once(sc: SparkContext) -> None:
    """Counted where the shuffle reads it; an RDD that is already placed is not moved."""
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
