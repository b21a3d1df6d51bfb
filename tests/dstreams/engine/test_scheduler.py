"""The two threads: order, what waits, and what ends them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import RDD, SparkContext

from dstreams import (
    BatchFailedError,
    Settings,
    SourceError,
    StreamingContext,
    StreamingContextState,
)
from dstreams.common.durations import batch_name
from dstreams.engine.engine import Engine
from dstreams.sources.source import PlannedInput, Source, SourceEnvironment, SourceReader
from dstreams.testing import ManualClock
from tests.support.waiting import wait_for


class Gate:
    """An output that waits in its first batch until the test releases it."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.entered = threading.Event()
        self.leave = threading.Event()

    def __call__(self, rdd: RDD[Any]) -> None:
        self.entered.set()
        assert self.leave.wait(30)
        self.seen += rdd.collect()


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.leave.set()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def threads() -> set[str]:
    return {t.name for t in threading.enumerate() if t.name.startswith("dstreams-")}


def test_the_queue_of_batches_is_bounded(sc: SparkContext, clock: ManualClock, gate: Gate) -> None:
    """If it is full the generator waits, and every batch runs in the end."""
    ssc = StreamingContext(sc, 1, clock=clock, settings=Settings(max_queued_batches=2))
    ssc.queueStream([[number] for number in range(10)]).foreachRDD(gate)
    ssc.start()
    try:
        clock.advance(10_000)
        assert gate.entered.wait(60)
        scheduler = ssc._life.scheduler
        assert scheduler is not None
        wait_for(scheduler._queue.full)
        # One runs, two wait, and one is in the hands of the generator.
        assert scheduler._engine.planner.next_time_ms <= 5000
        gate.leave.set()
        wait_for(lambda: len(gate.seen) == 10)
    finally:
        ssc.stop(stopSparkContext=False)
    assert gate.seen == list(range(10))


def test_stopping_at_once_frees_a_generator_that_waits(
    sc: SparkContext, clock: ManualClock, gate: Gate
) -> None:
    """A full queue does not delay the stop."""
    ssc = StreamingContext(sc, 1, clock=clock, settings=Settings(max_queued_batches=1))
    ssc.queueStream([[number] for number in range(10)]).foreachRDD(gate)
    ssc.start()
    clock.advance(10_000)
    assert gate.entered.wait(60)
    scheduler = ssc._life.scheduler
    assert scheduler is not None
    wait_for(scheduler._queue.full)
    stop = threading.Thread(target=lambda: ssc.stop(stopSparkContext=False), daemon=True)
    stop.start()
    wait_for(scheduler._abandoned.is_set)
    gate.leave.set()
    stop.join(60)
    assert not stop.is_alive()
    assert gate.seen == [0]
    wait_for(lambda: not scheduler._generator.is_alive())


def test_its_threads_end_with_the_context(sc: SparkContext, clock: ManualClock) -> None:
    """One thread plans, one runs, one watches; after the stop there are none."""
    ssc = StreamingContext(sc, 1, clock=clock)
    ssc.queueStream([]).pprint()
    before = threads()  # such as those of a session of structured queries
    ssc.start()
    try:
        names = {"dstreams-generator", "dstreams-batches", "dstreams-watch"}
        wait_for(lambda: threads() - before == names)
    finally:
        ssc.stop(stopSparkContext=False)
    wait_for(lambda: threads() <= before)


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_a_request_to_end_inside_a_batch_ends_the_stream(
    sc: SparkContext, clock: ManualClock, error: type[BaseException]
) -> None:
    """awaitTermination raises the error that ended the thread."""

    def leave(rdd: RDD[Any]) -> None:
        raise error("enough")

    ssc = StreamingContext(sc, 1, clock=clock)
    ssc.queueStream([]).foreachRDD(leave)
    ssc.start()
    try:
        clock.advance(1000)
        wait_for(lambda: ssc.getState() is StreamingContextState.STOPPED)
        with pytest.raises(error, match="enough"):
            ssc.awaitTermination()
    finally:
        ssc.stop(stopSparkContext=False)


