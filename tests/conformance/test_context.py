"""Errors in one batch, streams made of several, time-outs, what is refused."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark import RDD, SparkContext

from dstreams import (
    BatchFailedError,
    DStream,
    InvalidStreamError,
    Settings,
    StreamingContext,
    StreamingContextState,
    StreamingListener,
    StreamLifecycleError,
)
from dstreams.common.callables import describe
from dstreams.common.durations import batch_name
from dstreams.testing import BatchDriver, ManualClock
from tests.conformance.tables import Table
from tests.support.waiting import wait_for

HERE = "test_context.py"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def ssc(sc: SparkContext, clock: ManualClock) -> Iterator[StreamingContext]:
    """A context of one second, driven by *clock*, and stopped when the test ends."""
    context = StreamingContext(sc, 1, clock=clock)
    yield context
    context.stop(stopSparkContext=False)


def one_is_bad(x: int) -> int:
    if x == 1:
        raise ValueError("one is bad")
    return x


@pytest.mark.deep
def test_an_error_in_one_batch(ssc: StreamingContext, clock: ManualClock) -> None:
    """Later batches run, and the error is raised by awaitTermination."""
    collected: list[list[int]] = []
    numbers = ssc.queueStream([[0], [1], [2], [3]]).map(one_is_bad)
    numbers.foreachRDD(lambda rdd: collected.append(rdd.collect()))
    ssc.start()
    clock.advance(4000)
    wait_for(lambda: len(collected) == 3)
    assert collected == [[0], [2], [3]]
    with pytest.raises(
        BatchFailedError, match=r"batch \d+ at 2000 ms \(.*?\) failed .* one is bad"
    ):
        ssc.awaitTermination()
    assert ssc.getState() is StreamingContextState.ACTIVE


def test_with_stop_on_failure(sc: SparkContext, clock: ManualClock) -> None:
    """With on_failure "stop" the failed batch is the last one."""
    ssc = StreamingContext(sc, 1, clock=clock, settings=Settings(on_failure="stop"))
    collected: list[list[int]] = []
    numbers = ssc.queueStream([[0], [1], [2], [3]]).map(one_is_bad)
    numbers.foreachRDD(lambda rdd: collected.append(rdd.collect()))
    ssc.start()
    clock.advance(4000)
    wait_for(lambda: ssc.getState() is StreamingContextState.STOPPED)
    assert collected == [[0]]
    with pytest.raises(
        BatchFailedError, match=r"batch \d+ at 2000 ms \(.*?\) failed .* one is bad"
    ):
        ssc.awaitTermination()


@pytest.mark.deep
@pytest.mark.parametrize("on_failure", ["continue", "stop"])
def test_steps_over_a_batch_that_fails(sc: SparkContext, on_failure: Any) -> None:
    """A further step runs the next batch, or there is none because the context is stopped."""
    ssc = StreamingContext(sc, 1, clock=ManualClock(), settings=Settings(on_failure=on_failure))
    numbers = ssc.queueStream([[0], [1], [2]]).map(one_is_bad)
    later: list[int] = []
    numbers.foreachRDD(lambda rdd: rdd.collect())
    numbers.foreachRDD(lambda rdd: later.append(rdd.getNumPartitions()))
    with pytest.raises(BatchFailedError, match="one is bad") as failure:
        ssc.step(3)
    assert [info.outcome for info in failure.value.batch_infos] == ["succeeded", "failed"]
    if on_failure == "stop":
        assert len(later) == 1
        assert ssc.getState() is StreamingContextState.STOPPED
        with pytest.raises(StreamLifecycleError, match="already been stopped"):
            ssc.step()
    else:
        assert len(later) == 2
        assert ssc.step()[0].outcome == "succeeded"
        ssc.stop(stopSparkContext=False)


def test_an_error_before_any_job(ssc: StreamingContext, clock: ManualClock) -> None:
    """A function of transformWith that fails on the driver is reported like any other."""

    def fail(a: RDD[Any], b: RDD[Any]) -> RDD[Any]:
        raise ValueError("never works")

    numbers = ssc.queueStream([[0]])
    numbers.transformWith(fail, numbers).pprint()
    ssc.start()
    clock.advance(1000)
    with pytest.raises(BatchFailedError) as raised:
        ssc.awaitTerminationOrTimeout(300)
    assert str(raised.value).startswith(
        f"{batch_name(1000, 0)} failed in making the RDD for pprint at "
    )
    line = fail.__code__.co_firstlineno + 1
    assert re.search(
        rf", in transformWith at {HERE}:\d+: ValueError: never works \({HERE}:{line} in fail\)$",
        str(raised.value),
    )
    assert isinstance(raised.value.__cause__, ValueError)


def test_waiting_with_a_timeout(sc: SparkContext) -> None:
    """False while the streams run, also with batches of 0.1 s on the machine's clock; then True."""
    ssc = StreamingContext(sc, 0.1)
    seen: list[list[int]] = []
    ssc.queueStream([[number] for number in range(101)]).foreachRDD(
        lambda rdd: seen.append(rdd.collect())
    )
    ssc.start()
    assert not ssc.awaitTerminationOrTimeout(0.001)
    wait_for(lambda: len(seen) >= 2)
    ssc.stop(stopSparkContext=False)
    assert ssc.awaitTerminationOrTimeout(0.001)
    assert seen[:2] == [[0], [1]]


