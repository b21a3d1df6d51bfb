"""The life of a context: what it is made of, when it may be called, how it starts and waits."""

from __future__ import annotations

import inspect
import logging
import math
import re
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark import RDD, SparkContext

from dstreams import (
    BatchFailedError,
    InvalidStreamError,
    Settings,
    SourceError,
    StreamingContext,
    StreamingContextState,
    StreamLifecycleError,
)
from dstreams.testing import ManualClock
from tests.dstreams.conftest import MakeContext
from tests.support.waiting import wait_for

INITIALIZED, ACTIVE, STOPPED = StreamingContextState


def add(values: list[int], state: int | None) -> int:
    return sum(values) + (state or 0)


def fail_on(bad: int, message: str) -> Callable[[Any], None]:
    """Return an output that fails on the driver for one record."""

    def output(rdd: Any) -> None:
        if rdd.collect() == [bad]:
            raise ValueError(message)

    return output


# Construction --------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [None, "local[2]", 1])
def test_a_spark_context_is_needed(wrong: Any) -> None:
    """Anything else is refused with its type."""
    with pytest.raises(InvalidStreamError, match="must be a SparkContext, got "):
        StreamingContext(wrong, 1)


def test_a_batch_duration_is_needed(sc: SparkContext) -> None:
    """It has a default only because that of pyspark.streaming has one."""
    with pytest.raises(InvalidStreamError, match="batchDuration is missing; give the seconds"):
        StreamingContext(sc)


@pytest.mark.parametrize("wrong", [0, -1, 0.0001, math.nan, math.inf, "1", True, [1]])
def test_a_batch_duration_is_a_positive_number(sc: SparkContext, wrong: Any) -> None:
    """The error has the parameter and the value; programs for pyspark may catch ValueError."""
    with pytest.raises(ValueError, match=re.escape(repr(wrong))) as raised:
        StreamingContext(sc, wrong)
    assert str(raised.value).startswith("batchDuration must be a")


@pytest.mark.parametrize("duration", [2.01, timedelta(seconds=2, milliseconds=10)])
def test_batch_durations_are_rounded_to_milliseconds(make_ssc: MakeContext, duration: Any) -> None:
    """2.01 seconds are 2010 ms, and not 2009 as with truncation."""
    ssc = make_ssc(duration)
    ssc.queueStream([]).pprint()
    assert [info.batch_time_ms for info in ssc.step(2)] == [2010, 4020]


def test_the_checkpoint_directory_may_come_from_the_settings(
    make_ssc: MakeContext, tmp_path: Path
) -> None:
    """spark.streaming.checkpoint.directory is equivalent to a call of checkpoint()."""
    ssc = make_ssc(checkpoint_directory=str(tmp_path / "here"))
    ssc.queueStream([[("a", 1)]]).updateStateByKey(add).checkpoint(1).pprint()
    ssc.step()
    assert list((tmp_path / "here").glob("stream-*/commits/*.commit")) != []


def test_settings_come_from_the_spark_conf(sc: SparkContext) -> None:
    """Without settings of its own a context uses those of the SparkConf."""
    assert StreamingContext(sc, 1)._settings == Settings()


@pytest.mark.parametrize("wrong", ["", None, 1])
def test_a_checkpoint_directory_is_a_path(ssc: StreamingContext, wrong: Any) -> None:
    """Anything else is refused."""
    with pytest.raises(InvalidStreamError, match="directory must be a path or URL, got "):
        ssc.checkpoint(wrong)


def test_sparks_own_checkpoints_leave_nothing_unless_they_are_used(
    sc: SparkContext, make_ssc: MakeContext, tmp_path: Path
) -> None:
    """Spark creates a directory with a random name at once; ours is created on the first write."""
    for _ in range(2):
        ssc = make_ssc()
        ssc.checkpoint(str(tmp_path))
        ssc.queueStream([[1]], replayable=True).pprint()
        ssc.step()
        ssc.stop(stopSparkContext=False)
    assert {path.name.split("-")[0] for path in tmp_path.iterdir()} == {"stream"}
    rdd = sc.parallelize([1, 2], 2)
    rdd.checkpoint()
    assert (rdd.sum(), rdd.isCheckpointed()) == (3, True)
    own = sc.getCheckpointDir()
    assert own is not None
    assert list(Path(own.removeprefix("file:")).glob("rdd-*")) != []
    make_ssc().checkpoint(str(tmp_path))
    assert Path(own.removeprefix("file:")).is_dir()


