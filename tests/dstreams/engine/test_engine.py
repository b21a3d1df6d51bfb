"""The engine, without a thread: fixing batches, running them, and sources that fail."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from pyspark import RDD, SparkContext

from checkpoint import LocalFiles, StorageRefusedError
from checkpoint.log import input_offsets
from checkpoint.log.batch_records import BatchLog
from dstreams import BatchFailedError, DStream, DurabilityError, SourceError, StreamingContext
from dstreams.common.durations import batch_name
from dstreams.engine.batch import BatchResult
from dstreams.engine.engine import Engine
from dstreams.monitoring.events import (
    BatchCompleted,
    BatchStarted,
    BatchSubmitted,
    InputInfo,
    OffsetProgress,
)
from dstreams.sources.source import PlannedInput, Source, SourceEnvironment, SourceReader
from dstreams.testing import ManualClock
from tests.support.jobs import count_jobs

HERE = r"\(test_engine\.py:\d+ in \w+\)"
"""The line of this file that raised an error, at the end of its message."""


@dataclass(frozen=True, eq=False)
class ScriptedSource(Source):
    """A source that follows a script and records the calls it gets.

    Args:
        script: records of each batch; an exception is raised by plan, a type of one by rdd.
    """

    script: list[Any]
    calls: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return "scripted"

    def open(self, environment: SourceEnvironment) -> SourceReader:
        self.calls.append("open")
        return ScriptedReader(self, environment.spark)


class ScriptedReader(SourceReader):
    """A reader that follows the script."""

    def __init__(self, source: ScriptedSource, spark: SparkContext) -> None:
        self._source = source
        self._spark = spark
        self._planned: dict[int, Any] = {}

    def start(self) -> None:
        self._source.calls.append("start")

    def plan(self, start: Any, time_ms: int) -> PlannedInput:
        self._planned[time_ms] = step = self._source.script.pop(0)
        if isinstance(step, Exception):
            raise step
        return PlannedInput(time_ms, start, time_ms, {}, None, "as scripted")

    def read(self, planned: PlannedInput) -> RDD[Any] | None:
        step = self._planned[planned.time_ms]
        if isinstance(step, type):
            raise step("no RDD to be had")
        return None if step is None else self._spark.parallelize(step, 1)

    def commit(self, end: Any) -> None:
        self._source.calls.append(f"commit {end}")

    def release(self, end: Any) -> None:
        self._source.calls.append(f"release {end}")

    def stop_receiving(self) -> None:
        self._source.calls.append("stop receiving")

    def has_pending(self) -> bool:
        return False

    def close(self) -> None:
        self._source.calls.append("close")


@pytest.fixture
def ssc(sc: SparkContext) -> Iterator[StreamingContext]:
    context = StreamingContext(sc, 1, clock=ManualClock(start_ms=10_500))
    yield context
    context.stop(stopSparkContext=False)


def add(values: list[int], state: int | None) -> int:
    return sum(values) + (state or 0)


def scripted(ssc: StreamingContext, script: list[Any]) -> tuple[DStream, ScriptedSource]:
    source = ScriptedSource(script)
    return ssc._input(source, "scripted"), source


def collected(stream: DStream) -> list[list[Any]]:
    seen: list[list[Any]] = []
    stream.foreachRDD(lambda rdd: seen.append(sorted(rdd.collect())))
    return seen


def engine_of(ssc: StreamingContext) -> Engine:
    """Freeze the graph as a first step would do, without running a batch."""
    return ssc._life._activate()


def run(engine: Engine) -> BatchResult:
    return engine.runner.run(engine.planner.plan_batch())


def test_batches_are_fixed_before_they_run(ssc: StreamingContext) -> None:
    """Several can be planned ahead; each has its own input, time and number."""
    stream, source = scripted(ssc, [[1], [2], [3]])
    seen = collected(stream)
    engine = engine_of(ssc)
    batches = [engine.planner.plan_batch() for _ in range(3)]
    assert source.script == []
    assert [batch.batch_id for batch in batches] == [0, 1, 2]
    assert [batch.time_ms for batch in batches] == [11_000, 12_000, 13_000]
    assert [batch.submitted_ms for batch in batches] == [10_500] * 3
    results = [engine.runner.run(batch) for batch in batches]
    assert seen == [[1], [2], [3]]
    assert [result.error for result in results] == [None] * 3


def test_sources_are_told_what_counts_and_what_is_not_read_again(ssc: StreamingContext) -> None:
    """After each batch, as far back as the stream is remembered; unused inputs at once."""
    ssc.remember(1)
    stream, source = scripted(ssc, [[1], [2], [3]])
    _, unused = scripted(ssc, [[1], [2], [3]])
    collected(stream)
    engine = engine_of(ssc)
    for _ in range(3):
        run(engine)
    told = ["commit 11000", "commit 12000", "release 11000", "commit 13000", "release 12000"]
    assert source.calls == ["open", "start", *told]
    unused_told = [
        f"{told} {ms}" for ms in (11_000, 12_000, 13_000) for told in ("commit", "release")
    ]
    assert unused.calls == ["open", "start", *unused_told]


class KeepingReader(ScriptedReader):
    """A reader that depends on what earlier batches have read."""

    def snapshot_size(self) -> int:
        return 0

    def snapshot(self, end: Any) -> dict[str, Any]:
        return {"end": end}

    def retire(self, end: Any) -> None:
        self._source.calls.append(f"retire {end}")


class KeepingSource(ScriptedSource):
    """The source of such readers."""

    def open(self, environment: SourceEnvironment) -> SourceReader:
        return KeepingReader(self, environment.spark)

    @property
    def retired_ms(self) -> list[int]:
        """Return the offsets, which are batch times, up to which no later run needs anything."""
        told = (call.split() for call in self.calls)
        return [int(time_ms) for what, *time_ms in told if what == "retire" for time_ms in time_ms]


def begun_ms(directory: Path) -> list[int]:
    """Return the batches whose input was recorded."""
    (stream,) = directory.glob("stream-*")
    return [found.time_ms for found in BatchLog(LocalFiles(str(stream))).all_ids()]


@pytest.mark.deep
def test_a_durable_record_is_kept_as_long_as_that_of_its_batch(
    ssc: StreamingContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The input after each batch at which a restart or a rewind can begin is kept."""
    monkeypatch.setattr(input_offsets, "_FEW_BATCHES", 1)
    ssc.checkpoint(str(tmp_path))
    source = KeepingSource([[("a", 1)]] * 9)
    states = ssc._input(source, "keeping").updateStateByKey(add)
    collected(states.checkpoint(2))
    engine = engine_of(ssc)
    for _ in range(9):
        run(engine)
        retired_ms = source.retired_ms[-1] if source.retired_ms else 0
        assert min(begun_ms(tmp_path)) == max(retired_ms + 1000, 11_000)
    # With copies at 12, 14, 16 and 18 s, the oldest that is remembered being that at 14 s.
    assert source.retired_ms[-1] > 12_000


