"""Receivers, and what a graceful stop owes them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from pyspark import RDD, SparkContext

from dstreams import Receiver, Settings, StreamingContext, StreamingListener
from dstreams.testing import ManualClock
from tests.support.waiting import wait_for

MakeContext = Callable[..., StreamingContext]


@pytest.fixture
def make_ssc(sc: SparkContext) -> Iterator[MakeContext]:
    """Make contexts, and stop them when the test ends."""
    contexts: list[StreamingContext] = []

    def make(
        batch_duration: float = 0.2, clock: ManualClock | None = None, **settings: Any
    ) -> StreamingContext:
        settings = {"block_interval_ms": 50, "receiver_restart_delay_ms": 10, **settings}
        ssc = StreamingContext(sc, batch_duration, clock=clock, settings=Settings(**settings))
        contexts.append(ssc)
        return ssc

    yield make
    for ssc in contexts:
        ssc.stop(stopSparkContext=False)


def collected(stream: Any) -> list[Any]:
    """All records of a stream, as they come."""
    seen: list[Any] = []
    stream.foreachRDD(lambda rdd: seen.extend(rdd.collect()))
    return seen


class Threads(Receiver):
    """Stores with several threads until each has stored its records."""

    def __init__(self, threads: int, records: int) -> None:
        super().__init__()
        self.shape = (threads, records)

    def onStart(self) -> None:
        threads, records = self.shape
        self.threads = [
            threading.Thread(target=self.send, args=(thread, records), daemon=True)
            for thread in range(threads)
        ]
        for thread in self.threads:
            thread.start()

    def onStop(self) -> None:
        for thread in self.threads:
            thread.join(300)

    def send(self, thread: int, records: int) -> None:
        for record in range(records):
            self.store((thread, record))


def test_many_threads(make_ssc: MakeContext) -> None:
    """Ten threads store a thousand records each: all arrive, once, those of a thread in order."""
    ssc = make_ssc()
    seen = collected(ssc.receiverStream(Threads(10, 1000)))
    ssc.start()
    wait_for(lambda: len(seen) >= 10_000)
    ssc.stop(stopSparkContext=False, stopGraceFully=True)
    assert len(seen) == 10_000
    for thread in range(10):
        assert [record for of, record in seen if of == thread] == list(range(1000))


def test_ids_are_numbers_by_creation(make_ssc: MakeContext) -> None:
    """Of all input streams together; a receiver knows its own."""
    ssc = make_ssc()
    receivers = [Threads(1, 1), Threads(1, 1)]
    streams = [
        ssc.receiverStream(receivers[0]),
        ssc.queueStream([]),
        ssc.receiverStream(receivers[1]),
    ]
    assert [stream._node.stream_id for stream in streams] == [0, 1, 2]
    assert [receiver.streamId for receiver in receivers] == [0, 2]


class Troubled(Receiver):
    """Reports an error, restarts once, and stops for good."""

    def onStart(self) -> None:
        self.starts = getattr(self, "starts", 0) + 1
        if self.starts == 1:
            self.reportError("a bad record", ValueError("x"))
            self.restart("connection lost", OSError("reset"))
        else:
            self.stop("no more data")

    def onStop(self) -> None:
        pass


class Notes(StreamingListener):
    """Notes what it is told of receivers."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, bool, str]] = []
        self.infos: list[Any] = []

    def note(self, kind: str, info: Any) -> None:
        self.infos.append(info)
        self.seen.append((kind, info.active(), info.lastErrorMessage()))

    def onReceiverStarted(self, receiverStarted: Any) -> None:
        self.note("started", receiverStarted.receiverInfo())

    def onReceiverError(self, receiverError: Any) -> None:
        self.note("error", receiverError.receiverInfo())

    def onReceiverStopped(self, receiverStopped: Any) -> None:
        self.note("stopped", receiverStopped.receiverInfo())


def test_what_becomes_of_a_receiver_is_told(make_ssc: MakeContext) -> None:
    """Started, error, restarted, stopped: each with its message, and whether it is active."""
    ssc = make_ssc()
    collected(ssc.receiverStream(Troubled()))
    notes = Notes()
    ssc.addStreamingListener(notes)
    ssc.start()
    wait_for(lambda: len(notes.seen) == 5)
    assert notes.seen == [
        ("started", True, ""),
        ("error", True, "a bad record"),
        ("stopped", False, "connection lost"),
        ("started", True, "connection lost"),
        ("stopped", False, "no more data"),
    ]
    assert {(info.streamId(), info.name()) for info in notes.infos} == {
        (0, "receiverStream(Troubled)")
    }
    assert "ValueError: x" in notes.infos[1].lastError()
    assert notes.infos[1].lastErrorTime() > 0
    assert {(info.location(), info.executorId()) for info in notes.infos} == {
        (socket.gethostname(), "driver")
    }
    assert ssc.awaitTerminationOrTimeout(0) is False


class Endless(Receiver):
    """Stores numbers as fast as it may."""

    def onStart(self) -> None:
        self.stored = 0
        self.thread = threading.Thread(target=self.send, daemon=True)
        self.thread.start()

    def onStop(self) -> None:
        self.thread.join(300)

    def send(self) -> None:
        while not self.isStopped():
            self.store(self.stored)
            self.stored += 1