def test_a_path_is_not_one_of_hadoop(
    sc: SparkContext, ssc: StreamingContext, tmp_path: Path, no_checkpoint_directory: None
) -> None:
    """If HDFS is Hadoop's default file system, a local path creates nothing there."""
    conf: Any = sc._jsc.hadoopConfiguration()
    before = conf.get("fs.defaultFS")
    conf.set("fs.defaultFS", "hdfs://127.0.0.1:1")  # no server listens there
    conf.set("ipc.client.connect.max.retries", "0")
    try:
        ssc.checkpoint(f"{tmp_path}/a checkpoint")
        assert str(sc.getCheckpointDir()).startswith(f"file:{tmp_path}/a checkpoint/")
    finally:
        conf.set("fs.defaultFS", before)
        conf.unset("ipc.client.connect.max.retries")


def test_a_checkpoint_directory_must_be_usable(ssc: StreamingContext, tmp_path: Path) -> None:
    """checkpoint() refuses it, long before there is a state."""
    (tmp_path / "file").touch()
    directory = str(tmp_path / "file" / "inside")
    with pytest.raises(InvalidStreamError) as raised:
        ssc.checkpoint(directory)
    assert str(raised.value).startswith(f"the checkpoint directory {directory!r} cannot be used: ")
    assert raised.value.__cause__ is not None


# States --------------------------------------------------------------------------------------


def test_states(ssc: StreamingContext) -> None:
    """INITIALIZED, then ACTIVE, then STOPPED; the names are Spark's."""
    ssc.queueStream([]).pprint()
    assert ssc.getState() is INITIALIZED
    assert StreamingContext.getActive() is None
    ssc.start()
    assert ssc.getState() is ACTIVE
    assert StreamingContext.getActive() is ssc
    ssc.stop(stopSparkContext=False)
    assert ssc.getState() is STOPPED
    assert StreamingContext.getActive() is None
    assert [state.value for state in StreamingContextState] == ["INITIALIZED", "ACTIVE", "STOPPED"]


def test_a_stepped_context_is_active(ssc: StreamingContext) -> None:
    """The first step is a start."""
    ssc.queueStream([]).pprint()
    ssc.step()
    assert ssc.getState() is ACTIVE
    assert StreamingContext.getActive() is ssc
    ssc.stop(stopSparkContext=False)
    assert ssc.getState() is STOPPED


def test_starting_twice_is_a_warning(
    ssc: StreamingContext, caplog: pytest.LogCaptureFixture
) -> None:
    """The second start changes nothing."""
    ssc.queueStream([]).pprint()
    ssc.start()
    with caplog.at_level(logging.WARNING, "dstreams"):
        ssc.start()
    assert "has already been started" in caplog.text
    assert ssc.getState() is ACTIVE


def test_no_output(ssc: StreamingContext, clock: ManualClock) -> None:
    """The start refuses it, explains outputs, and can be repeated with one."""
    numbers = ssc.queueStream([[1]]).map(str)
    with pytest.raises(InvalidStreamError, match=r"no output operations registered.*pprint"):
        ssc.start()
    assert ssc.getState() is INITIALIZED
    assert StreamingContext.getActive() is None
    numbers.pprint()
    ssc.start()
    assert ssc.getState() is ACTIVE


@pytest.mark.usefixtures("no_checkpoint_directory")
def test_a_start_without_a_checkpoint_directory_may_be_repeated_with_one(
    ssc: StreamingContext, clock: ManualClock, tmp_path: Path
) -> None:
    """The remedy in the message works."""
    counts = ssc.queueStream([[("a", 1)]]).updateStateByKey(lambda values, state: len(values))
    seen: list[Any] = []
    counts.foreachRDD(lambda rdd: seen.append(rdd.collect()))
    with pytest.raises(InvalidStreamError, match=r"set it with StreamingContext\.checkpoint"):
        ssc.start()
    ssc.checkpoint(str(tmp_path))
    ssc.start()
    clock.advance(1000)
    wait_for(lambda: seen == [[("a", 1)]])