def test_transform_of_three_streams(sc: SparkContext) -> None:
    """The function gets the RDDs in the order of the streams."""
    Table.parse("""
        in a | 1 | 1
        in b | 2 | 2
        in c | 3 | -
        out  | 2 3 1 | 2 1
    """).check(
        sc,
        lambda a, b, c: a.context().transform(
            [a, b, c], lambda rdds: rdds[1].union(rdds[2]).union(rdds[0])
        ),
        ordered=True,
    )


def test_transform_with_a_cartesian_product(sc: SparkContext) -> None:
    """Any function of RDDs will do."""
    Table.parse("""
        in  | 1 | 2 | 3
        out | (1,1) | (2,2) | (3,3)
    """).check(
        sc,
        lambda s: s.context().transform([s, s], lambda rdds: rdds[0].cartesian(rdds[1])),
    )


def test_combine_by_key(sc: SparkContext) -> None:
    """Values of a key become one combiner."""

    def ones(stream: DStream) -> DStream:
        return stream.flatMap(lambda n: [(n, 1)] * n)

    with BatchDriver(sc) as driver:
        numbers = driver.input([[1], [3], []])
        seen = driver.output(ones(numbers).combineByKey(str, lambda c, v: c + str(v), operator.add))
        driver.run(3)
    assert seen == [[(1, "1")], [(3, "111")], []]


def test_stopping_in_a_listener(ssc: StreamingContext, clock: ManualClock) -> None:
    """No deadlock; and where Spark raises, the context stops after the running batch."""
    returned: list[StreamingContextState] = []

    class Stopping(StreamingListener):
        def onBatchStarted(self, batchStarted: Any) -> None:
            ssc.stop(stopSparkContext=False)
            returned.append(ssc.getState())

    seen: list[list[int]] = []
    ssc.addStreamingListener(Stopping())
    ssc.queueStream([[0], [1]]).foreachRDD(lambda rdd: seen.append(rdd.collect()))
    ssc.start()
    clock.advance(1000)
    assert ssc.awaitTerminationOrTimeout(300)
    assert returned == [StreamingContextState.ACTIVE]
    assert seen in ([], [[0]])  # the stop may come before the batch's only output
    assert ssc.getState() is StreamingContextState.STOPPED


class BatchInfos(StreamingListener):
    """Keeps what each batch is at each of its steps."""

    def __init__(self) -> None:
        self.submitted: list[Any] = []
        self.started: list[Any] = []
        self.completed: list[Any] = []

    def onBatchSubmitted(self, batchSubmitted: Any) -> None:
        self.submitted.append(batchSubmitted.batchInfo())

    def onBatchStarted(self, batchStarted: Any) -> None:
        self.started.append(batchStarted.batchInfo())

    def onBatchCompleted(self, batchCompleted: Any) -> None:
        self.completed.append(batchCompleted.batchInfo())


