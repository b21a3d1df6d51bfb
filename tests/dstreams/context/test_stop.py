"""Stopping: at once or gracefully, from outside and from inside a batch, and in time."""

from __future__ import annotations

import logging
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from pyspark import RDD, SparkContext

from checkpoint.state_store.replica_files import stream_directory
from dstreams import (
    IncompleteStopError,
    Receiver,
    StateSpec,
    StreamingContext,
    StreamingContextState,
    StreamingListener,
)
from dstreams.testing import ManualClock
from tests.dstreams.conftest import MakeContext
from tests.support.waiting import wait_for

ROOT = Path(__file__).parents[3]


class Gate:
    """An output that waits in its first batch until the test releases it."""

    def __init__(self) -> None:
        self.seen: list[list[Any]] = []
        self.entered = threading.Event()
        self.leave = threading.Event()

    def __call__(self, rdd: RDD[Any]) -> None:
        self.entered.set()
        assert self.leave.wait(300)
        self.seen.append(rdd.collect())


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.leave.set()


def in_background(ssc: StreamingContext, **parameters: bool) -> threading.Thread:
    """Call stop() on a thread, and return when it has taken effect."""
    thread = threading.Thread(
        target=lambda: ssc.stop(stopSparkContext=False, **parameters), daemon=True
    )
    thread.start()
    scheduler = ssc._life.scheduler
    assert scheduler is not None
    wait_for(scheduler._stopping.is_set)
    return thread


def add(values: list[int], state: int | None) -> int:
    return sum(values) + (state or 0)


def queued(ssc: StreamingContext) -> int:
    assert ssc._life.scheduler is not None
    return ssc._life.scheduler._queue.qsize()


# At once -------------------------------------------------------------------------------------


def test_batches_that_wait_are_not_begun(
    ssc: StreamingContext, clock: ManualClock, gate: Gate
) -> None:
    """The running batch is finished, waiting ones are dropped."""
    ssc.queueStream([[1], [2], [3]]).foreachRDD(gate)
    ssc.start()
    clock.advance(3000)
    assert gate.entered.wait(300)
    wait_for(lambda: queued(ssc) == 2)
    stopping = in_background(ssc)
    gate.leave.set()
    stopping.join(300)
    assert not stopping.is_alive()
    assert gate.seen == [[1]]
    assert ssc.getState() is StreamingContextState.STOPPED


seen: list[list[Any]] = []
"""The output of a resumed program: pickled by name."""


stop_in_output: list[str] = []
"""Not empty: the output stops the context as soon as there is a state."""


def note(rdd: RDD[Any]) -> None:
    seen.append(sorted(rdd.collect()))
    if seen[-1] and stop_in_output:
        active = StreamingContext.getActive()
        assert active is not None
        active.stop(stopSparkContext=False)


def slow_pair(words: Iterator[str]) -> Iterator[tuple[str, int]]:
    for word in words:
        if word == "slow":
            time.sleep(300)  # does not end by itself
        yield word, 1


def total(values: list[int], state: int | None) -> int:
    return sum(values) + (state or 0)


def never() -> StreamingContext:
    raise AssertionError("the set-up function must not be called")


class StopsAt(StreamingListener):
    """A listener that stops the context when a batch has completed."""

    def __init__(self, ssc: StreamingContext, time_ms: int) -> None:
        self.ssc, self.time_ms = ssc, time_ms

    def onBatchCompleted(self, batchCompleted: Any) -> None:
        if batchCompleted.batchInfo().batchTime().milliseconds() == self.time_ms:
            self.ssc.stop(stopSparkContext=False)


WHEN = [
    "between batches",
    "in a batch that is cut off",
    "stepped",
    "stepped, by a listener",
    "stepped, by an output",
]


