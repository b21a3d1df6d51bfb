"""The status of a running stream and a running query."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

from dstreams import BatchFailedError, StreamingContext
from dstreams.monitoring.registry import registry
from dstreams.structured import StreamingQueryException, StreamSession
from dstreams.testing import ManualClock
from tests.dstreams.conftest import MakeContext


def count(values: list[int], state: int | None) -> int:
    return sum(values) + (state or 0)


def define(ssc: StreamingContext, directory: Path, seen: list[Any]) -> None:
    ssc.checkpoint(str(directory))
    pairs = ssc.queueStream([[("a", 1), ("b", 2)], [("a", 1)], [("c", 1)]], uid="pairs")
    counts = pairs.updateStateByKey(count, uid="counts")
    counts.checkpoint(2)
    counts.foreachRDD(lambda rdd: seen.append(sorted(rdd.collect())))


def test_a_stream_says_what_is_durable(make_ssc: MakeContext, tmp_path: Path) -> None:
    """Snapshots in every second batch: of the first one a restart computes the state again."""
    ssc, seen = make_ssc(), []
    define(ssc, tmp_path, seen)
    assert ssc.progress() is None
    ssc.step()
    status = ssc.status()
    assert status.checkpoint is not None
    assert (status.checkpoint.committed_batch_id, status.checkpoint.epoch) == (0, 1)
    assert (status.checkpoint.durable_state_ms, status.checkpoint.recomputed) == (None, (0, 0))
    assert status.states == ()
    ssc.step(2)
    status = ssc.status()
    [state] = status.states
    assert (state.uid, state.keys, len(state.partitions)) == ("counts", 2, 2)
    assert sum(part.keys for part in state.partitions) == 2
    assert state.written_bytes == sum(part.written_bytes for part in state.partitions) > 0
    assert status.checkpoint is not None
    assert status.checkpoint.recomputed == (2, 2)
    assert status.checkpoint.durable_state_ms == state.batch_time_ms
    assert status.checkpoint.durable_state_at_ms == status.recent[1].completed_ms
    assert status.checkpoint.committed_at_ms == status.recent[2].completed_ms
    assert status.checkpoint.rerun == ()
    assert [(node.kind, node.uid) for node in status.graph] == [
        ("input", "pairs"),
        ("state", "counts"),
        ("output", "foreachRDD-0"),
    ]
    assert [node.durable for node in status.graph] == [
        "what each batch reads",
        "a snapshot every 2 s",
        "at least once",
    ]
    assert [batch.batch_id for batch in status.recent] == [0, 1, 2]
    assert status.totals.batches == {"succeeded": 3}
    ssc.stop(stopSparkContext=False)
    assert ssc.status().phase == "stopped"
    assert seen[-1] == [("a", 2), ("b", 2), ("c", 1)]


def test_progress_of_a_stream_has_the_names_of_spark(ssc: StreamingContext) -> None:
    """Those of a query of Structured Streaming."""
    stream = ssc.queueStream([[1, 2, 3], [4]])
    stream.foreachRDD(lambda rdd: rdd.count())
    ssc.step(2)
    first, second = ssc.recentProgress
    assert second == ssc.progress()
    assert (first.batchId, first.numInputRows, first.outcome) == (0, 3, "succeeded")
    assert (second.batchId, second.numInputRows) == (1, 1)
    assert first["sources"][0]["endOffset"] == 1
    assert {"latestOffset", "walCommit", "addBatch", "triggerExecution"} <= set(first.durationMs)
    assert first.inputRowsPerSecond == 3
    assert first.outputs[0]["failure"] is None
    assert first.id == ssc.status().id
    assert '"batchId": 0' in first.prettyJson


def test_a_failed_batch_is_among_them(ssc: StreamingContext) -> None:
    """With the output that failed, and why."""

    def fail(rdd: Any) -> None:
        raise ValueError("no disk")

    ssc.queueStream([[1]]).foreachRDD(fail)
    with pytest.raises(BatchFailedError):
        ssc.step()
    progress = ssc.progress()
    assert progress is not None
    assert progress.outcome == "failed"
    assert "no disk" in progress.failure
    assert "no disk" in progress.outputs[0]["failure"]
    assert list(ssc.status().totals.output_failures.values()) == [1]


def test_a_query_says_the_same_of_itself(sc: SparkContext, tmp_path: Path) -> None:
    """Batches, graph and state, while it runs and after its end."""
    session = StreamSession(sc, clock=ManualClock(10_000))
    words = session.memoryStream("words")
    query = (
        words.toDS()
        .groupByKey(lambda word: word)
        .count()
        .writeStream.format("memory")
        .queryName("counts")
        .outputMode("complete")
        .start()
    )
    try:
        words.addData("a", "b", "a")
        query.processAllAvailable()
        [status] = [each for each in registry().statuses() if each.id == query.id]
        assert (status.phase, status.name, status.run_id) == ("active", "counts", query.runId)
        [batch] = status.recent
        assert (batch.inputs[0].records, batch.outputs[0].rows) == (3, 2)
        [state] = status.states
        assert (state.keys, state.batch_time_ms) == (2, batch.batch_time_ms)
        assert status.graph[0].kind == "input"
        assert [node.uid for node in status.graph if node.kind == "state"] == [state.uid]
        assert status.graph[-1].kind == "output"
        progress = query.lastProgress
        assert progress is not None
        assert (progress.batchId, progress.numInputRows) == (0, 3)
        assert progress.sink.numOutputRows == 2
    finally:
        session.stop()
    ended = [each for each in registry().statuses() if each.run_id == query.runId]
    assert [each.phase for each in ended] == ["stopped"]


def test_a_sink_that_fails_is_counted(sc: SparkContext) -> None:
    """The failed batch is retained with its sink and reason, and makes no progress."""

    def fail(rows: Any, batch_id: int) -> None:
        raise OSError("no disk")

    session = StreamSession(sc)
    words = session.memoryStream("words")
    query = words.toDS().writeStream.foreachBatch(fail).start()
    words.addData("a")
    with pytest.raises(StreamingQueryException, match="no disk"):
        query.awaitTermination(60)
    session.stop()
    [status] = [each for each in registry().statuses() if each.run_id == query.runId]
    [batch] = status.recent
    [sink] = batch.outputs
    assert (status.phase, batch.outcome) == ("failed", "failed")
    assert "no disk" in str(sink.failure)
    assert status.totals.output_failures == {sink.name: 1}
    assert query.recentProgress == []
