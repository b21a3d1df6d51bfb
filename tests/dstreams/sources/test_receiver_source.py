"""Received blocks as the input of batches."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

from checkpoint import Files, ReceivedBlocks, StorageRefusedError, open_files
from dstreams.errors import InvalidStreamError, SourceError, StreamLifecycleError
from dstreams.monitoring.events import Event, ReceiverError, ReceiverStarted, ReceiverStopped
from dstreams.sources.received_blocks import decode_records
from dstreams.sources.receiver_source import ReceiverSource
from dstreams.sources.source import PlannedInput, SourceStorage
from dstreams.testing import ManualClock
from tests.support.faults import FaultyFiles
from tests.support.receiving import Calls
from tests.support.surroundings import Driven, Surroundings, Written
from tests.support.waiting import wait_for

AFTER_OPENING = 3
"""The first operation after a reader has looked for what an earlier run left: two listings."""


class Reading:
    """A reader of a receiver, with its events and errors."""

    def __init__(
        self,
        spark: SparkContext | None = None,
        files: Files | None = None,
        written: Written | None = None,
        epoch: int = 1,
        **settings: Any,
    ) -> None:
        self.receiver = Calls()
        self.surroundings = Surroundings()
        self.events: list[Event] = []
        self.written = written or Written(0, {})
        self.clock = ManualClock(5000)
        settings = {"receiver_restart_delay_ms": 1, **settings}
        environment = replace(
            self.surroundings.environment(spark, **settings),
            clock=self.clock,
            on_event=self.events.append,
            storage=None if files is None else SourceStorage(files, "run", "input", epoch),
            past=self.written.past,
        )
        source = ReceiverSource(self.receiver, 3, "receiverStream(Calls)")
        self.reader = Driven(source.open(environment))

    def start(self) -> None:
        self.reader.start()
        self.reader.end = self.written.end(max(self.written.batches, default=0))
        wait_for(lambda: self.events and self.receiver.calls)

    def plan(self, batch_time_ms: int) -> list[Any]:
        """The records that a batch has."""
        return self.records_of(self.written.batch(self.reader, batch_time_ms))

    def records_of(self, planned: PlannedInput) -> list[Any]:
        """The records of a plan, of this run or an earlier one."""
        if planned.start == planned.end:
            return []
        return list(decode_records(self.reader.payloads(planned)))


@pytest.fixture
def read() -> Iterator[Callable[..., Reading]]:
    """Start to read a receiver; the end of the test closes it."""
    made: list[Reading] = []

    def start(spark: SparkContext | None = None, **arguments: Any) -> Reading:
        reading = Reading(spark, **arguments)
        made.append(reading)
        reading.start()
        return reading

    yield start
    for reading in made:
        reading.reader.close()


Read = Callable[..., Reading]


# Batches -----------------------------------------------------------------------------------------


def test_a_batch_has_the_blocks_that_are_there(read: Read) -> None:
    """Each block is in one batch, and counted exactly."""
    reading = read()
    reading.receiver.storeAll(["a", "b"])
    reading.receiver.storeAll(["c"])
    planned = reading.reader.plan(6000)
    assert planned.records == 3
    assert planned.description.startswith("3 records in 2 blocks, ")
    assert reading.records_of(planned) == ["a", "b", "c"]
    assert reading.reader.plan(7000).records == 0


def test_single_records_are_there_after_the_block_interval(read: Read) -> None:
    """The driver's clock ends it."""
    reading = read(block_interval_ms=200)
    reading.receiver.store("a")
    assert reading.plan(6000) == []
    reading.clock.advance(200)
    wait_for(reading.reader.has_pending)
    assert reading.plan(7000) == ["a"]


def test_a_limit_holds_for_batches(read: Read) -> None:
    """Not more than maxRate times the duration of a batch, on average; blocks stay whole."""
    reading = read(receiver_max_rate=10)

    def store_all() -> None:
        for _ in range(10):
            reading.receiver.storeAll([1, 2, 3, 4])

    storing = threading.Thread(target=store_all, daemon=True)
    storing.start()
    while storing.is_alive():
        reading.clock.advance(100)
    counts = [reading.reader.plan(time_ms).records for time_ms in range(6000, 11_000, 1000)]
    assert counts == [12, 8, 12, 8, 0]


def test_the_last_batch_takes_all(read: Read) -> None:
    """After a graceful stop, one more batch reads everything despite the limit."""
    reading = read(receiver_max_rate=10)
    reading.receiver.storeAll(range(15))
    storing = threading.Thread(target=reading.receiver.storeAll, args=([15],), daemon=True)
    storing.start()
    reading.reader.stop_receiving()
    storing.join(60)
    assert reading.reader.has_pending()
    assert reading.reader.waiting_records() == 16
    assert reading.plan(6000) == list(range(16))
    assert not reading.reader.has_pending()
    assert reading.reader.waiting_records() == 0