@pytest.mark.deep
@pytest.mark.parametrize("when", WHEN)
def test_a_stop_at_once_keeps_the_state_of_what_cannot_be_read_again(
    sc: SparkContext, make_ssc: MakeContext, clock: ManualClock, tmp_path: Path, when: str
) -> None:
    """The last snapshot of the state has what a socket sent for committed batches."""
    seen.clear()
    ssc = make_ssc()
    ssc.checkpoint(str(tmp_path))
    if when == "stepped, by a listener":
        ssc.addStreamingListener(StopsAt(ssc, 2000))
    stop_in_output[:] = [when] if when == "stepped, by an output" else []
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(300)
        words = ssc.socketTextStream("127.0.0.1", server.getsockname()[1])
        words.mapPartitions(slow_pair).updateStateByKey(total).checkpoint(20).foreachRDD(note)
        if when.startswith("stepped"):
            ssc.step()
        else:
            ssc.start()
        with server.accept()[0] as connection:
            connection.sendall(b"a\nb\na\n")
            assert ssc._engine is not None
            (reader,) = ssc._engine.readers.values()
            wait_for(lambda: reader.waiting_records() == 3)
            if when.startswith("stepped"):
                ssc.step()
            else:
                clock.advance(1000)
                wait_for(lambda: len(seen) == 1)
                wait_for(lambda: list(tmp_path.glob("stream-*/commits/*")))
            if when == "in a batch that is cut off":
                connection.sendall(b"slow\n")
                wait_for(reader.has_pending)
                clock.advance(1000)
                wait_for(lambda: active_jobs(sc))
            if not when.startswith("stepped, "):
                ssc.stop(stopSparkContext=False)
    assert ssc.getState() is StreamingContextState.STOPPED
    stop_in_output.clear()
    ssc = StreamingContext.getOrCreate(str(tmp_path), never)
    ssc.step()
    ssc.stop(stopSparkContext=False)
    assert seen[-1] == [("a", 2), ("b", 1)]


def active_jobs(sc: SparkContext) -> list[int]:
    return list(sc.statusTracker().getActiveJobsIds())


@pytest.mark.deep
@pytest.mark.parametrize("graceful", [False, True])
def test_a_job_that_takes_too_long_is_cancelled(
    sc: SparkContext,
    make_ssc: MakeContext,
    clock: ManualClock,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    graceful: bool,
) -> None:
    """So is the job of the next output, nothing of the stream runs on, and one message says so.

    The caller of a graceful stop gets it as an error after everything has stopped.
    """

    def endless(numbers: Any) -> Iterator[int]:
        (tmp_path / "begun").touch()
        time.sleep(300)  # does not end by itself
        yield from numbers

    ssc = make_ssc(stop_batch_timeout_ms=10)
    stream = ssc.queueStream([sc.parallelize([1], 1)]).mapPartitions(endless)
    for _ in range(3):
        stream.foreachRDD(lambda rdd: rdd.collect())
    ssc.start()
    clock.advance(1000)
    wait_for((tmp_path / "begun").exists)
    left = "the batch at 1000 ms (1970-01-01 00:00:01) did not run to its end"
    with caplog.at_level(logging.WARNING, "dstreams"):
        if graceful:
            with pytest.raises(
                IncompleteStopError, match=re.escape(f"(it timed out after 0.01 s); {left}")
            ):
                ssc.stop(stopSparkContext=False, stopGraceFully=True)
        else:
            ssc.stop(stopSparkContext=False)
    (message,) = caplog.messages
    assert message.endswith(f"{left}; lost: records of queueStream that were not counted")
    assert ssc.getState() is StreamingContextState.STOPPED
    wait_for(lambda: active_jobs(sc) == [])
    assert ssc._life.scheduler is not None
    assert not ssc._life.scheduler._runner.is_alive()
    with pytest.raises(IncompleteStopError) if graceful else nullcontext():
        ssc.awaitTermination()
    assert sc.parallelize([1, 2]).sum() == 3


# Gracefully ----------------------------------------------------------------------------------


