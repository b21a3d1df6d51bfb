"""Triggers; queries that are started, awaited, stopped and listened to."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark import RDD, SparkContext

from checkpoint import StorageRefusedError
from dstreams.common.callables import describe
from dstreams.errors import InvalidStreamError, StreamLifecycleError
from dstreams.spark.job_labels import (
    BATCH_ID,
    DESCRIPTION,
    OUTPUT_ID,
    QUERY_ID,
    next_job_id_if_known,
)
from dstreams.structured import (
    GroupStateTimeout,
    StreamingDataset,
    StreamingQuery,
    StreamingQueryException,
    StreamingQueryListener,
    StreamSession,
    window,
)
from dstreams.structured.api import manager
from dstreams.structured.api.query import Trigger, make_trigger
from dstreams.testing import ManualClock
from tests.dstreams.structured.runs import QueryRun
from tests.support.waiting import wait_for


def itself(record: Any) -> Any:
    return record


def counts(words: StreamingDataset) -> StreamingDataset:
    return words.groupByKey(itself).count()


def no_rows(key: Any, values: Any, state: Any) -> list[Any]:
    return []


def value_mod_two(row: Any) -> int:
    return int(row.value) % 2


EXAMPLE_PLAN = """\
== Physical Plan ==
SerializeFromObject
+- *(1) FlatMapGroupsWithState {func}, {key}, state info [ checkpoint = <unknown>, \
runId = <unknown>, opId = <unknown>, ver = <unknown>, numPartitions = <unknown>], Update, \
EventTimeTimeout, <unknown>, <unknown>, <unknown>
   +- *(1) Sort [key], false
      +- Exchange hashpartitioning({key}, 2)
         +- AppendColumns {key}
            +- EventTimeWatermark timestamp#0, 10000 ms
               +- StreamingRelation rate[rowsPerSecond=1], [timestamp, value]
"""


def test_explain(session: StreamSession) -> None:
    """Before the first batch the plan is there and its facts are unknown."""
    groups = (
        session.readStream.format("rate")
        .load()
        .withWatermark("timestamp", "10 seconds")
        .groupByKey(value_mod_two)
        .flatMapGroupsWithState(no_rows, "update", GroupStateTimeout.EventTimeTimeout)
    )
    expected = EXAMPLE_PLAN.format(func=describe(no_rows), key=describe(value_mod_two))
    assert groups.explanation(outputMode="update") == expected
    assert "StreamingRelation rate" in groups.explanation(extended=True, outputMode="Update")
    assert repr(groups).splitlines()[:2] == [
        "StreamingDataset of",
        f"flatMapGroupsWithState {describe(no_rows)}",
    ]


@pytest.mark.deep
def test_explain_of_a_batch(session: StreamSession, tmp_path: Path) -> None:
    """A query that runs shows the state info, time and watermarks of its newest batch."""

    def build(events: StreamingDataset) -> StreamingDataset:
        marked = events.withWatermark(seconds, "5 seconds")
        return marked.groupByKey(window(seconds, "5 seconds")).count()

    run = QueryRun(session, build, "append", tmp_path)
    assert "checkpoint = <unknown>" in run.query.explanation()
    run.add(7)
    plan = run.query.explanation()
    shown = f"checkpoint = {tmp_path}, runId = {run.query.runId}, opId = 0, ver = 1"
    assert shown in plan
    assert "numPartitions = 2], Append, 0, 2000" in plan
    extended = run.query.explanation(extended=True)
    assert extended.startswith("== Logical Plan ==\nAggregate [window(")
    assert extended.endswith(plan)


def seconds(record: int) -> int:
    return record * 1000


class Told(StreamingQueryListener):
    """Records the events it receives."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []
        self.ends: list[str | None] = []

    def onQueryStarted(self, event: Any) -> None:
        self.events.append(("started", event.name))

    def onQueryProgress(self, event: Any) -> None:
        self.events.append(("progress", event.progress.batchId))

    def onQueryIdle(self, event: Any) -> None:
        self.events.append(("idle", event.timestamp))

    def onQueryTerminated(self, event: Any) -> None:
        self.events.append(("terminated", event.exception))
        self.ends.append(event.errorClassOnException)