def test_a_stream_without_state_keeps_a_durable_record_for_some_batches(
    ssc: StreamingContext, tmp_path: Path
) -> None:
    """The input of batches with an existing commit record is kept."""
    ssc.checkpoint(str(tmp_path))
    source = KeepingSource([[1]] * 20)
    collected(ssc._input(source, "keeping"))
    engine = engine_of(ssc)
    for _ in range(20):
        run(engine)
    assert len(source.retired_ms) == 2
    assert min(begun_ms(tmp_path)) == source.retired_ms[-1] + 1000


def test_a_state_that_has_never_been_keeps_no_durable_record(
    ssc: StreamingContext, tmp_path: Path
) -> None:
    """Batches without an RDD have no state that could be committed."""
    ssc.checkpoint(str(tmp_path))
    source = KeepingSource([None] * 10)
    collected(ssc._input(source, "keeping").updateStateByKey(add).checkpoint(1))
    engine = engine_of(ssc)
    for _ in range(10):
        run(engine)
    assert source.retired_ms == [19_000]


@pytest.mark.parametrize(
    ("error", "kind"),
    [(StorageRefusedError("disk full"), DurabilityError), (OSError("refused"), BatchFailedError)],
)
def test_a_source_that_cannot_record_what_it_reads_stops_the_stream(
    ssc: StreamingContext, error: Exception, kind: type[BatchFailedError]
) -> None:
    """Nothing continues without durability; a refused connection is not an error of the storage."""
    stream, _ = scripted(ssc, [error])
    collected(stream)
    assert type(run(engine_of(ssc)).error) is kind