def test_errors_are_reported_while_later_batches_run(
    sc: SparkContext, clock: ManualClock, gate: Gate
) -> None:
    """A failure is reported when it happens, not when the queue is empty."""
    ssc = StreamingContext(sc, 1, clock=clock)

    def fail_at_first(time: Any, rdd: RDD[Any]) -> None:
        if time.timestamp() == 1:
            raise ValueError("early")
        gate(rdd)

    ssc.queueStream([[1], [2]]).foreachRDD(fail_at_first)
    ssc.start()
    try:
        clock.advance(2000)
        with pytest.raises(BatchFailedError, match="early"):
            ssc.awaitTerminationOrTimeout(60)
        assert gate.seen == []
        gate.leave.set()
        wait_for(lambda: gate.seen == [2])
    finally:
        ssc.stop(stopSparkContext=False)


def test_a_stream_that_goes_on_after_a_failure_is_stopped_in_the_end(
    sc: SparkContext, clock: ManualClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its log has one entry: the error of the batch, and the outputs it was committed without."""
    ssc = StreamingContext(sc, 1, clock=clock)
    ssc.checkpoint(str(tmp_path))
    seen: list[Any] = []

    def fail_at_first(time: Any, rdd: RDD[Any]) -> None:
        if time.timestamp() == 1:
            raise ValueError("early")
        seen.append(rdd.collect())

    ssc.queueStream([[1], [2]], replayable=True).foreachRDD(fail_at_first)
    ssc.start()
    clock.advance(2000)
    wait_for(lambda: seen == [[2]])
    assert ssc.status().phase == "active"
    ssc.stop(stopSparkContext=False, stopGraceFully=True)
    status = ssc.status()
    assert (status.phase, status.recent[0].outcome) == ("stopped", "failed")
    assert status.failure == status.recent[0].failure
    assert status.totals.batches == {"failed": 1, "succeeded": 1}
    [block] = [each.getMessage() for each in caplog.records if each.levelno == logging.ERROR]
    assert block.startswith(f"{batch_name(1000, 0)} failed in foreachRDD")
    assert block.splitlines()[-1].startswith("outputs foreachRDD-0 of the batch at 1000 ms failed")


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_stream_that_a_failure_ends_has_failed(
    sc: SparkContext, clock: ManualClock, by_hand: bool
) -> None:
    """Both in real time and in steps."""
    ssc = StreamingContext(sc, 1, clock=clock, settings=Settings(on_failure="stop"))

    def fail(rdd: RDD[Any]) -> None:
        raise ValueError("early")

    ssc.queueStream([[1], [2]]).foreachRDD(fail)

    def run() -> None:
        if by_hand:
            ssc.step()
        ssc.start()
        clock.advance(1000)
        ssc.awaitTerminationOrTimeout(60)

    with pytest.raises(BatchFailedError, match="early"):
        run()
    wait_for(lambda: ssc.getState() is StreamingContextState.STOPPED)
    status = ssc.status()
    assert (status.phase, status.totals.batches) == ("failed", {"failed": 1})
    assert "early" in str(status.failure)


class WatchedClock(ManualClock):
    """A clock that reports which batch is waited for."""

    waiting_for_ms = 0

    def wait_until(self, time_ms: int, interrupted: threading.Event) -> bool:
        with self._changed:
            if threading.current_thread().name == "dstreams-generator":
                self.waiting_for_ms = time_ms
            return super().wait_until(time_ms, interrupted)


def test_batches_go_on_when_the_clock_is_set_back(
    sc: SparkContext, caplog: pytest.LogCaptureFixture
) -> None:
    """One batch per second as before, with increasing times; one warning."""
    clock = WatchedClock(7_200_000)
    seen: list[float] = []
    ssc = StreamingContext(sc, 1, clock=clock)
    ssc.queueStream([]).foreachRDD(lambda time, rdd: seen.append(time.timestamp()))
    ssc.start()
    try:
        clock.advance(1000)
        wait_for(lambda: seen == [7201])
        wait_for(lambda: clock.waiting_for_ms == 7_202_000)
        clock.set_back(3_600_000)
        wait_for(lambda: clock.waiting_for_ms == 3_602_000)
        for count in range(2, 5):
            clock.advance(1000)
            wait_for(lambda count=count: len(seen) == count)
        wait_for(lambda: clock.waiting_for_ms == 3_605_000)
        clock.advance(3_601_000)  # and it is set right again
        wait_for(lambda: len(seen) == 5)
    finally:
        ssc.stop(stopSparkContext=False)
    assert seen == [7201, 7202, 7203, 7204, 7205]
    assert caplog.text.count("the clock was set back") == 1


class BrokenWithRest(SourceReader, Source):
    """A source, and its reader, with more records that it cannot read."""

    name = "broken"

    def __init__(self) -> None:
        self.plans = 0

    def open(self, environment: SourceEnvironment) -> BrokenWithRest:
        return self

    def plan(self, start: object, time_ms: int) -> PlannedInput:
        self.plans += 1
        raise SourceError("no more")

    def has_pending(self) -> bool:
        return True


def test_a_graceful_stop_gives_up_a_source_that_fails(sc: SparkContext, clock: ManualClock) -> None:
    """A source that cannot plan fails one batch, and the stop continues."""
    ssc = StreamingContext(sc, 1, clock=clock)
    source = BrokenWithRest()
    ssc._input(source, "broken").pprint()
    ssc.start()
    ssc.stop(stopSparkContext=False, stopGraceFully=True)
    assert source.plans == 1
    with pytest.raises(BatchFailedError, match="no more"):
        ssc.awaitTermination()


@pytest.mark.parametrize("graceful", [True, False])
def test_a_graceful_stop_ends_with_a_checkpoint(
    sc: SparkContext, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, graceful: bool
) -> None:
    """After the last batch, once; an immediate stop has no time for it."""
    events: list[Any] = []
    monkeypatch.setattr(Engine, "checkpoint_now", lambda engine: events.append("checkpoint"))
    ssc = StreamingContext(sc, 1, clock=clock)
    ssc.queueStream([[1], [2]]).foreachRDD(lambda rdd: events.extend(rdd.collect()))
    ssc.start()
    clock.advance(2000)
    wait_for(lambda: events == [1, 2])
    ssc.stop(stopSparkContext=False, stopGraceFully=graceful)
    assert events == [1, 2, *(["checkpoint"] if graceful else [])]


def test_a_checkpoint_that_fails_does_not_fail_the_stop(
    sc: SparkContext,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nothing is lost without it, so it is a warning."""

    def fail(engine: Engine) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Engine, "checkpoint_now", fail)
    ssc = StreamingContext(sc, 1, clock=clock)
    ssc.queueStream([]).pprint()
    ssc.start()
    ssc.stop(stopSparkContext=False, stopGraceFully=True)
    ssc.awaitTermination()
    assert "no checkpoint at the end, the next start takes longer: disk full" in caplog.text


def test_a_last_copy_that_takes_too_long_does_not_hold_up_the_stop(
    sc: SparkContext, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its jobs are cancelled after ten seconds, and the context stops."""
    writing, leave = threading.Event(), threading.Event()

    def write(engine: Engine) -> None:
        writing.set()
        leave.wait(60)

    monkeypatch.setattr(Engine, "checkpoint_now", write)
    monkeypatch.setattr("dstreams.engine.scheduler._SAVE_S", 0.2)
    monkeypatch.setattr("dstreams.engine.scheduler._CANCEL_S", 0.4)
    ssc = StreamingContext(sc, 1, clock=clock, settings=Settings(stop_batch_timeout_ms=100))
    ssc.queueStream([]).pprint()
    ssc.start()
    scheduler = ssc._life.scheduler
    assert scheduler is not None
    try:
        ssc.stop(stopSparkContext=False, stopGraceFully=True)
        assert writing.is_set()
        assert not scheduler._ended.is_set()
        assert ssc.getState() is StreamingContextState.STOPPED
    finally:
        leave.set()
    wait_for(lambda: not scheduler._runner.is_alive())