def test_backpressure_can_set_the_rate(read: Read) -> None:
    """Backpressure limits the receiver."""
    reading = read()
    assert reading.reader.rate_limit == "receiver"
    reading.reader.update_rate(10)
    reading.receiver.storeAll(range(10))
    storing = threading.Thread(target=reading.receiver.storeAll, args=([10],), daemon=True)
    storing.start()
    storing.join(0.1)
    assert storing.is_alive()
    reading.clock.advance(1000)
    storing.join(60)
    assert reading.plan(6000) == list(range(11))


def test_the_receiver_waits_while_batches_take_nothing(read: Read) -> None:
    """Blocks wait in bounded memory, also those of batches that have not run."""
    reading = read(receiver_max_buffer_bytes=2000)
    stored: list[int] = []

    def store_all() -> None:
        with suppress(StreamLifecycleError):  # the test ends before all are stored
            for number in range(10):
                reading.receiver.storeAll([bytes([number]) * 1000])
                stored.append(number)

    storing = threading.Thread(target=store_all, daemon=True)
    storing.start()
    wait_for(lambda: len(stored) == 2)
    planned = reading.reader.plan(6000)
    storing.join(0.1)
    assert len(stored) == 2
    reading.reader.release(planned.end)
    wait_for(lambda: len(stored) == 4)


# RDDs --------------------------------------------------------------------------------------------


def test_a_plan_makes_the_same_rdd_twice(sc: SparkContext, read: Read) -> None:
    """In the order in which the records were stored."""
    reading = read(sc)
    for number in range(5):
        reading.receiver.storeAll([(number, each) for each in range(3)])
    planned = reading.reader.plan(6000)
    expected = [(number, each) for number in range(5) for each in range(3)]
    for _ in range(2):
        assert reading.reader.read(planned).collect() == expected


def test_large_batches_have_partitions(sc: SparkContext, read: Read) -> None:
    """As many as Spark would use, and small batches one."""
    reading = read(sc)
    for _ in range(4):
        reading.receiver.storeAll([b"x" * 20_000])
    assert reading.reader.read(reading.reader.plan(6000)).getNumPartitions() == 2
    reading.receiver.storeAll([1])
    assert reading.reader.read(reading.reader.plan(7000)).getNumPartitions() == 1
    empty = reading.reader.read(reading.reader.plan(8000))
    assert (empty.getNumPartitions(), empty.collect()) == (0, [])


# Write-ahead log ---------------------------------------------------------------------------------


def received(files: Files) -> ReceivedBlocks:
    return ReceivedBlocks(files, "run", "input", 99)


def test_blocks_are_written_ahead(tmp_path: Path, read: Read) -> None:
    """A block is on disk when storeAll returns, and the begin record of its batch names it."""
    files = open_files(tmp_path)
    reading = read(files=files, receiver_write_ahead_log=True)
    reading.receiver.storeAll(["a", "b"])
    reading.receiver.storeAll(["c"])
    found = received(files).read_others([])
    assert [ref.records for ref, _ in found] == [2, 1]
    assert list(decode_records(payload for _, payload in found)) == ["a", "b", "c"]
    reading.plan(6000)
    said = reading.written.batches[6000]
    assert [ref["name"] for ref in said["blocks"]] == [ref.name for ref, _ in found]
    assert said["records"] == 3


def test_blocks_are_deleted_when_no_run_needs_them(tmp_path: Path, read: Read) -> None:
    """Not when this run has read them: a later one may have to."""
    files = open_files(tmp_path)
    reading = read(files=files, receiver_write_ahead_log=True)
    for time_ms in (6000, 7000):
        reading.receiver.storeAll([time_ms])
        reading.plan(time_ms)
    reading.reader.release(reading.reader.end)
    first, second = received(files).names()
    reading.written.retire(reading.reader, 6000)
    assert received(files).names() == [second]
    assert reading.written.facts == {"blocks": [first]}


def test_a_deletion_that_was_cut_off_is_finished(tmp_path: Path, read: Read) -> None:
    """The snapshot says which blocks are not needed, though their batch is not known any more."""
    files = open_files(tmp_path)
    reading = read(files=files, receiver_write_ahead_log=True)
    reading.receiver.storeAll([1])
    reading.plan(6000)
    written = Written(6000, dict(reading.reader.snapshot(reading.reader.end)))
    reading.reader.close()
    later = read(files=files, written=written, receiver_write_ahead_log=True)
    assert received(files).names() == []
    assert later.plan(7000) == []


def test_a_log_needs_a_directory() -> None:
    """The message says what to call."""
    with pytest.raises(
        InvalidStreamError, match=r"without a checkpoint directory; call ssc\.checkpoint"
    ):
        Reading(receiver_write_ahead_log=True)


def test_without_the_setting_nothing_is_written(tmp_path: Path, read: Read) -> None:
    """A checkpoint directory alone does not slow a receiver down."""
    files = open_files(tmp_path)
    reading = read(files=files)
    reading.receiver.storeAll([1])
    assert reading.plan(6000) == [1]
    assert files.list("") == []