def test_a_source_that_cannot_plan_fails_its_batch(ssc: StreamingContext) -> None:
    """The error names the input stream; the batches before and after it run."""
    stream, _ = scripted(ssc, [[1], SourceError("the disk is gone"), [3]])
    seen = collected(stream)
    engine = engine_of(ssc)
    results = [run(engine) for _ in range(3)]
    assert seen == [[1], [3]]
    error = results[1].error
    assert isinstance(error, BatchFailedError)
    assert str(error).startswith(
        f"{batch_name(12000, 1)} failed in reading the input of scripted at test_engine.py:"
    )
    assert re.search(rf"SourceError: the disk is gone {HERE}$", str(error))
    assert isinstance(error.__cause__, SourceError)
    assert [result.info.outcome for result in results] == ["succeeded", "failed", "succeeded"]


@pytest.mark.deep
@pytest.mark.parametrize("failure", [SourceError("the disk is gone"), SourceError])
@pytest.mark.parametrize("failing", [0, 1])
def test_what_other_sources_gave_reaches_the_state(
    ssc: StreamingContext, tmp_path: Path, failure: Any, failing: int
) -> None:
    """A batch that one source fails is caught up in the next, with the input of the other."""
    ssc.checkpoint(str(tmp_path))
    scripts: list[list[Any]] = [[[("a", 1)], failure, [("a", 1)]], [[("b", 1)]] * 3]
    streams = [scripted(ssc, script)[0] for script in (scripts if failing == 0 else scripts[::-1])]
    seen = collected(ssc.union(*streams).updateStateByKey(add))
    engine = engine_of(ssc)
    outcomes = [run(engine).info.outcome for _ in range(3)]
    assert outcomes == ["succeeded", "failed", "succeeded"]
    assert seen == [[("a", 1), ("b", 1)], [("a", 2), ("b", 3)]]


def test_the_first_of_two_failed_sources_is_told(ssc: StreamingContext) -> None:
    """The first error is reported."""
    first, _ = scripted(ssc, [SourceError("one")])
    second, _ = scripted(ssc, [SourceError("two")])
    collected(first.union(second))
    error = run(engine_of(ssc)).error
    assert re.search(rf"SourceError: one {HERE}$", str(error))


def test_a_batch_in_which_nothing_has_an_rdd_is_empty(
    sc: SparkContext, ssc: StreamingContext
) -> None:
    """No output is called, no job runs, and nothing failed."""
    stream, _ = scripted(ssc, [None])
    seen = collected(stream)
    engine = engine_of(ssc)
    results: list[BatchResult] = []
    assert count_jobs(sc, lambda: results.append(run(engine))) == 0
    assert seen == []
    assert (results[0].info.outcome, results[0].info.outputs) == ("empty", ())


def test_outputs_run_in_the_order_of_their_definition(ssc: StreamingContext) -> None:
    """They run in that order, not that of the streams; numbers include those without an RDD."""
    order: list[str] = []
    a, _ = scripted(ssc, [[1]])
    b, _ = scripted(ssc, [None])
    a.foreachRDD(lambda rdd: order.append("first"))
    b.foreachRDD(lambda rdd: order.append("never"))
    a.map(str).foreachRDD(lambda rdd: order.append("third"))
    info = run(engine_of(ssc)).info
    assert order == ["first", "third"]
    assert [output.output_id for output in info.outputs] == [0, 2]


def test_the_first_failed_output_is_the_error_of_the_batch(ssc: StreamingContext) -> None:
    """The other errors are in the batch's info."""

    def fail(message: str) -> Any:
        def output(rdd: RDD[Any]) -> None:
            raise ValueError(message)

        return output

    stream, _ = scripted(ssc, [[1]])
    stream.foreachRDD(fail("one"))
    stream.foreachRDD(fail("two"))
    result = run(engine_of(ssc))
    assert re.search(rf"ValueError: one {HERE}$", str(result.error))
    failures = [output.failure for output in result.info.outputs]
    wanted = [rf"ValueError: {word} {HERE}" for word in ("one", "two")]
    assert all(map(re.fullmatch, wanted, failures))  # type: ignore[arg-type]
    assert len(failures) == 2


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_a_request_to_end_is_no_failure_of_a_batch(
    ssc: StreamingContext, error: type[BaseException]
) -> None:
    """It is raised by the step."""

    def interrupt(rdd: RDD[Any]) -> None:
        raise error

    stream, _ = scripted(ssc, [[1]])
    stream.foreachRDD(interrupt)
    with pytest.raises(error):
        ssc.step()


def told(engine: Engine) -> list[Any]:
    """Keep the events of the engine from now on."""
    events: list[Any] = []
    engine.planner.notify = engine.runner.notify = events.append
    return events