@pytest.mark.deep
def test_a_failing_output_has_its_reason(sc: SparkContext) -> None:
    """A listener is told the outcome of each output of a batch, and all outputs run."""
    listener = BatchInfos()
    with BatchDriver(sc) as driver:
        numbers = driver.input([[0], [1], [2]])
        for stream in (numbers, numbers.map(one_is_bad), numbers.map(str)):
            driver.output(stream)
        driver.context.addStreamingListener(listener)
        driver.run(1)
        with pytest.raises(BatchFailedError):
            driver.run(1)
    good, failed = (info.outputOperationInfos() for info in listener.completed)
    assert list(good) == list(failed) == [0, 1, 2]
    assert [good[key].failureReason() for key in good] == [None, None, None]
    reasons = [failed[key].failureReason() for key in failed]
    assert reasons[::2] == [None, None]
    line = one_is_bad.__code__.co_firstlineno + 2
    assert re.fullmatch(
        rf"function {describe(one_is_bad)} of map at {HERE}:\d+ failed for record 1: "
        rf"ValueError: one is bad \({HERE}:{line} in one_is_bad\)",
        str(reasons[1]),
    )


def test_what_is_known_at_each_step(sc: SparkContext) -> None:
    """What pyspark.streaming's own test of listeners asks of the three events."""
    listener = BatchInfos()
    with BatchDriver(sc) as driver:
        driver.output(driver.context.queueStream([[0], [1], [2], [3]]))
        driver.context.addStreamingListener(listener)
        driver.run(4)
    assert [len(infos) for infos in vars(listener).values()] == [4, 4, 4]
    for infos, known in ((listener.submitted, 0), (listener.started, 1), (listener.completed, 3)):
        for info in infos:
            assert info.batchTime().milliseconds() >= 0
            assert info.submissionTime() >= 0
            for stream_id in info.streamIdToInputInfo():
                given = info.streamIdToInputInfo()[stream_id]
                assert given.inputStreamId() >= 0
                assert given.numRecords() >= 0
                for key in given.metadata():
                    assert given.metadata()[key] is not None
                assert given.metadataDescription() is not None
            for output_id in info.outputOperationInfos():
                output = info.outputOperationInfos()[output_id]
                assert output.batchTime().milliseconds() >= 0
                assert output.id() >= 0
                assert output.name() is not None
                assert output.description() is not None
                assert (output.startTime() >= 0) is (known == 3)
                assert (output.endTime() >= 0) is (known == 3)
                assert output.failureReason() is None
            delays = (info.schedulingDelay(), info.processingDelay(), info.totalDelay())
            assert [delay >= 0 for delay in delays] == [known >= 1, known == 3, known == 3]
            assert info.numRecords() == 1


@pytest.mark.deep
def test_other_outputs_of_a_failed_batch_run(sc: SparkContext) -> None:
    """So do all batches after it."""
    with BatchDriver(sc) as driver:
        numbers = driver.input([[0], [1], [2]])
        first = driver.output(numbers)
        failing = driver.output(numbers.map(one_is_bad))
        last = driver.output(numbers.map(str))
        driver.run(1)
        with pytest.raises(BatchFailedError):
            driver.run(1)
        driver.run(1)
    assert first == [[0], [1], [2]]
    assert failing == [[0], None, [2]]
    assert last == [["0"], ["1"], ["2"]]


def test_remember_twice(ssc: StreamingContext) -> None:
    """The second call says what the first has set."""
    ssc.remember(3)
    with pytest.raises(StreamLifecycleError, match="the remember duration is already set, as 3000"):
        ssc.remember(3)


@pytest.mark.parametrize(
    ("interval", "message"),
    [
        (0.5, "is 500 ms, lower than its slide of 1000 ms; set it to at least 1000 ms"),
        (1.5, "is 1500 ms, which is not a multiple of its slide of 1000 ms; set it to 2000 ms"),
    ],
)
def test_checkpoint_intervals(sc: SparkContext, interval: float, message: str) -> None:
    """An interval must be a multiple of the slide; the start says which one would do."""
    with BatchDriver(sc) as driver:
        states = driver.input([]).updateStateByKey(lambda values, state: 1).checkpoint(interval)
        driver.output(states)
        with pytest.raises(InvalidStreamError) as raised:
            driver.context.start()
        assert driver.context.getState() is StreamingContextState.INITIALIZED
    assert str(raised.value).startswith(
        "the checkpoint interval of updateStateByKey at test_context.py:"
    )
    assert str(raised.value).endswith(message)