def test_only_one_context_is_active(make_ssc: MakeContext) -> None:
    """The second start names the place of the first, and can be repeated after that one stopped."""
    first, second = make_ssc(), make_ssc()
    first.queueStream([]).pprint()
    second.queueStream([]).pprint()
    line = inspect.currentframe().f_lineno + 1  # type: ignore[union-attr]
    first.start()
    for call in (second.start, second.step):
        with pytest.raises(
            StreamLifecycleError,
            match=rf"started at test_streaming_context.py:{line}; stop it first: "
            r"StreamingContext\.getActive\(\)\.stop\(stopSparkContext=False\)$",
        ):
            call()
        assert second.getState() is INITIALIZED
        assert StreamingContext.getActive() is first
    first.stop(stopSparkContext=False)
    second.start()
    assert StreamingContext.getActive() is second


LATE_CALLS: dict[str, Callable[[StreamingContext, Any], object]] = {
    "inputs cannot be added": lambda ssc, stream: ssc.queueStream([]),
    "transformations cannot be added": lambda ssc, stream: stream.map(str),
    "transformations cannot be added ": lambda ssc, stream: stream.updateStateByKey(add),
    "transformations cannot be added  ": lambda ssc, stream: ssc.union(stream, stream),
    "output operations cannot be added": lambda ssc, stream: stream.pprint(),
    "the storage level of a stream cannot be changed": lambda ssc, stream: stream.cache(),
    "the checkpoint interval of a stream cannot be changed": (
        lambda ssc, stream: stream.checkpoint(1)
    ),
    "the checkpoint directory cannot be set": lambda ssc, stream: ssc.checkpoint("unused"),
    "the remember duration cannot be set": lambda ssc, stream: ssc.remember(1),
}


@pytest.mark.parametrize("begin", ["start", "step"])
def test_nothing_is_defined_after_the_start(ssc: StreamingContext, begin: str) -> None:
    """Inputs, streams, outputs and options: each is refused after the start and after the stop."""
    stream = ssc.queueStream([])
    stream.pprint()
    getattr(ssc, begin)()
    for when in ("started", "stopped"):
        for what, call in LATE_CALLS.items():
            with pytest.raises(StreamLifecycleError) as raised:
                call(ssc, stream)
            assert str(raised.value) == (
                f"{what.strip()} after the StreamingContext has been {when}; define everything "
                "before start() or the first step(), or create a new StreamingContext"
            )
        ssc.stop(stopSparkContext=False)


@pytest.mark.parametrize("call", ["start", "step"])
def test_a_stopped_context_does_not_start_again(ssc: StreamingContext, call: str) -> None:
    """Also one that was stopped before it ever ran."""
    ssc.queueStream([]).pprint()
    ssc.stop(stopSparkContext=False)
    with pytest.raises(StreamLifecycleError, match=r"already been stopped .*; create a new one"):
        getattr(ssc, call)()


def test_the_spark_context_outlives_the_streams(sc: SparkContext, make_ssc: MakeContext) -> None:
    """stop(stopSparkContext=False) leaves it usable, also by the next context."""
    for number in range(2):
        ssc = make_ssc()
        seen: list[list[int]] = []
        ssc.queueStream([[number]]).foreachRDD(lambda rdd, seen=seen: seen.append(rdd.collect()))
        ssc.step()
        ssc.stop(stopSparkContext=False)
        assert seen == [[number]]
        assert sc.parallelize([1, 2]).sum() == 3


@pytest.mark.parametrize("graceful", [True, False])
def test_stopping_before_the_start_and_twice(
    ssc: StreamingContext, caplog: pytest.LogCaptureFixture, graceful: bool
) -> None:
    """There is nothing to stop, which is a warning and no error."""
    for _ in range(2):
        with caplog.at_level(logging.WARNING, "dstreams"):
            ssc.stop(stopSparkContext=False, stopGraceFully=graceful)
        assert "there is nothing to stop" in caplog.text
        assert ssc.getState() is STOPPED
        caplog.clear()