@pytest.mark.deep
def test_listener(session: StreamSession, clock: ManualClock) -> None:
    """A listener hears of start, each batch, idleness now and then, and the end, in order."""
    told = Told()
    session.streams.addListener(told)
    run = QueryRun(session, counts, "update")
    run.add("a")
    run.add("b")
    clock.advance(10_000)
    run.outputs()
    run.query.stop()
    assert session.streams.wait_until_told(300)
    assert told.events == [
        ("started", "run"),
        ("progress", 0),
        ("progress", 1),
        ("idle", "1970-01-01T00:00:11.000Z"),
        ("terminated", None),
    ]
    session.streams.removeListener(told)
    QueryRun(session, counts, "update").query.stop()
    assert session.streams.wait_until_told(300)
    assert len(told.events) == 5
    with pytest.raises(InvalidStreamError, match="one of the callbacks onQueryStarted"):
        session.streams.addListener("no listener")  # type: ignore[arg-type]


def test_idle_listeners_have_no_thread(session: StreamSession) -> None:
    """The listener thread ends after the last event, and stop waits for it."""
    told = Told()
    session.streams.addListener(told)
    QueryRun(session, counts, "update").add("a")
    session.stop()
    assert told.events[-1] == ("terminated", None)
    wait_for(lambda: _LISTENERS not in {thread.name for thread in threading.enumerate()})


_LISTENERS = "dstreams-listeners"


class Stops(StreamingQueryListener):
    """Stops queries on the callback of that name, and the session on their end."""

    def __init__(self, session: StreamSession, callback: str) -> None:
        self._session = session
        setattr(self, callback, self.stop)

    def stop(self, event: Any) -> None:
        query = self._session.streams.get(getattr(event, "id", None) or event.progress.id)
        if query is not None:
            query.stop()

    def onQueryTerminated(self, event: Any) -> None:
        self._session.stop()


@pytest.mark.parametrize("callback", ["onQueryStarted", "onQueryProgress"])
def test_stop_in_a_listener(session: StreamSession, callback: str) -> None:
    """A listener can stop the query that it hears of, and its session."""
    session.streams.addListener(Stops(session, callback))
    words = session.memoryStream()
    words.addData("a")
    query = words.toDS().writeStream.format("noop").trigger(processingTime="1 second").start()
    assert query.awaitTermination(300) is True
    assert query.exception() is None
    assert len(query.recentProgress) == (0 if callback == "onQueryStarted" else 1)


def test_two_queries_of_one_stream(session: StreamSession) -> None:
    """Each reads all of it, and ends for itself."""
    words = session.memoryStream()
    writers = [
        words.toDS().filter(itself).writeStream.format("memory").queryName(name)
        for name in ("one", "two")
    ]
    one, two = (writer.start() for writer in writers)
    assert session.streams.active == [one, two]
    words.addData("a")
    for query in (one, two):
        query.processAllAvailable()
    one.stop()
    words.addData("b")
    two.processAllAvailable()
    assert (session.table("one"), session.table("two")) == (["a"], ["a", "b"])
    drained = writers[0].trigger(availableNow=True).start()
    assert drained.awaitTermination(300)
    words.addData("c")
    two.processAllAvailable()
    assert session.table("two") == ["a", "b", "c"]
    assert repr(one) == "<StreamingQuery one, stopped>"
    assert repr(two) == "<StreamingQuery two, active>"
    assert repr(session) == "<StreamSession with 1 active queries>"