@pytest.mark.deep
def test_the_rate_is_limited_from_the_first_batch_on(make_ssc: MakeContext) -> None:
    """With a hundred records a second, the batches never have more than as many in all."""
    clock = ManualClock()
    ssc = make_ssc(
        1,
        clock,
        receiver_max_rate=100,
        block_interval_ms=200,
        stop_batch_timeout_ms=600_000,
    )
    receiver = Endless()
    counts: list[int] = []
    ssc.receiverStream(receiver).foreachRDD(lambda rdd: counts.append(rdd.count()))
    ssc.start()
    for passed_ms in range(0, 8000, 20):
        wait_for(lambda due=passed_ms // 10: receiver.stored >= due)  # type: ignore[misc]
        clock.advance(20)
        batches = (passed_ms + 20) // 1000
        wait_for(lambda batches=batches: len(counts) == batches)  # type: ignore[misc]
    ssc.stop(stopSparkContext=False, stopGraceFully=True)  # a block may have been stored late
    sums = list(accumulate(counts))
    assert all(found <= 100 * seconds + 1 for seconds, found in enumerate(sums, 1)), counts
    assert sums[-1] >= 790, counts


class Told(Receiver):
    """Stores numbers; the last record, which onStop stores, says how many there were."""

    def __init__(self, pause_s: float = 0.0, last_words: int = 0) -> None:
        super().__init__()
        self.pause_s = pause_s
        self.last_words = last_words

    def onStart(self) -> None:
        self.stored = 0
        self.ending = threading.Event()
        self.thread = threading.Thread(target=self.send, daemon=True)
        self.thread.start()

    def onStop(self) -> None:
        self.ending.set()
        self.thread.join(300)
        for _ in range(self.last_words):
            threading.Event().wait(0.01)
            self.send_one()
        self.store(f"stored {self.stored}")

    def send(self) -> None:
        while not self.isStopped():
            self.send_one()
            self.ending.wait(self.pause_s)

    def send_one(self) -> None:
        self.store(self.stored)
        self.stored += 1


@pytest.mark.deep
@pytest.mark.parametrize(
    ("pause_s", "last_words", "job_s"),
    [
        pytest.param(0.0002, 0, 0, id="fast receiver"),
        pytest.param(0.05, 60, 0, id="slow receiver"),
        pytest.param(0.001, 0, 0.6, id="long jobs"),
    ],
)
def test_a_graceful_stop_processes_all(
    make_ssc: MakeContext, pause_s: float, last_words: int, job_s: float
) -> None:
    """All that was received, also what a receiver stores while it ends, and with a backlog."""
    ssc = make_ssc(stop_batch_timeout_ms=600_000)
    seen: list[Any] = []

    def process(rdd: RDD[Any]) -> None:
        threading.Event().wait(job_s)
        seen.extend(rdd.collect())

    ssc.receiverStream(Told(pause_s, last_words)).foreachRDD(process)
    ssc.start()
    wait_for(lambda: len(seen) > 20)
    ssc.stop(stopSparkContext=False, stopGraceFully=True)
    *numbers, last = seen
    assert last == f"stored {len(numbers)}"
    assert numbers == list(range(len(numbers)))


def test_blocks_are_on_disk_before_their_batch(make_ssc: MakeContext, tmp_path: Path) -> None:
    """With the log, begin records name them; when their batches are done, they are gone."""
    ssc = make_ssc(receiver_write_ahead_log=True)
    ssc.checkpoint(str(tmp_path))
    named: list[bool] = []
    seen: list[Any] = []

    def process(rdd: RDD[Any]) -> None:
        (stream,) = tmp_path.glob("stream-*")
        records = rdd.collect()
        if records:
            begun = "".join(path.read_text("latin-1") for path in stream.glob("batches/*"))
            named.append(any(path.name in begun for path in stream.glob("received/*/*")))
        seen.extend(records)

    ssc.receiverStream(Threads(1, 100)).foreachRDD(process)
    ssc.start()
    wait_for(lambda: len(seen) == 100)
    wait_for(lambda: not list(tmp_path.rglob("*.block")))
    assert any(named)


def test_old_rdds_of_a_receiver_stream_are_unpersisted(
    sc: SparkContext, make_ssc: MakeContext
) -> None:
    """The newest RDD is persisted, the ones before it are gone from memory."""
    clock = ManualClock()
    ssc = make_ssc(1, clock)
    receiver = Endless()
    mapped = ssc.receiverStream(receiver).map(lambda number: number + 1).cache()
    ids: list[int] = []

    def note(rdd: RDD[Any]) -> None:
        rdd.count()
        ids.append(rdd.id())

    mapped.foreachRDD(note)
    ssc.start()
    for batch in range(1, 5):
        clock.advance(1000)
        wait_for(lambda batch=batch: len(ids) == batch)  # type: ignore[misc]
    wait_for(lambda: not set(ids[:-2]) & set(map(int, sc._jsc.getPersistentRDDs().keySet())))
    assert ids[-1] in set(map(int, sc._jsc.getPersistentRDDs().keySet()))


def test_receivers_take_no_core(sc: SparkContext, make_ssc: MakeContext) -> None:
    """More of them than Spark has threads receive, and their batches run."""
    ssc = make_ssc()
    count = sc.defaultParallelism + 1
    seen = collected(ssc.union(*[ssc.receiverStream(Threads(1, 1)) for _ in range(count)]))
    ssc.start()
    wait_for(lambda: seen == [(0, 0)] * count)


def test_a_stop_that_is_not_graceful_is_quick(make_ssc: MakeContext) -> None:
    """A receiver that never stops to store, and a full buffer, hold nobody up."""
    ssc = make_ssc(60, receiver_max_buffer_bytes=1000)
    collected(ssc.receiverStream(Endless()))
    ssc.start()
    stopping = threading.Thread(target=lambda: ssc.stop(stopSparkContext=False), daemon=True)
    stopping.start()
    stopping.join(300)
    assert not stopping.is_alive()
    wait_for(lambda: not [t for t in threading.enumerate() if "receiverStream" in t.name])