def test_a_block_that_cannot_be_written_is_not_acknowledged(tmp_path: Path, read: Read) -> None:
    """The reliable receiver gets the error; it is in no batch, and a second try works."""
    files = FaultyFiles(open_files(tmp_path), AFTER_OPENING, "before", StorageRefusedError)
    reading = read(files=files, receiver_write_ahead_log=True)
    with pytest.raises(StorageRefusedError):
        reading.receiver.storeAll([1])
    assert reading.plan(6000) == []
    reading.receiver.storeAll([1])
    assert reading.plan(7000) == [1]


def test_single_records_wait_for_the_storage(tmp_path: Path, read: Read) -> None:
    """A block that cannot be written is retried, and the error is reported."""
    files = FaultyFiles(open_files(tmp_path), AFTER_OPENING, "before", StorageRefusedError)
    reading = read(files=files, receiver_write_ahead_log=True)
    reading.receiver.store("a")
    reading.clock.advance(1000)
    wait_for(reading.reader.has_pending)
    assert reading.plan(6000) == ["a"]
    (error,) = [event for event in reading.events if isinstance(event, ReceiverError)]
    assert "failed to store" in error.receiver.last_error_message


def test_a_later_run_has_all_that_was_received(tmp_path: Path, read: Read) -> None:
    """Batches as they were planned, then what no batch had, then what is new; all of it once."""
    files = open_files(tmp_path)
    reading = read(files=files, receiver_write_ahead_log=True)
    reading.receiver.storeAll(["a", "b"])
    assert reading.plan(6000) == ["a", "b"]
    assert reading.plan(7000) == []
    reading.receiver.storeAll(["c"])
    assert reading.plan(8000) == ["c"]
    reading.receiver.storeAll(["d"])
    reading.reader.close()
    written = reading.written
    later = read(files=files, written=written, epoch=2, receiver_write_ahead_log=True)
    later.receiver.storeAll(["e"])
    assert [later.plan(time_ms) for time_ms in (6000, 7000, 8000)] == [["a", "b"], [], ["c"]]
    assert later.plan(9000) == ["d", "e"]
    written.retire(later.reader, 9000)
    assert received(files).names() == []


def test_numbers_of_a_later_run_are_no_numbers_of_an_earlier(tmp_path: Path, read: Read) -> None:
    """Each run has an epoch of its own, so no block hides another."""
    files = open_files(tmp_path)
    for run in range(3):
        reading = read(files=files, epoch=run, receiver_write_ahead_log=True)
        reading.receiver.storeAll([run])
        reading.reader.close()
    reading = read(files=files, epoch=3, receiver_write_ahead_log=True)
    assert reading.plan(6000) == [0, 1, 2]


# Life --------------------------------------------------------------------------------------------


def test_listeners_are_told(read: Read) -> None:
    """Started, error, restarted, stopped: with the message and the clock."""
    reading = read()
    reading.receiver.reportError("a bad record", ValueError("x"))
    reading.receiver.restart("lost", OSError("reset"))
    wait_for(lambda: sum(isinstance(event, ReceiverStarted) for event in reading.events) == 2)
    reading.reader.stop_receiving()
    kinds = [type(event) for event in reading.events]
    assert kinds == [
        ReceiverStarted,
        ReceiverError,
        ReceiverStopped,
        ReceiverStarted,
        ReceiverStopped,
    ]
    infos = [event.receiver for event in reading.events]  # type: ignore[union-attr]
    assert [info.active for info in infos] == [True, True, False, True, False]
    assert [info.last_error_message for info in infos] == [
        "",
        "a bad record",
        "lost",
        "lost",
        "stopped by the driver",
    ]
    assert "ValueError: x" in infos[1].last_error
    assert infos[0].last_error_ms is None
    assert infos[1].last_error_ms == 5000
    assert {(info.stream_id, info.name, info.executor_id) for info in infos} == {
        (3, "receiverStream(Calls)", "driver")
    }


def test_a_receiver_that_ends_with_an_error_is_no_secret(read: Read) -> None:
    """awaitTermination raises the error of a stop, but not an expected stop."""
    reading = read()
    reading.receiver.stop("no licence", ValueError("expired"))
    wait_for(lambda: reading.surroundings.errors)
    (error,) = reading.surroundings.errors
    assert isinstance(error, SourceError)
    assert "receiverStream(Calls) stopped for good: no licence" in str(error)
    assert isinstance(error.__cause__, ValueError)
    other = read()
    other.receiver.stop("done")
    wait_for(lambda: other.events[-1:] and isinstance(other.events[-1], ReceiverStopped))
    assert other.surroundings.errors == []


def test_close_without_start_is_quick(read: Read) -> None:
    """Another stream of the context could not be started."""
    reading = Reading()
    reading.reader.close()
    reading.reader.close()
    assert reading.receiver.calls == []
    assert reading.events == []


def test_no_thread_is_left(read: Read) -> None:
    """A closed reader has ended all it began."""
    reading = read()
    reading.receiver.store(1)
    reading.reader.close()
    wait_for(lambda: not [t for t in threading.enumerate() if "Calls" in t.name])