# Batches -------------------------------------------------------------------------------------


def test_the_first_batch_is_at_the_next_multiple(make_ssc: MakeContext, clock: ManualClock) -> None:
    """Batch times are multiples of the batch duration; the time of the start has no batch."""
    clock.advance(4000)
    ssc = make_ssc(2)
    seen: list[float] = []
    ssc.queueStream([]).foreachRDD(lambda time, rdd: seen.append(time.timestamp()))
    ssc.start()
    clock.advance(1999)
    clock.advance(1)
    wait_for(lambda: seen == [6])
    clock.advance(2000)
    wait_for(lambda: seen == [6, 8])


def test_late_batches_are_all_run(ssc: StreamingContext, clock: ManualClock) -> None:
    """A clock that jumps by five batches leaves none out, in order."""
    seen: list[tuple[float, list[int]]] = []
    ssc.queueStream([[1], [2], [3], [4], [5]]).foreachRDD(
        lambda time, rdd: seen.append((time.timestamp(), rdd.collect()))
    )
    ssc.start()
    clock.advance(5999)
    wait_for(lambda: len(seen) == 5)
    assert seen == [(1, [1]), (2, [2]), (3, [3]), (4, [4]), (5, [5])]


def test_a_clock_that_jumps_in_the_middle_of_a_batch_changes_no_batch(
    ssc: StreamingContext, clock: ManualClock
) -> None:
    """Batches that are due while a batch runs are run after it, with the input of their times."""
    entered, leave = threading.Event(), threading.Event()
    seen: list[list[int]] = []

    def slow(rdd: Any) -> None:
        entered.set()
        assert leave.wait(60)
        seen.append(rdd.collect())

    ssc.queueStream([[1], [2], [3]]).foreachRDD(slow)
    ssc.start()
    clock.advance(1000)
    assert entered.wait(60)
    clock.advance(1000)
    wait_for(lambda: ssc._life.scheduler is not None and ssc._life.scheduler._queue.qsize() == 1)
    leave.set()
    clock.advance(1000)
    wait_for(lambda: len(seen) == 3)
    assert seen == [[1], [2], [3]]


def test_an_unused_input_stream(ssc: StreamingContext, clock: ManualClock) -> None:
    """It is started and read like any other, and has no effect on others."""
    seen: list[list[int]] = []
    unused = ssc.queueStream([["never"], ["seen"]])
    ssc.queueStream([[1], [2]]).foreachRDD(lambda rdd: seen.append(rdd.collect()))
    ssc.start()
    clock.advance(2000)
    wait_for(lambda: len(seen) == 2)
    assert seen == [[1], [2]]
    assert ssc._engine is not None
    assert unused._node in ssc._engine.plan.inputs
    assert unused._node not in ssc._engine.plan.nodes


def test_local_properties_are_those_of_the_start(
    sc: SparkContext, ssc: StreamingContext, clock: ManualClock
) -> None:
    """Properties set before the start reach the jobs, later ones do not."""
    seen: list[tuple[str | None, str | None]] = []
    ssc.queueStream([]).foreachRDD(
        lambda rdd: seen.append(
            (sc.getLocalProperty("dstreams.test"), sc.getLocalProperty("spark.jobGroup.id"))
        )
    )
    sc.setLocalProperty("dstreams.test", "before")
    sc.setJobGroup("mine", "set by a test")
    try:
        ssc.start()
        sc.setLocalProperty("dstreams.test", "after")
        clock.advance(1000)
        wait_for(lambda: seen)
    finally:
        sc._jsc.clearJobGroup()
        sc.setLocalProperty("dstreams.test", None)  # type: ignore[arg-type]
    value, group = seen[0]
    assert value == "before"
    assert group is not None
    assert group.startswith("dstreams-")


# A start that fails --------------------------------------------------------------------------