def test_progress(session: StreamSession) -> None:
    """Progress has Spark's fields, and of event time none without a watermark."""
    run = QueryRun(session, counts, "update")
    run.add("a", "b")
    progress = run.query.lastProgress
    assert progress is not None
    assert progress.name == "run"
    assert progress.id == run.query.id
    assert progress.timestamp == "1970-01-01T00:00:01.000Z"
    assert progress.numInputRows == 2
    assert progress.eventTime == {}
    assert set(progress.durationMs) == {
        "latestOffset",
        "walCommit",
        "getBatch",
        "queryPlanning",
        "addBatch",
        "commitOffsets",
        "triggerExecution",
    }
    (source,) = progress.sources
    assert (source["startOffset"], source.endOffset, source.numInputRows) == (None, 1, 2)
    assert progress.inputRowsPerSecond == 0.0  # nobody knows since when they came
    assert progress.sink.numOutputRows == 2
    (operator,) = progress.stateOperators
    assert (operator.operatorName, operator.numRowsTotal) == ("stateStoreSave", 2)
    assert '"numRowsTotal": 2' in operator.json
    assert '"batchId": 0' in progress.prettyJson
    with pytest.raises(AttributeError, match="StreamingQueryProgress has no 'nothing'"):
        _ = progress.nothing


def test_order_of_state_operators(session: StreamSession) -> None:
    """Progress lists operators from the sink down, of a join the left side first, as Spark."""

    def build(left: StreamingDataset, right: StreamingDataset) -> StreamingDataset:
        joined = left.dropDuplicates().join(right.dropDuplicates(), lambda number: number % 2)
        return joined.dropDuplicates(name="joined")

    run = QueryRun(session, build, "append", inputs=2)
    run.streams[0].addAll([1, 3, 5])
    run.add_to(1, 1, 2)
    progress = run.query.lastProgress
    assert progress is not None
    found = [(each.operatorName, each.numRowsTotal) for each in progress.stateOperators]
    assert found == [("dedupe", 3), ("symmetricHashJoin", 5), ("dedupe", 3), ("dedupe", 2)]


def test_event_time_in_progress(session: StreamSession) -> None:
    """A batch says the watermark that it went by, and the event times that it had, if any."""

    def build(events: StreamingDataset) -> StreamingDataset:
        return events.withWatermark(seconds, "5 seconds").dropDuplicates(seconds)

    run = QueryRun(session, build, "append")
    run.add(7)
    first, second = (progress.eventTime for progress in run.query.recentProgress)
    assert first["max"] == first["min"] == first["avg"] == "1970-01-01T00:00:07.000Z"
    assert first["watermark"] == "1970-01-01T00:00:00.000Z"
    assert second == {"watermark": "1970-01-01T00:00:02.000Z"}


