"""Listeners of a context: their events, the times of these, and allowed calls."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable
from typing import Any

import pytest
from pyspark import RDD, SparkContext

from dstreams import (
    BatchFailedError,
    InvalidStreamError,
    Settings,
    StreamingContext,
    StreamingContextState,
    StreamingListener,
)
from dstreams.testing import BatchDriver, ManualClock
from tests.dstreams.conftest import MakeContext
from tests.support.waiting import wait_for

ACTIVE, STOPPED = StreamingContextState.ACTIVE, StreamingContextState.STOPPED


class Diary(StreamingListener):
    """Records each event: its kind, the batch time and, for outputs, the id."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.completed: list[Any] = []

    def onStreamingStarted(self, streamingStarted: Any) -> None:
        self.lines.append(f"started {streamingStarted.time()}")

    def onBatchSubmitted(self, batchSubmitted: Any) -> None:
        self.batch("submitted", batchSubmitted)

    def onBatchStarted(self, batchStarted: Any) -> None:
        self.batch("begun", batchStarted)

    def onBatchCompleted(self, batchCompleted: Any) -> None:
        self.batch("completed", batchCompleted)
        self.completed.append(batchCompleted.batchInfo())

    def onOutputOperationStarted(self, outputOperationStarted: Any) -> None:
        self.output("begun", outputOperationStarted)

    def onOutputOperationCompleted(self, outputOperationCompleted: Any) -> None:
        self.output("completed", outputOperationCompleted)

    def batch(self, what: str, event: Any) -> None:
        self.lines.append(f"{event.batchInfo().batchTime().milliseconds()} {what}")

    def output(self, what: str, event: Any) -> None:
        info = event.outputOperationInfo()
        self.lines.append(f"{info.batchTime().milliseconds()} output {info.id()} {what}")


class Stopping(Diary):
    """Stops the context at a batch time."""

    def __init__(self, at_ms: int, stop: Callable[[], None]) -> None:
        super().__init__()
        self.at_ms = at_ms
        self.stop = stop
        self.returned = threading.Event()

    def onBatchStarted(self, batchStarted: Any) -> None:
        super().onBatchStarted(batchStarted)
        if batchStarted.batchInfo().batchTime().milliseconds() == self.at_ms:
            self.stop()
            self.returned.set()


NAMED = Diary()
"""A listener that settings can name."""


def whole_batch(time_ms: int, outputs: int) -> list[str]:
    """Return the entries of a diary for a batch that runs alone."""
    return [
        f"{time_ms} submitted",
        f"{time_ms} begun",
        *(
            f"{time_ms} output {number} {what}"
            for number in range(outputs)
            for what in ("begun", "completed")
        ),
        f"{time_ms} completed",
    ]


def test_a_stepped_batch_has_been_told_when_step_returns(sc: SparkContext) -> None:
    """Submitted, started, each output started and completed, completed."""
    diary = Diary()
    with BatchDriver(sc) as driver:
        numbers = driver.input([[1], [2]])
        driver.output(numbers)
        driver.output(numbers)
        driver.context.addStreamingListener(diary)
        driver.run(1)
        assert diary.lines == ["started 0", *whole_batch(1000, outputs=2)]
        driver.run(1)
        assert diary.lines[8:] == whole_batch(2000, outputs=2)


def test_every_tick_is_told(sc: SparkContext) -> None:
    """Also a batch in which no output has an RDD, and one that fails."""

    def only_good(rdd: RDD[int]) -> RDD[int]:
        if rdd.getNumPartitions() == 0:
            raise ValueError("not this one")
        return rdd

    diary = Diary()
    with BatchDriver(sc) as driver:
        driver.output(driver.input([None, sc.emptyRDD(), [3]]).transform(only_good))
        driver.context.addStreamingListener(diary)
        driver.run(1)
        with pytest.raises(BatchFailedError):
            driver.run(1)
        driver.run(1)
    assert diary.lines == [
        "started 0",
        *whole_batch(1000, outputs=0),
        *whole_batch(2000, outputs=0),
        *whole_batch(3000, outputs=1),
    ]
    empty, failed, good = diary.completed
    assert [info.outcome() for info in diary.completed] == ["empty", "failed", "succeeded"]
    assert empty.failureReason() is good.failureReason() is None
    assert "making the RDD for foreachRDD at " in failed.failureReason()
    where = r"\(test_listeners.py:\d+ in \S+\)"
    assert re.search(rf"ValueError: not this one {where}$", failed.failureReason())
    assert failed.outputOperationInfos().size() == 0