def receiver_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("socketTextStream")]


@pytest.mark.parametrize("call", ["start", "step"])
def test_a_start_that_fails_releases_the_sources(
    make_ssc: MakeContext, tmp_path: Path, call: str
) -> None:
    """A source that cannot work stops the context and those that were started before it."""
    ssc = make_ssc()
    (tmp_path / "file").touch()
    ssc.socketTextStream("127.0.0.1", 9).pprint()
    ssc.textFileStream(str(tmp_path / "file")).pprint()
    with pytest.raises(SourceError, match=re.escape(str(tmp_path / "file"))):
        getattr(ssc, call)()
    assert ssc.getState() is STOPPED
    assert StreamingContext.getActive() is None
    assert receiver_threads() == []
    after = make_ssc()
    after.queueStream([]).pprint()
    after.start()
    assert after.getState() is ACTIVE


def test_stopping_releases_the_sources(ssc: StreamingContext) -> None:
    """The thread of a socket ends with the context."""
    ssc.socketTextStream("127.0.0.1", 9).pprint()
    ssc.start()
    assert receiver_threads() == ["socketTextStream(127.0.0.1:9)"]
    ssc.stop(stopSparkContext=False)
    assert receiver_threads() == []


# Waiting -------------------------------------------------------------------------------------


def test_waiting_ends_when_another_thread_stops(ssc: StreamingContext) -> None:
    """awaitTermination returns None, awaitTerminationOrTimeout True."""
    ssc.queueStream([]).pprint()
    ssc.start()
    ended: list[object] = []
    waiters = [
        threading.Thread(target=lambda wait=wait: ended.append(wait()), daemon=True)
        for wait in (ssc.awaitTermination, ssc.awaitTerminationOrTimeout)
    ]
    for waiter in waiters:
        waiter.start()
    wait_for(lambda: len(ssc._life._ended._waiters) == 2)  # type: ignore[attr-defined]
    assert ended == []
    ssc.stop(stopSparkContext=False)
    for waiter in waiters:
        waiter.join(60)
    assert sorted(ended, key=str) == [None, True]


def test_waiting_may_time_out(ssc: StreamingContext) -> None:
    """awaitTermination returns without a word, awaitTerminationOrTimeout with False."""
    ssc.queueStream([]).pprint()
    ssc.start()
    ssc.awaitTermination(0.001)
    assert not ssc.awaitTerminationOrTimeout(0.001)
    assert ssc.getState() is ACTIVE


def test_the_first_error_is_raised_now_and_later(ssc: StreamingContext, clock: ManualClock) -> None:
    """It wakes who waits, is raised to who comes later, also after the stop; later ones are not."""
    ssc.queueStream([[1], [2], [3]]).foreachRDD(fail_on(1, "first"))
    seen: list[float] = []
    ssc.queueStream([[1], [2], [3]]).foreachRDD(fail_on(2, "second"))
    ssc.queueStream([]).foreachRDD(lambda time, rdd: seen.append(time.timestamp()))
    ssc.start()
    clock.advance(1000)
    with pytest.raises(BatchFailedError, match="first") as raised:
        ssc.awaitTermination()
    assert raised.value.batch_time_ms == 1000
    clock.advance(2000)
    wait_for(lambda: seen == [1, 2, 3])
    for _ in range(2):
        with pytest.raises(BatchFailedError, match="first"):
            ssc.awaitTerminationOrTimeout(0)
    ssc.stop(stopSparkContext=False)
    with pytest.raises(BatchFailedError, match="first"):
        ssc.awaitTermination()


def test_an_error_names_what_failed(ssc: StreamingContext, clock: ManualClock) -> None:
    """The batch, the operation and where it was defined; the cause is the user's exception."""
    line = inspect.currentframe().f_lineno + 1  # type: ignore[union-attr]
    ssc.queueStream([[1]]).foreachRDD(fail_on(1, "broken"))
    ssc.start()
    clock.advance(1000)
    with pytest.raises(BatchFailedError) as raised:
        ssc.awaitTermination()
    assert re.fullmatch(
        rf"batch \d+ at 1000 ms \(.*?\) failed in foreachRDD at test_streaming_context.py:{line}: "
        r"ValueError: broken \(test_streaming_context.py:\d+ in \w+\)",
        str(raised.value),
    )
    assert repr(raised.value.__cause__) == "ValueError('broken')"