def test_each_step_of_a_batch_is_told(ssc: StreamingContext) -> None:
    """In order, with the facts known at that step."""
    stream, _ = scripted(ssc, [[1, 2]])
    seen = collected(stream)
    engine = engine_of(ssc)
    events = told(engine)
    batch = engine.planner.plan_batch()
    assert [type(event) for event in events] == [BatchSubmitted]
    result = engine.runner.run(batch)
    submitted, started, output_started, output_completed, completed = events
    assert submitted.batch.inputs == (
        InputInfo(
            0, "scripted", None, "as scripted", offsets=OffsetProgress(None, 11_000, 11_000, {})
        ),
    )
    assert [(each.output_id, each.name) for each in submitted.batch.outputs] == [
        (0, result.info.outputs[0].name)
    ]
    assert started.batch == replace(submitted.batch, started_ms=10_500)
    assert output_started.output == submitted.batch.outputs[0]
    assert output_completed.output == result.info.outputs[0]
    assert completed == BatchCompleted(result.info)
    assert seen == [[1, 2]]


def test_a_batch_that_a_source_fails_is_told(ssc: StreamingContext) -> None:
    """It has no input from that source, no output runs, and its end has the error."""
    stream, _ = scripted(ssc, [SourceError("the disk is gone")])
    collected(stream)
    engine = engine_of(ssc)
    events = told(engine)
    run(engine)
    assert [type(event) for event in events] == [BatchSubmitted, BatchStarted, BatchCompleted]
    assert events[0].batch.inputs == ()
    assert events[2].batch.outcome == "failed"
    assert re.search(rf"SourceError: the disk is gone {HERE}$", events[2].batch.failure)


def test_a_batch_that_was_told_to_end_is_told(ssc: StreamingContext) -> None:
    """No event reports outputs that did not start, and the batch is completed."""
    stream, _ = scripted(ssc, [[1]])
    seen = collected(stream)
    engine = engine_of(ssc)
    events = told(engine)
    engine.runner.run(engine.planner.plan_batch(), is_cancelled=lambda: True)
    assert [type(event) for event in events] == [BatchSubmitted, BatchStarted, BatchCompleted]
    assert events[2].batch.outputs == ()
    assert seen == []


CUT_OFF = f"{batch_name(11000, 0)} was cut off by a stop"


@pytest.mark.deep
@pytest.mark.parametrize(
    ("at", "durable", "outcome", "failure"),
    [
        pytest.param("begin", False, "cancelled", CUT_OFF, id="before its first output"),
        pytest.param("in first", False, "cancelled", CUT_OFF, id="between its outputs"),
        pytest.param("first fails", False, "cancelled", CUT_OFF, id="whose job was cancelled"),
        pytest.param("after a failure", False, "failed", "ValueError", id="that had failed"),
        pytest.param("in last", False, "succeeded", None, id="after all that there was to do"),
        pytest.param("in last", True, "cancelled", CUT_OFF, id="before its commit"),
        pytest.param("never", True, "succeeded", None, id="never"),
    ],
)
def test_the_outcome_of_a_batch_that_is_cut_off(
    ssc: StreamingContext, tmp_path: Path, at: str, durable: bool, outcome: str, failure: str | None
) -> None:
    """It did not succeed, and it failed only if it failed by itself."""
    cancelled = [True] if at == "begin" else []

    def first(rdd: RDD[Any]) -> None:
        if at == "after a failure":
            raise ValueError("by itself")
        if at in ("in first", "first fails"):
            cancelled.append(True)
        if at == "first fails":
            raise ValueError("as the job was cancelled")

    def last(rdd: RDD[Any]) -> None:
        if at in ("in last", "after a failure"):
            cancelled.append(True)

    if durable:
        ssc.checkpoint(str(tmp_path))
    stream, _ = scripted(ssc, [[1]])
    stream.foreachRDD(first)
    stream.foreachRDD(last)
    engine = engine_of(ssc)
    info = engine.runner.run(engine.planner.plan_batch(), is_cancelled=lambda: bool(cancelled)).info
    assert info.outcome == outcome
    assert failure is None if info.failure is None else str(failure) in info.failure


def test_stopping_closes_the_sources(ssc: StreamingContext) -> None:
    """Used or not; and only those that were opened."""
    stream, source = scripted(ssc, [[1]])
    _, unused = scripted(ssc, [[1]])
    collected(stream)
    ssc.step()
    ssc.stop(stopSparkContext=False)
    assert source.calls[-1] == unused.calls[-1] == "close"
    assert source.calls.count("close") == 1