def test_an_output_has_the_name_of_its_operation(sc: SparkContext) -> None:
    """And the line that calls it; outputs that are not due are not announced."""
    announced: list[Any] = []

    class Announced(StreamingListener):
        def onBatchSubmitted(self, batchSubmitted: Any) -> None:
            announced.append(batchSubmitted.batchInfo().outputOperationInfos())

    with BatchDriver(sc) as driver:
        numbers = driver.input([])
        numbers.foreachRDD(lambda rdd: None)
        numbers.window(2, 2).pprint()
        driver.context.addStreamingListener(Announced())
        driver.run(2)
    assert [list(outputs) for outputs in announced] == [[0], [0, 1]]
    names = [output.name() for output in announced[1].values()]
    assert re.fullmatch(r"foreachRDD at test_listeners\.py:\d+", names[0])
    assert re.fullmatch(r"pprint at test_listeners\.py:\d+", names[1])


def test_records_of_the_inputs(sc: SparkContext) -> None:
    """By input stream, in order of definition."""
    diary = Diary()
    with BatchDriver(sc) as driver:
        first = driver.context.queueStream([[1, 2, 3]])
        second = driver.context.queueStream([[4]])
        driver.output(first.union(second))
        driver.context.addStreamingListener(diary)
        driver.run(1)
    [info] = diary.completed
    inputs = info.streamIdToInputInfo()
    assert [(key, inputs[key].numRecords()) for key in inputs] == [(0, 3), (1, 1)]
    assert info.numRecords() == 4
    assert inputs[0].metadataDescription() == "queue item 0"


def test_a_started_stream(ssc: StreamingContext, clock: ManualClock) -> None:
    """Events follow the batches: each is completed before the next one starts."""
    diary = Diary()
    ssc.addStreamingListener(diary)
    ssc.queueStream([[1], [2], [3]]).foreachRDD(lambda rdd: rdd.collect())
    ssc.start()
    clock.advance(3000)
    wait_for(lambda: len(diary.completed) == 3)
    ssc.stop(stopSparkContext=False)
    assert diary.lines[0] == "started 0"
    ran = [line for line in diary.lines[1:] if "submitted" not in line]
    assert ran == [
        line for time_ms in (1000, 2000, 3000) for line in whole_batch(time_ms, outputs=1)[1:]
    ]
    assert [line for line in diary.lines if "submitted" in line] == [
        f"{time_ms} submitted" for time_ms in (1000, 2000, 3000)
    ]


def test_all_is_told_before_stop_returns(ssc: StreamingContext, clock: ManualClock) -> None:
    """Also events that wait for a slow callback."""
    leave = threading.Event()

    class Slow(Diary):
        def onStreamingStarted(self, streamingStarted: Any) -> None:
            assert leave.wait(60)

    slow, ran = Slow(), threading.Event()
    ssc.addStreamingListener(slow)
    ssc.queueStream([[1]]).foreachRDD(lambda rdd: ran.set())
    ssc.start()
    clock.advance(1000)
    assert ran.wait(60)
    stopping = threading.Thread(target=lambda: ssc.stop(stopSparkContext=False), daemon=True)
    stopping.start()
    wait_for(lambda: ssc._bus._is_closed)
    assert slow.lines == []
    assert ssc.getState() is ACTIVE
    leave.set()
    stopping.join(60)
    assert not stopping.is_alive()
    assert ssc.getState() is STOPPED
    assert slow.lines == whole_batch(1000, outputs=1)