def test_an_error_of_a_clock_stops_the_context(sc: SparkContext) -> None:
    """An error of the scheduler itself stops the context instead of leaving it hanging."""

    class BrokenClock(ManualClock):
        def wait_until(self, time_ms: int, interrupted: threading.Event) -> bool:
            raise OSError("no time left")

    ssc = StreamingContext(sc, 1, clock=BrokenClock())
    ssc.queueStream([]).pprint()
    ssc.start()
    with pytest.raises(OSError, match="no time left"):
        ssc.awaitTermination()
    wait_for(lambda: ssc.getState() is STOPPED)
    assert StreamingContext.getActive() is None


# Use below the surface -----------------------------------------------------------------------


def test_what_old_harnesses_call_on_the_context_of_the_jvm(
    sc: SparkContext, ssc: StreamingContext
) -> None:
    """As Spark's own Python suites do: it is the same context, without the JVM's streaming."""
    ssc.queueStream([]).pprint()
    ssc._jssc.start()
    assert ssc._jssc.getState() is StreamingContextState.ACTIVE
    assert not ssc._jssc.awaitTerminationOrTimeout(1)
    assert ssc._jssc.sparkContext() is sc._jsc
    ssc._jssc.stop(False)
    assert StreamingContext.getActive() is None
    ssc._jssc.awaitTermination()
    with pytest.raises(
        AttributeError, match="_jssc has no 'queueStream': dstreams uses no streaming class of"
    ):
        ssc._jssc.queueStream([])


@pytest.mark.parametrize("replayable", [False, True])
def test_an_input_that_no_restart_has_again_is_told_at_the_start(
    ssc: StreamingContext, tmp_path: Path, caplog: pytest.LogCaptureFixture, replayable: bool
) -> None:
    """The warning comes at the start, only if there is a checkpoint to resume."""
    ssc.checkpoint(str(tmp_path))
    ssc.queueStream([[1]], replayable=replayable).foreachRDD(_count)
    with caplog.at_level(logging.WARNING, "dstreams"):
        ssc.start()
    ssc.stop(stopSparkContext=False)
    told = [text for text in caplog.messages if "cannot be resumed from its checkpoint" in text]
    assert len(told) == (not replayable)
    assert all("queueStream at test_streaming_context.py" in text for text in told)


def _count(rdd: RDD[Any]) -> None:
    rdd.count()


def test_a_context_knows_its_spark_context(sc: SparkContext, ssc: StreamingContext) -> None:
    """And a stream its context."""
    assert ssc.sparkContext is sc
    assert ssc.queueStream([]).context() is ssc


@pytest.mark.parametrize("limit", [0, -1, 1.5, True])
def test_a_limit_of_files_is_a_positive_number(ssc: StreamingContext, limit: Any) -> None:
    """An invalid maxFilesPerBatch is refused when the stream is defined."""
    with pytest.raises(InvalidStreamError, match=f"maxFilesPerBatch of fileStream is {limit}; use"):
        ssc.fileStream("in", maxFilesPerBatch=limit)


def test_union_and_transform_need_streams(ssc: StreamingContext) -> None:
    """No streams, and values that are not streams, are refused."""
    stream = ssc.queueStream([])
    assert ssc.union(stream) is stream
    with pytest.raises(InvalidStreamError, match="union needs at least one DStream, got none"):
        ssc.union()
    with pytest.raises(InvalidStreamError, match="transform needs at least one DStream, got none"):
        ssc.transform([], lambda rdds: rdds[0])
    with pytest.raises(InvalidStreamError, match=r"union at .* needs DStreams, got list"):
        ssc.union(stream, [1])  # type: ignore[arg-type]
    with pytest.raises(InvalidStreamError, match=r"transform calls f.list of RDDs. -> RDD"):
        ssc.transform([stream], lambda a, b: a)