def test_a_graceful_stop_says_how_many_batches_it_runs(
    ssc: StreamingContext, clock: ManualClock, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    """No further batch runs: the two extra ticks of Spark are not imitated."""
    ssc.queueStream([[1], [2], [3], [4]]).foreachRDD(gate)
    ssc.start()
    clock.advance(3000)
    assert gate.entered.wait(300)
    wait_for(lambda: queued(ssc) == 2)
    stopping = in_background(ssc, stopGraceFully=True)
    wait_for(lambda: "the streams stop after the 3 batches that are due" in caplog.text)
    gate.leave.set()
    stopping.join(300)
    assert not stopping.is_alive()
    assert gate.seen == [[1], [2], [3]]


def test_a_graceful_stop_says_how_long_it_takes(
    ssc: StreamingContext, clock: ManualClock, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    """From the batches that ran, with the way to shorten it; a later stop does not repeat it."""
    batches: list[int] = []

    def output(rdd: RDD[Any], batchId: int) -> None:
        batches.append(batchId)
        if batchId == 0:
            clock.advance(90_000)
        else:
            gate(rdd)

    ssc.queueStream([], default=[1]).foreachRDD(output)
    ssc.start()
    clock.advance(1000)
    assert gate.entered.wait(300)
    wait_for(lambda: queued(ssc) == 89)

    def stop_gracefully() -> None:
        with pytest.raises(IncompleteStopError):
            ssc.stop(stopSparkContext=False, stopGraceFully=True)

    stopping = threading.Thread(target=stop_gracefully, daemon=True)
    stopping.start()
    wait_for(lambda: "batches that are due" in caplog.text)
    assert (
        "the streams stop after the 90 batches that are due, about 135 min at 90 s each; "
        "stop(stopGraceFully=False) stops them at once, and spark.dstreams.stop.batchTimeout "
        "limits the time"
    ) in caplog.text
    at_once = in_background(ssc)
    scheduler = ssc._life.scheduler
    assert scheduler is not None
    wait_for(scheduler._abandoned.is_set)
    scheduler.request_stop(abandon=False)  # as at the end of the process
    gate.leave.set()
    for thread in (stopping, at_once):
        thread.join(300)
    assert caplog.text.count("batches that are due") == 1
    assert batches == [0, 1]


@pytest.mark.deep
def test_missed_batches_are_no_part_of_a_graceful_stop(
    make_ssc: MakeContext, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It ends after the running batch; the next start runs the others, each once."""
    seen: list[Any] = []
    entered, leave = tmp_path / "entered", tmp_path / "leave"  # a function with a lock is refused

    def restored(clock: ManualClock) -> StreamingContext:
        def setup() -> StreamingContext:
            ssc = make_ssc()
            ssc._clock = clock
            counts = ssc.rateStream(1).map(lambda row: ("all", 1)).updateStateByKey(add)
            counts.foreachRDD(output)
            return ssc

        return StreamingContext.restore(str(tmp_path / "checkpoint"), setup)

    def output(rdd: RDD[Any], batchId: int) -> None:
        seen.append((batchId, dict(rdd.collect())))
        if batchId == 2:
            entered.touch()
            while not leave.exists():
                threading.Event().wait(0.02)

    first = restored(ManualClock())
    first.step(2)
    first.stop(stopSparkContext=False)
    second = restored(ManualClock(20_000))
    second.start()
    wait_for(entered.exists)
    with caplog.at_level(logging.INFO, "dstreams"):
        stopping = in_background(second, stopGraceFully=True)
        leave.touch()
        stopping.join(300)
    assert not stopping.is_alive()
    assert [batch for batch, _ in seen] == [0, 1, 2]
    assert "the streams stop after the running batch; missed batches are left to the next" in (
        caplog.text
    )
    assert "did not run to their end" in caplog.text
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    second.awaitTermination()
    third = restored(ManualClock(20_000))
    third.step(17)
    assert [batch for batch, _ in seen] == list(range(20))
    totals = [counts.get("all", 0) for _, counts in seen]
    assert totals == list(range(totals[0], totals[0] + 20))


@pytest.mark.parametrize("chosen", [False, True])
def test_copies_of_stored_state_after_a_stop(
    make_ssc: MakeContext, tmp_path: Path, chosen: bool
) -> None:
    """They are deleted from a temporary directory, and stay in a configured one."""
    temporary = Path(tempfile.gettempdir(), f"dstreams-state-{os.getuid()}")  # also of workers
    local = tmp_path / "local" if chosen else temporary
    ssc = make_ssc(state_local_directory=str(local) if chosen else None)
    ssc.checkpoint(str(tmp_path / "checkpoint"))
    pairs = ssc.queueStream([[("a", 1)]] * 3)
    pairs.mapWithState(StateSpec.function(lambda key, value, state: state.update(value))).pprint()
    ssc.step(3)
    (checkpoint,) = (tmp_path / "checkpoint").glob("stream-*")
    made = Path(stream_directory(str(local), checkpoint.name))
    assert made.exists()
    ssc.stop(stopSparkContext=False)
    assert made.exists() == chosen


def test_a_graceful_stop_of_an_idle_stream_runs_nothing(
    ssc: StreamingContext, clock: ManualClock
) -> None:
    """If nothing was received there is no last batch, and the clock need not move."""
    seen: list[Any] = []
    ssc.queueStream([[1]]).foreachRDD(seen.append)
    ssc.start()
    ssc.stop(stopSparkContext=False, stopGraceFully=True)
    assert seen == []


def test_a_graceful_stop_runs_what_a_socket_received(
    make_ssc: MakeContext, clock: ManualClock
) -> None:
    """Everything received is in one last batch, at the next batch time."""
    ssc = make_ssc()
    seen: list[tuple[float, list[str]]] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(300)
        lines = ssc.socketTextStream("127.0.0.1", server.getsockname()[1])
        lines.foreachRDD(lambda time, rdd: seen.append((time.timestamp(), rdd.collect())))
        ssc.start()
        with server.accept()[0] as connection:
            connection.sendall(b"one\n")
            assert ssc._engine is not None
            (reader,) = ssc._engine.readers.values()
            wait_for(reader.has_pending)
            clock.advance(1000)
            wait_for(lambda: len(seen) == 1)
            connection.sendall(b"".join(b"%d\n" % number for number in range(5000)))
            wait_for(lambda: reader.waiting_records() >= 4000)
            ssc.stop(stopSparkContext=False, stopGraceFully=True)
    assert seen[0] == (1, ["one"])
    ((time_s, last),) = seen[1:]
    assert time_s == 2
    assert last == [str(number) for number in range(len(last))]
    assert len(last) >= 4000


def test_a_graceful_stop_does_not_wait_for_failed_batches(
    ssc: StreamingContext, clock: ManualClock, gate: Gate
) -> None:
    """A failed batch has ended, too."""

    def fail(rdd: RDD[Any]) -> None:
        raise ValueError("every batch")

    stream = ssc.queueStream([[1], [2]])
    stream.foreachRDD(fail)
    stream.foreachRDD(gate)
    ssc.start()
    clock.advance(2000)
    assert gate.entered.wait(300)
    stopping = in_background(ssc, stopGraceFully=True)
    gate.leave.set()
    stopping.join(300)
    assert gate.seen[:1] == [[1]]
    assert ssc.getState() is StreamingContextState.STOPPED


class StandsStill(Receiver):
    """A receiver that stores nothing by itself."""

    def onStart(self) -> None: ...

    def onStop(self) -> None: ...


@pytest.mark.parametrize("graceful", [False, True])
def test_what_a_stop_leaves_out_is_told_in_one_message(
    make_ssc: MakeContext,
    clock: ManualClock,
    gate: Gate,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    graceful: bool,
) -> None:
    """Running and waiting batches, and the records of each input, also those in no batch."""
    for limit in ("_GRACE_S", "_CANCEL_S"):
        monkeypatch.setattr(f"dstreams.engine.scheduler.{limit}", 0.1)
    ssc = make_ssc(stop_batch_timeout_ms=200)
    receiver = StandsStill()
    stored = ssc.receiverStream(receiver)
    stored.union(ssc.queueStream([["a"], ["b", "c"]])).foreachRDD(gate)
    ssc.start()
    wait_for(receiver.isStarted)
    receiver.storeAll(["in the first batch"])
    clock.advance(1000)
    assert gate.entered.wait(300)
    receiver.storeAll(["in", "the", "next"])
    clock.advance(1000)
    wait_for(lambda: queued(ssc) == 1)
    receiver.storeAll(["in", "no", "batch", "yet"])
    lost = "lost: 8 records of receiverStream(StandsStill), 3 records of queueStream"
    with caplog.at_level(logging.WARNING, "dstreams"):
        if graceful:
            with pytest.raises(IncompleteStopError) as raised:
                ssc.stop(stopSparkContext=False, stopGraceFully=True)
            assert raised.value.batch_times_ms == (1000, 2000, 3000)
            assert raised.value.lost == {"receiverStream(StandsStill)": 8, "queueStream": 3}
        else:
            ssc.stop(stopSparkContext=False)
    upto = 3 if graceful else 2
    assert [message for message in caplog.messages if "lost" in message] == [
        (
            "a graceful stop did not run all that was received (it timed out after 0.2 s); "
            if graceful
            else "the streams stopped (an immediate stop was requested); "
        )
        + f"{upto} batches did not run to their end, from 1000 ms (1970-01-01 00:00:01) to "
        f"{upto}000 ms (1970-01-01 00:00:0{upto}); {lost}"
    ]


def test_a_graceful_stop_waits_for_a_batch_longer_than_ten_batches(
    make_ssc: MakeContext, clock: ManualClock, gate: Gate
) -> None:
    """As in Spark, it waits an hour by default, and not a number of batches."""
    ssc = make_ssc(batch_duration=0.001)
    ssc.queueStream([[1]]).foreachRDD(gate)
    ssc.start()
    clock.advance(1)
    assert gate.entered.wait(300)
    stopping = in_background(ssc, stopGraceFully=True)
    stopping.join(1)
    assert stopping.is_alive()
    gate.leave.set()
    stopping.join(300)
    assert gate.seen == [[1]]


def test_a_stop_at_once_ends_a_graceful_one(
    ssc: StreamingContext, clock: ManualClock, gate: Gate
) -> None:
    """A waiting graceful stop raises the unfinished work; an immediate stop does not."""
    ssc.queueStream([[1], [2]]).foreachRDD(gate)
    ssc.start()
    clock.advance(2000)
    assert gate.entered.wait(300)
    told: list[IncompleteStopError] = []

    def stop_gracefully() -> None:
        with pytest.raises(IncompleteStopError) as raised:
            ssc.stop(stopSparkContext=False, stopGraceFully=True)
        told.append(raised.value)

    waiting = threading.Thread(target=stop_gracefully, daemon=True)
    waiting.start()
    scheduler = ssc._life.scheduler
    assert scheduler is not None
    wait_for(lambda: scheduler.is_graceful)
    at_once = in_background(ssc)
    wait_for(scheduler._abandoned.is_set)
    gate.leave.set()
    for thread in (at_once, waiting):
        thread.join(300)
        assert not thread.is_alive()
    assert [error.batch_times_ms for error in told] == [(2000,)]
    assert gate.seen == [[1]]


# From inside ---------------------------------------------------------------------------------


@pytest.mark.parametrize("graceful", [False, True])
def test_stop_inside_a_batch(ssc: StreamingContext, clock: ManualClock, graceful: bool) -> None:
    """It returns at once, the batch runs to its end, and then the context stops."""
    seen: list[list[int]] = []
    states: list[StreamingContextState] = []

    def stop(rdd: RDD[int]) -> None:
        ssc.stop(stopSparkContext=False, stopGraceFully=graceful)
        states.append(ssc.getState())

    numbers = ssc.queueStream([[1], [2]])
    numbers.foreachRDD(stop)
    numbers.foreachRDD(lambda rdd: seen.append(rdd.collect()))
    ssc.start()
    clock.advance(1000)
    assert ssc.awaitTerminationOrTimeout(300)
    assert states == [StreamingContextState.ACTIVE]
    assert seen == [[1]]
    assert ssc.getState() is StreamingContextState.STOPPED


def test_two_threads_may_stop_at_once(ssc: StreamingContext, clock: ManualClock) -> None:
    """The second of two stops has nothing to do."""
    ssc.queueStream([[1]]).pprint()
    ssc.start()
    stops = [
        threading.Thread(target=lambda: ssc.stop(stopSparkContext=False), daemon=True)
        for _ in range(4)
    ]
    for stop in stops:
        stop.start()
    for stop in stops:
        stop.join(300)
    assert not [stop for stop in stops if stop.is_alive()]
    assert ssc.getState() is StreamingContextState.STOPPED


# And Spark with it ---------------------------------------------------------------------------

PROGRAM = """
from pyspark import SparkContext
from dstreams import StreamingContext, tuned_context
from dstreams.testing import ManualClock

def is_stopped(spark):
    return spark._jsc is None and SparkContext._active_spark_context is None

def started(**conf):
    spark, clock = tuned_context("stop", "local[1]", conf), ManualClock()
    ssc = StreamingContext(spark, 1, clock=clock)
    return spark, clock, ssc

spark, clock, ssc = started()
ssc.queueStream([]).pprint()
ssc.start()
ssc.stop()
print("default stops Spark:", is_stopped(spark))

spark, clock, ssc = started(**{"spark.streaming.stopSparkContextByDefault": "false"})
ssc.queueStream([]).pprint()
ssc.start()
ssc.stop()
print("the setting of Scala does not count:", is_stopped(spark))

spark, clock, ssc = started()
ssc.stop()
print("also before the start:", is_stopped(spark))

spark, clock, ssc = started()
ssc.queueStream([]).pprint()
ssc.start()
ssc.stop(stopSparkContext=False)
print("on request not:", not is_stopped(spark))
ssc.stop(stopSparkContext=True)
print("a second stop may:", is_stopped(spark))

spark, clock, ssc = started()
ssc.queueStream([[1]]).foreachRDD(lambda rdd: ssc.stop())
ssc.start()
clock.advance(1000)
print("inside a batch:", ssc.awaitTerminationOrTimeout(300))
ssc._life.scheduler._runner.join(300)
print("Spark stopped after it:", is_stopped(spark))

spark, clock, ssc = started()
ssc.queueStream([[1]]).map(str).foreachRDD(lambda rdd: rdd.collect())
ssc.start()
spark.stop()
clock.advance(1000)
try:
    print(ssc.awaitTerminationOrTimeout(300))
except Exception as error:
    print("without Spark:", type(error).__name__)
ssc._life.scheduler._runner.join(300)
print("the context:", ssc.getState().value)
ssc.stop()
"""


@pytest.mark.deep
@pytest.mark.spark
def test_spark_is_stopped_on_request() -> None:
    """By default, by a second stop, from inside a batch; if Spark ended, the stream ends."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout.splitlines() == [
        "default stops Spark: True",
        "the setting of Scala does not count: True",
        "also before the start: True",
        "on request not: True",
        "a second stop may: True",
        "inside a batch: True",
        "Spark stopped after it: True",
        "without Spark: BatchFailedError",
        "the context: STOPPED",
    ], done.stderr[-3000:]
    assert done.returncode == 0