def test_a_listener_that_never_returns(
    ssc: StreamingContext, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A stop abandons it, and does not report it as a hanging batch."""
    monkeypatch.setattr("dstreams.engine.lifecycle.LISTENERS_S", 0.5)
    leave = threading.Event()

    class Hanging(StreamingListener):
        def onStreamingStarted(self, streamingStarted: Any) -> None:
            leave.wait(60)

    ssc.addStreamingListener(Hanging())
    ssc.queueStream([]).pprint()
    ssc.start()
    ssc.stop(stopSparkContext=False)
    leave.set()
    assert ssc.getState() is STOPPED
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == [
        "abandoned a listener that did not return within 0.5 s of the stop, and dropped 0 events"
    ]


def test_a_listener_added_while_the_stream_runs(ssc: StreamingContext, clock: ManualClock) -> None:
    """It receives events from then on, until it is removed."""
    seen: list[Any] = []
    first, late = Diary(), Diary()
    ssc.addStreamingListener(first)
    ssc.queueStream([]).foreachRDD(seen.append)
    ssc.start()
    clock.advance(1000)
    wait_for(lambda: len(first.completed) == 1)
    ssc.addStreamingListener(late)
    clock.advance(1000)
    wait_for(lambda: len(late.completed) == 1)
    ssc.removeStreamingListener(late)
    clock.advance(1000)
    wait_for(lambda: len(first.completed) == 3)
    ssc.stop(stopSparkContext=False)
    assert late.lines == whole_batch(2000, outputs=1)


def test_a_listener_that_raises_does_not_hurt(
    sc: SparkContext, caplog: pytest.LogCaptureFixture
) -> None:
    """Batches succeed, the error is logged once, and other listeners receive their events."""

    class Raising(StreamingListener):
        def onBatchCompleted(self, batchCompleted: Any) -> None:
            raise ValueError("I do not like batches")

    diary = Diary()
    with BatchDriver(sc) as driver:
        seen = driver.output(driver.input([[1], [2]]))
        driver.context.addStreamingListener(Raising())
        driver.context.addStreamingListener(diary)
        driver.run(2)
    assert seen == [[1], [2]]
    assert len(diary.completed) == 2
    errors = [record.message for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 1
    assert "Raising raised on BatchCompleted" in errors[0]


@pytest.mark.parametrize("graceful", [False, True])
def test_stopping_from_a_listener(
    ssc: StreamingContext, clock: ManualClock, graceful: bool
) -> None:
    """The call returns at once, and the context stops after the running batch."""
    entered, leave = threading.Event(), threading.Event()

    def output(rdd: RDD[Any]) -> None:
        entered.set()
        assert leave.wait(60)

    stop = lambda: ssc.stop(stopSparkContext=False, stopGraceFully=graceful)  # noqa: E731
    listener = Stopping(1000, stop)
    ssc.addStreamingListener(listener)
    ssc.queueStream([[1]]).foreachRDD(output)
    ssc.start()
    clock.advance(1000)
    assert entered.wait(60)
    assert listener.returned.wait(60)
    assert ssc.getState() is ACTIVE
    leave.set()
    assert ssc.awaitTerminationOrTimeout(60)
    assert listener.lines == ["started 0", *whole_batch(1000, outputs=1)]


def test_stopping_a_stepped_context_from_a_listener(sc: SparkContext) -> None:
    """The running step ends after its batch and returns its results."""
    with BatchDriver(sc) as driver:
        ssc = driver.context
        seen = driver.output(driver.input([[1], [2], [3]]))
        listener = Stopping(2000, lambda: ssc.stop(stopSparkContext=False))
        ssc.addStreamingListener(listener)
        assert [info.batch_time_ms for info in ssc.step(3)] == [1000, 2000]
        assert ssc.getState() is STOPPED
    assert listener.completed[-1].batchTime().milliseconds() == 2000
    assert seen == []


def test_waiting_for_the_end_in_a_listener(ssc: StreamingContext, clock: ManualClock) -> None:
    """It cannot come while the listener waits for it, so the wait times out."""
    outcome: list[bool] = []

    class Waiting(StreamingListener):
        def onBatchCompleted(self, batchCompleted: Any) -> None:
            ssc.stop(stopSparkContext=False)
            outcome.append(ssc.awaitTerminationOrTimeout(0.01))

    ssc.addStreamingListener(Waiting())
    ssc.queueStream([]).pprint()
    ssc.start()
    clock.advance(1000)
    assert ssc.awaitTerminationOrTimeout(60)
    assert outcome == [False]


def test_listeners_by_setting(make_ssc: MakeContext) -> None:
    """Each context has them from the beginning."""
    NAMED.lines.clear()
    ssc = make_ssc(extra_listeners=(f"{__name__}.NAMED",))
    ssc.queueStream([]).foreachRDD(lambda rdd: None)
    ssc.step()
    assert NAMED.lines == ["started 0", *whole_batch(1000, outputs=1)]


def test_listeners_by_setting_that_cannot_be_made(sc: SparkContext) -> None:
    """The context is not created, and the error has the name and the setting."""
    settings = Settings.from_conf({"spark.dstreams.extraListeners": "no.such.Listener"})
    with pytest.raises(InvalidStreamError) as raised:
        StreamingContext(sc, 1, settings=settings)
    assert str(raised.value).startswith(
        "spark.dstreams.extraListeners: cannot create the listener 'no.such.Listener': "
    )


def test_what_is_no_listener(ssc: StreamingContext) -> None:
    """It is refused when it is added."""
    with pytest.raises(InvalidStreamError, match="a listener must be an object, got the class"):
        ssc.addStreamingListener(Diary)
    with pytest.raises(
        InvalidStreamError, match="a listener must have one of the callbacks onStreamingStarted"
    ):
        ssc.addStreamingListener(print)