def test_recent_progress(session: StreamSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bounded number of the newest updates is kept, newest last."""
    monkeypatch.setattr(manager, "_RECENT_UPDATES", 2)
    run = QueryRun(session, counts, "update")
    for word in "abc":
        run.add(word)
    assert [progress.batchId for progress in run.query.recentProgress] == [1, 2]
    assert run.query.lastProgress == run.query.recentProgress[-1]


def test_idle_trigger_runs_no_job(session: StreamSession, sc: SparkContext) -> None:
    """Looking for data costs no Spark job, and neither does a watermark that stands still."""
    run = QueryRun(session, counts, "update")
    run.add("a")
    tracker = sc.statusTracker()
    before = len(tracker.getJobIdsForGroup(run.query.runId))
    for _ in range(5):
        run.outputs()
    assert before > 0
    assert len(tracker.getJobIdsForGroup(run.query.runId)) == before


def test_status_and_end(session: StreamSession) -> None:
    """A query is active until it is stopped, and can be waited for."""
    run = QueryRun(session, counts, "update")
    assert run.query.isActive
    assert session.streams.active == [run.query]
    assert session.streams.get(run.query.id) is run.query
    assert run.query.awaitTermination(0.05) is False
    run.query.stop()
    assert run.query.awaitTermination(300) is True
    assert run.query.awaitTermination() is None
    assert run.query.exception() is None
    assert run.query.status["message"] == "Stopped"
    assert session.streams.active == []
    assert session.streams.awaitAnyTermination(1) is True
    session.streams.resetTerminated()
    assert session.streams.awaitAnyTermination(0.05) is False
    assert session.streams.awaitAnyTermination(0) is False


@pytest.mark.parametrize("call", ["processAllAvailable", "awaitTermination"])
def test_a_batch_cannot_wait_for_its_query(session: StreamSession, call: str) -> None:
    """A function of the query that would wait for itself is an error, not an end to everything."""
    words = session.memoryStream()
    words.addData("a")
    queries: list[StreamingQuery] = []

    def wait(rows: Any, batch_id: int) -> None:
        wait_for(lambda: queries)
        getattr(queries[0], call)()

    queries.append(words.toDS().writeStream.foreachBatch(wait).start())
    with pytest.raises(StreamingQueryException, match=f"{call} was called in a batch of query"):
        queries[0].awaitTermination(300)


def test_storage_that_fails_in_a_stop_is_an_error_of_the_query(
    session: StreamSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unlike the job that a stop has cancelled."""
    run = QueryRun(session, counts, "update")
    execution = run.query._execution

    def fail(**options: object) -> None:
        run.query.stop()
        raise StorageRefusedError("the disk is full")

    monkeypatch.setattr(execution, "run_trigger", fail)
    with pytest.raises(StreamingQueryException, match="the disk is full"):
        run.query.awaitTermination(300)


def test_failure_ends_a_query(session: StreamSession) -> None:
    """The error of a user's function ends the query, and every waiting caller gets it."""

    def refuse(word: str) -> str:
        raise ValueError(f"no {word}")

    told = Told()
    session.streams.addListener(told)
    run = QueryRun(session, lambda words: words.map(refuse), "append")
    run.streams[0].addData("a")
    with pytest.raises(StreamingQueryException, match=r"query run .* failed in batch 0: .*no a"):
        run.query.awaitTermination()
    with pytest.raises(StreamingQueryException):
        session.streams.awaitAnyTermination(5)
    assert not run.query.isActive
    assert repr(run.query) == "<StreamingQuery run, failed>"
    assert session.streams.wait_until_told(300)
    assert told.ends == ["ValueError"]
    session.streams.resetTerminated()
    assert session.streams.awaitAnyTermination(0.05) is False


def test_one_name_one_query(session: StreamSession, tmp_path: Path) -> None:
    """A name, and a checkpoint, belong to one query that runs."""
    run = QueryRun(session, counts, "update", tmp_path)
    with pytest.raises(StreamLifecycleError, match="a query named 'run' is already running"):
        run._start()
    other = run.streams[0].toDS().writeStream.format("noop")
    with pytest.raises(StreamLifecycleError, match=r"is already running on "):
        other.option("checkpointLocation", str(tmp_path)).start()


def test_stop_while_a_batch_runs(session: StreamSession) -> None:
    """Stopping cancels the running batch, and is not a failure."""
    begun = threading.Event()

    def wait(rows: Any, batch_id: int) -> None:
        begun.set()
        rows.map(_never).count()

    words = session.memoryStream()
    query = words.toDS().writeStream.foreachBatch(wait).start()
    words.addData("a")
    wait_for(begun.is_set)
    query.stop()
    assert query.exception() is None
    assert not query.isActive


def _never(record: Any) -> Any:
    threading.Event().wait(300)
    return record


def test_available_now(session: StreamSession, tmp_path: Path) -> None:
    """Records available at the start are processed, with the state that expires; then it stops."""

    def build(events: StreamingDataset) -> StreamingDataset:
        marked = events.withWatermark(seconds, "0 seconds")
        return marked.groupByKey(window(seconds, "5 seconds")).count()

    run = QueryRun(session, build, "append", tmp_path, trigger={"availableNow": True})
    assert run.query.awaitTermination(300) is True
    run.streams[0].addData(1, 2, 8)
    run.restart()
    assert run.query.awaitTermination(300) is True
    assert [row[1] for row in session.table("run")] == [2]


def test_once_after_a_batch_that_was_cut_off(session: StreamSession, tmp_path: Path) -> None:
    """The batch that was not committed is the one batch of the run."""
    run = QueryRun(session, counts, "update", tmp_path, trigger={"once": True})
    outputs = []
    for word in ("a", "b", None):
        if word == "b":
            (commit,) = (tmp_path / "commits").iterdir()
            commit.unlink()
        run.streams[0].addAll([word] if word else [])
        run.forget()
        run.restart()
        assert run.query.awaitTermination(300)
        outputs.append(session.table("run"))
    assert outputs == [[("a", 1)], [("a", 1)], [("b", 1)]]


def test_trigger_interval(session: StreamSession, clock: ManualClock) -> None:
    """The first batch begins at once, those after it at multiples of the interval."""
    run = QueryRun(session, counts, "update", trigger={"processingTime": "10 seconds"})
    wait_for(lambda: run.query.status["message"] == "Waiting for data to arrive")
    run.streams[0].addData("a")
    clock.advance(9000)
    wait_for(lambda: run.query.status["message"] == "Waiting for next trigger")
    wait_for(lambda: run.query.recentProgress)  # once it is known that the commit counts
    (progress,) = run.query.recentProgress
    assert progress.timestamp == "1970-01-01T00:00:10.000Z"
    assert progress.inputRowsPerSecond == 1 / 9  # one since the trigger before
    assert run.query.status["isTriggerActive"] is False


def test_unknown_field(session: StreamSession) -> None:
    """A field that records do not have is named, with the record."""
    run = QueryRun(session, lambda rows: rows.withWatermark("time", "1 second"), "append")
    with pytest.raises(StreamingQueryException, match="a record has no field 'time': 7"):
        run.add(7)


def test_jobs_say_query_and_batch(session: StreamSession, tmp_path: Path) -> None:
    """Spark's page shows their name, id, run and batch, and the operator of a state."""
    sc, seen = session.sparkContext, []

    def look(rdd: RDD[Any], batch_id: int) -> None:
        rdd.count()
        seen.append(
            {key: sc.getLocalProperty(key) for key in (DESCRIPTION, QUERY_ID, BATCH_ID, OUTPUT_ID)}
        )

    words = session.memoryStream()
    before = next_job_id_if_known(sc)
    query = (
        words.toDS()
        .groupByKey(len)
        .count()
        .writeStream.queryName("lengths")
        .outputMode("update")
        .foreachBatch(look)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    words.addData("a", "bb")
    query.processAllAvailable()
    words.addData("c")
    query.processAllAvailable()
    query.stop()
    for number, found in enumerate(seen):
        assert found == {
            DESCRIPTION: f"lengths<br/>id = {query.id}<br/>runId = {query.runId}"
            f"<br/>batch = {number}",
            QUERY_ID: query.id,
            BATCH_ID: str(number),
            OUTPUT_ID: None,
        }
    assert before is not None
    sc._jsc.sc().listenerBus().waitUntilEmpty()
    store = sc._jsc.sc().statusStore()
    ran = range(before, next_job_id_if_known(sc) or 0)
    said = [store.job(job).description().get() for job in ran]
    assert any(re.search(r"batch = 0<br/>state: \w", text) for text in said)


@pytest.mark.parametrize(
    ("now_ms", "next_ms"), [(0, 1000), (1, 1000), (999, 1000), (1000, 2000), (5500, 6000)]
)
def test_multiples_of_the_interval(now_ms: int, next_ms: int) -> None:
    """Batches begin at multiples of the interval; those that were missed are skipped."""
    assert Trigger("processingTime", 1000).next_ms(now_ms) == next_ms


def test_one_after_the_other() -> None:
    """Without an interval the next batch may begin at once."""
    assert Trigger().next_ms(17) == 17


def test_made() -> None:
    """One argument says which trigger it is."""
    assert make_trigger("5 seconds", None, None) == Trigger("processingTime", 5000)
    assert make_trigger(None, True, None) == Trigger("once")
    assert make_trigger(None, None, True) == Trigger("availableNow")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((None, None, None), "none of them"),
        (("1 second", True, None), "processingTime and once"),
        ((None, False, None), "once of trigger must be True"),
        (("-1 second", None, None), "is '-1 second'; use a duration of at least 0 ms"),
        (("soon", None, None), "is 'soon'; use a duration of at least 0 ms"),
        ((5, None, None), "is 5; use a duration of at least 0 ms"),
    ],
)
def test_refused(arguments: Any, message: str) -> None:
    """Errors name an invalid argument of a trigger."""
    with pytest.raises(InvalidStreamError, match=message):
        make_trigger(*arguments)
