"""Stepping by hand: times, reports of batches, failures, and that no state is lost."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark import RDD, SparkContext

from dstreams import (
    BatchFailedError,
    BatchInfo,
    DurabilityError,
    InvalidStreamError,
    StreamingContext,
    StreamingContextState,
    StreamingListener,
    StreamLifecycleError,
)
from dstreams.common.durations import batch_name
from dstreams.testing import BatchDriver, ManualClock
from tests.dstreams.conftest import MakeContext
from tests.support.jobs import count_jobs

Pairs = list[tuple[str, int]]


def add(values: list[int], state: int | None) -> int:
    return sum(values) + (state or 0)


def add_unless(flag: Path) -> Callable[[list[int], int | None], int]:
    """A running sum that fails while a file *flag* exists."""

    def update(values: list[int], state: int | None) -> int:
        if flag.exists():
            raise ValueError("the flag is up")
        return add(values, state)

    return update


def failing_run(driver: BatchDriver) -> BatchFailedError:
    with pytest.raises(BatchFailedError) as raised:
        driver.run(1)
    return raised.value


# Steps ---------------------------------------------------------------------------------------


def test_times_are_consecutive(ssc: StreamingContext, clock: ManualClock) -> None:
    """Consecutive multiples from the clock of the first step, whatever the clock does later."""
    clock.advance(7300)
    ssc.queueStream([]).pprint()
    infos = ssc.step(2)
    clock.advance(60_000)
    infos += ssc.step()
    assert [info.batch_time_ms for info in infos] == [8000, 9000, 10_000]
    assert [info.batch_id for info in infos] == [0, 1, 2]


@pytest.mark.parametrize("wrong", [0, -1, 1.0, True, "1", None])
def test_a_number_of_batches_is_positive(ssc: StreamingContext, wrong: Any) -> None:
    """It is refused before anything starts."""
    ssc.queueStream([]).pprint()
    with pytest.raises(InvalidStreamError, match=f"n of step is {wrong!r}; use a whole number of"):
        ssc.step(wrong)
    assert ssc.getState() is StreamingContextState.INITIALIZED


def test_a_started_context_is_not_stepped(ssc: StreamingContext) -> None:
    """Its batches run in real time."""
    ssc.queueStream([]).pprint()
    ssc.start()
    with pytest.raises(StreamLifecycleError, match="that was started cannot be stepped"):
        ssc.step()


def test_a_stepped_context_is_not_started(ssc: StreamingContext) -> None:
    """Steps and real time exclude each other."""
    ssc.queueStream([]).pprint()
    ssc.step()
    with pytest.raises(StreamLifecycleError, match="that is stepped cannot be started"):
        ssc.start()


def test_a_stop_between_steps(ssc: StreamingContext) -> None:
    """The next step reports that the context was stopped."""
    ssc.queueStream([]).pprint()
    ssc.step()
    ssc.stop(stopSparkContext=False)
    with pytest.raises(StreamLifecycleError, match="has already been stopped"):
        ssc.step()


def test_a_cell_that_ran_again(
    make_ssc: MakeContext, sc: SparkContext, caplog: pytest.LogCaptureFixture
) -> None:
    """The name refers to a new context then, and getActive finds the one that was stepped."""
    first = make_ssc()
    first.queueStream([[1]]).pprint()
    first.step()
    again = StreamingContext(sc, 1)
    again.queueStream([[1]]).pprint()
    with pytest.raises(StreamLifecycleError, match=r"started at .*test_step.*getActive\(\)\.stop"):
        again.step()
    with caplog.at_level(logging.WARNING, "dstreams"):
        again.stop(stopSparkContext=False)
    assert "another one is, started at" in caplog.text
    assert StreamingContext.getActive() is first
    with pytest.raises(StreamLifecycleError, match=r"before start\(\) or the first step\(\)"):
        first.queueStream([[2]])


def test_a_stop_inside_a_step(ssc: StreamingContext) -> None:
    """The batch that stops its context is the last one."""
    seen: list[list[int]] = []

    def stop(rdd: RDD[int]) -> None:
        seen.append(rdd.collect())
        ssc.stop(stopSparkContext=False)

    ssc.queueStream([[1], [2]]).foreachRDD(stop)
    (info,) = ssc.step(2)
    assert (info.outcome, seen) == ("succeeded", [[1]])
    assert ssc.getState() is StreamingContextState.STOPPED


def test_steps_run_on_the_calling_thread(ssc: StreamingContext) -> None:
    """The function runs in this thread, so a debugger stops there."""
    threads: list[threading.Thread] = []
    ssc.queueStream([]).foreachRDD(lambda rdd: threads.append(threading.current_thread()))
    ssc.step()
    assert threads == [threading.current_thread()]


# A first step that finds the definition incomplete ------------------------------------------


def refused_step(ssc: StreamingContext, message: str) -> None:
    """The refused first step leaves the context unchanged."""
    with pytest.raises(InvalidStreamError, match=message):
        ssc.step()
    assert ssc.getState() is StreamingContextState.INITIALIZED
    assert StreamingContext.getActive() is None


def test_an_output_that_is_missing_may_be_added(ssc: StreamingContext) -> None:
    """The refused step has run nothing and sent no event; listeners are still registered."""
    told: list[str] = []

    class Listener(StreamingListener):
        def onStreamingStarted(self, streamingStarted: Any) -> None:
            told.append("started")

        def onBatchCompleted(self, batchCompleted: Any) -> None:
            told.append("completed")

    ssc.addStreamingListener(Listener())
    numbers = ssc.queueStream([[1], [2]])
    refused_step(ssc, "no output operations registered")
    assert told == []
    seen: list[list[int]] = []
    numbers.map(lambda x: 10 * x).foreachRDD(lambda rdd: seen.append(rdd.collect()))
    assert [info.batch_id for info in ssc.step(2)] == [0, 1]
    assert seen == [[10], [20]]
    assert told == ["started", "completed", "completed"]


@pytest.mark.usefixtures("no_checkpoint_directory")
def test_a_checkpoint_directory_that_is_missing_may_be_set(
    ssc: StreamingContext, tmp_path: Path
) -> None:
    """Nothing was written before, and one stream exists after it."""
    counts = ssc.queueStream([[("a", 1)], [("a", 2)]]).updateStateByKey(add)
    seen: list[Pairs] = []
    counts.foreachRDD(lambda rdd: seen.append(rdd.collect()))
    refused_step(ssc, "the checkpoint directory has not been set")
    ssc.checkpoint(str(tmp_path))
    ssc.step(2)
    assert seen == [[("a", 1)], [("a", 3)]]
    assert len(list(tmp_path.glob("stream-*"))) == 1


def test_what_cannot_be_right_may_be_set_right(ssc: StreamingContext, tmp_path: Path) -> None:
    """An interval that is not a multiple, and a function that the checkpoint cannot hold."""
    ssc.checkpoint(str(tmp_path))
    counts = ssc.queueStream([[("a", 1)]]).updateStateByKey(add).checkpoint(1.5)
    held: list[Any] = [threading.Lock()]
    counts.foreachRDD(lambda rdd: held.append(rdd.collect()))
    refused_step(ssc, "which is not a multiple of its slide")
    counts.checkpoint(2)
    refused_step(ssc, r"foreachRDD at .* because it uses 'func\.held\[0\]', of type lock")
    assert list(tmp_path.glob("stream-*")) == []
    held.clear()
    ssc.step()
    assert held == [[("a", 1)]]


def test_a_context_that_was_refused_can_be_started_or_given_up(
    make_ssc: Callable[..., StreamingContext], clock: ManualClock
) -> None:
    """It is like any other context that has not started."""
    first, second = make_ssc(), make_ssc()
    for ssc in (first, second):
        ssc.queueStream([[1]])
        refused_step(ssc, "no output")
    first.stop(stopSparkContext=False)
    assert first.getState() is StreamingContextState.STOPPED
    second.queueStream([[2]]).pprint()
    second.start()
    assert second.getState() is StreamingContextState.ACTIVE


def test_a_restored_context_that_was_refused_goes_on(
    make_ssc: Callable[..., StreamingContext], tmp_path: Path
) -> None:
    """The earlier run can still be resumed, and no driver has taken it over."""

    def setup() -> StreamingContext:
        ssc = make_ssc()
        made.append(ssc.queueStream([[("a", 1)]] * 3, replayable=True).updateStateByKey(add))
        return ssc

    made: list[Any] = []
    first = StreamingContext.restore(str(tmp_path), setup)
    made[-1].pprint()
    first.step(2)
    first.stop(stopSparkContext=False)
    (epochs,) = tmp_path.glob("stream-*/epochs")
    claims = sorted(epochs.iterdir())
    seen: list[Pairs] = []
    again = make_ssc()
    counts = again.queueStream([[("a", 1)]] * 3, replayable=True).updateStateByKey(add)
    counts.checkpoint(10).foreachRDD(lambda rdd: seen.append(rdd.collect()))
    again = StreamingContext.restore(str(tmp_path), lambda: again)
    counts.checkpoint(1.5)
    refused_step(again, "not a multiple")
    assert sorted(epochs.iterdir()) == claims
    counts.checkpoint(1)
    again.step()
    assert seen == [[("a", 3)]]


# Reports -------------------------------------------------------------------------------------


class TickingClock(ManualClock):
    """A clock that advances by 1 ms at each reading."""

    def now_ms(self) -> int:
        self.advance(1)
        return super().now_ms()


def test_a_batch_info_has_all_there_is_to_tell(sc: SparkContext) -> None:
    """Records per source, consecutive times, and each output with its name."""
    ssc = StreamingContext(sc, 1, clock=TickingClock())
    try:
        lines = ssc.queueStream([["a", "b"], None])
        lines.pprint()
        lines.map(str).foreachRDD(lambda rdd: rdd.count())
        first, second = ssc.step(2)
    finally:
        ssc.stop(stopSparkContext=False)
    assert (first.batch_id, first.batch_time_ms, first.outcome) == (0, 1000, "succeeded")
    assert first.records == {"queueStream": 2}
    assert first.failure is None
    a, b = first.outputs
    assert (a.output_id, b.output_id) == (0, 1)
    assert a.name.startswith("pprint at test_step.py:")
    assert b.name.startswith("foreachRDD at test_step.py:")
    assert a.failure is b.failure is None
    times = [
        first.submitted_ms,
        first.started_ms,
        a.started_ms,
        a.completed_ms,
        b.started_ms,
        b.completed_ms,
        first.completed_ms,
    ]
    assert times == sorted(set(times))
    assert first.scheduling_delay_ms == first.started_ms - first.submitted_ms
    assert first.processing_delay_ms == first.completed_ms - first.started_ms
    assert first.total_delay_ms == first.scheduling_delay_ms + first.processing_delay_ms
    assert (second.outcome, second.outputs, second.records) == ("empty", (), {"queueStream": 0})


def test_sources_of_one_name_are_told_apart(ssc: StreamingContext) -> None:
    """Two queues have the same name, and their records are counted separately."""
    a, b, c = (ssc.queueStream([[1] * count]) for count in (1, 2, 3))
    ssc.union(a, b, c).pprint()
    (info,) = ssc.step()
    assert info.records == {"queueStream #0": 1, "queueStream #1": 2, "queueStream #2": 3}


def test_records_of_an_rdd_are_not_counted(sc: SparkContext, ssc: StreamingContext) -> None:
    """Counting them would cost a job."""
    ssc.queueStream([sc.parallelize([1, 2])]).foreachRDD(lambda rdd: None)
    infos: list[BatchInfo] = []
    assert count_jobs(sc, lambda: infos.extend(ssc.step())) == 0
    assert infos[0].records == {"queueStream": None}


def test_the_info_of_a_failed_batch(ssc: StreamingContext) -> None:
    """Its outcome, its failure as text, and the failed output."""

    def fail(rdd: RDD[Any]) -> None:
        raise ValueError("out of order")

    stream = ssc.queueStream([[1], [2]])
    stream.pprint()
    stream.foreachRDD(fail)
    with pytest.raises(BatchFailedError):
        ssc.step()
    assert ssc._engine is not None
    result = ssc._engine.runner.run(ssc._engine.planner.plan_batch())
    assert result.info.outcome == "failed"
    assert result.info.failure == str(result.error)
    line = fail.__code__.co_firstlineno + 1
    why = f"ValueError: out of order (test_step.py:{line} in fail)"
    assert str(result.error).endswith(why)
    assert [output.failure for output in result.info.outputs] == [None, why]


# Failures ------------------------------------------------------------------------------------


def test_a_failure_is_told_without_secrets(ssc: StreamingContext) -> None:
    """In the error of the step, in its batch infos, and for listeners."""
    told: list[str | None] = []

    class Listening(StreamingListener):
        def onBatchCompleted(self, batchCompleted: Any) -> None:
            [output] = batchCompleted.batchInfo().outputOperationInfos().values()
            told.append(output.failureReason())

    def fail(rdd: RDD[Any]) -> None:
        raise OSError("no answer of s3://me:topsecret@bucket for password=topsecret")

    ssc.addStreamingListener(Listening())
    ssc.queueStream([[1]]).foreachRDD(fail)
    with pytest.raises(BatchFailedError) as raised:
        ssc.step()
    [info] = raised.value.batch_infos
    texts = [str(raised.value), info.failure, info.outputs[0].failure, *told]
    assert len(texts) == 4
    for text in texts:
        assert "no answer of s3://me:***@bucket for password=***" in str(text)


def test_a_failed_batch_ends_the_steps_and_the_next_goes_on(ssc: StreamingContext) -> None:
    """Earlier batches stay committed; the batch after it is the next."""
    seen: list[tuple[float, int]] = []

    def output(time: Any, rdd: RDD[int]) -> None:
        (record,) = rdd.collect()
        if record == 2:
            raise ValueError("two is bad")
        seen.append((time.timestamp(), record))

    ssc.queueStream([[1], [2], [3]]).foreachRDD(output)
    with pytest.raises(BatchFailedError, match=r"batch 1 at 2000 ms \(.*\) failed") as raised:
        ssc.step(3)
    assert raised.value.batch_time_ms == 2000
    assert ssc.getState() is StreamingContextState.ACTIVE
    ssc.step()
    assert seen == [(1, 1), (3, 3)]


def test_an_output_that_fails_does_not_take_the_state(sc: SparkContext) -> None:
    """The records of the failed batch are in the state of the next one."""
    with BatchDriver(sc) as driver:
        states = driver.input([[("a", 1)], [("a", 10)], [("a", 100)]]).updateStateByKey(add)

        def fail_once(time: Any, rdd: RDD[Any]) -> None:
            if time.timestamp() == 2:
                raise ConnectionError("the database is away")

        states.foreachRDD(fail_once)
        seen = driver.output(states)
        driver.run(1)
        error = failing_run(driver)
        # An OSError of a user function is not a failure of the state storage.
        assert not isinstance(error, DurabilityError)
        driver.run(1)
    assert seen == [[("a", 1)], [("a", 11)], [("a", 111)]]


def test_an_update_function_that_fails_does_not_take_the_state(
    sc: SparkContext, tmp_path: Path
) -> None:
    """Work that failed in one batch is done in the next, in the order of the batches."""
    flag = tmp_path / "flag"
    with BatchDriver(sc) as driver:
        pairs = driver.input([[("a", 1)], [("a", 10)], None, [("b", 1)]])
        states = pairs.updateStateByKey(add_unless(flag), 1)
        seen = driver.output(states)
        driver.run(1)
        flag.touch()
        assert "failed for key 'a': ValueError: the flag is up" in str(failing_run(driver))
        failing_run(driver)
        flag.unlink()
        driver.run(1)
    assert seen == [[("a", 1)], None, None, [("a", 11), ("b", 1)]]


@pytest.mark.deep
def test_an_update_function_that_fails_when_the_state_is_written(
    sc: SparkContext, tmp_path: Path
) -> None:
    """The batch fails like any other; the state is written when it is due again."""
    flag = tmp_path / "flag"
    with BatchDriver(sc, checkpoint=str(tmp_path / "ckpt")) as driver:
        states = driver.input([[("a", 1)], [("a", 10)], []]).updateStateByKey(add_unless(flag), 1)
        states.checkpoint(2)
        seen = driver.output(states)
        driver.run(1)
        flag.touch()
        error = failing_run(driver)
        assert f"{batch_name(2000, 1)} failed in writing the state of updateStateByKey at " in str(
            error
        )
        assert [info.outcome for info in error.batch_infos] == ["failed"]
        assert not isinstance(error, DurabilityError)
        flag.unlink()
        driver.run(1)
        copies = sorted(tmp_path.glob("ckpt/stream-*/state/*/*.state"))
        assert [path.name[:16] for path in copies] == ["0000000000003000"]
    assert seen == [[("a", 1)], None, [("a", 11)]]


def test_a_transform_that_fails_does_not_take_the_state(sc: SparkContext) -> None:
    """The next batch catches up with a batch whose RDDs could not be made."""
    calls: list[float] = []

    def fail_at_first(time: Any, rdd: RDD[Any]) -> RDD[Any]:
        calls.append(time.timestamp())
        if calls == [1, 2]:
            raise ValueError("once")
        return rdd

    with BatchDriver(sc) as driver:
        pairs = driver.input([[("a", 1)], [("a", 10)], [("a", 100)]]).transform(fail_at_first)
        seen = driver.output(pairs.updateStateByKey(add))
        driver.run(1)
        assert "failed in making the RDD for foreachRDD at " in str(failing_run(driver))
        driver.run(1)
    assert seen == [[("a", 1)], None, [("a", 111)]]
    assert calls == [1, 2, 2, 3]


@pytest.mark.deep
def test_a_long_outage_does_not_take_the_state(sc: SparkContext, tmp_path: Path) -> None:
    """The state of dozens of failed batches is computed when the function works again."""
    batches, outage = 65, [True]

    def fail_for_long(rdd: RDD[Any]) -> RDD[Any]:
        if outage[0]:
            raise ValueError("outage")
        return rdd

    with BatchDriver(sc, checkpoint=str(tmp_path)) as driver:
        pairs = driver.input([[("a", 1)]] * (batches + 1)).transform(fail_for_long)
        seen = driver.output(pairs.updateStateByKey(add))
        for _ in range(batches):
            failing_run(driver)
        outage[0] = False
        driver.run(1)
        assert seen[-1] == [("a", batches + 1)]
        driver.run(40)  # files written to catch up are deleted when they are not needed
        assert len(list(tmp_path.rglob("*.state"))) < 2 * 6
    assert seen[-1] == [("a", batches + 1)]


@pytest.mark.deep
def test_a_long_wait_for_the_first_rdd(sc: SparkContext) -> None:
    """A state stream without a state reads only the previous batch."""
    asked: list[float] = []

    def nothing(time: Any, rdd: RDD[Any]) -> RDD[Any] | None:
        asked.append(time.timestamp())
        return rdd if len(asked) > 600 else None

    with BatchDriver(sc) as driver:
        pairs = driver.input([[("a", 1)]] * 601).transform(nothing)
        seen = driver.output(pairs.updateStateByKey(add))
        driver.run(601)
    assert seen == [None] * 600 + [[("a", 1)]]
    assert asked == list(range(1, 602))
