"""Looking at streams between two batches: newest RDDs, state, pictures, and what explain says."""

from __future__ import annotations

import shutil
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import RDD, SparkContext

from dstreams import InvalidStreamError, StateSpec, StreamingContext, StreamLifecycleError
from dstreams.common.settings import Settings
from dstreams.engine.lifecycle import StreamingContextState
from dstreams.sinks import BatchSink, DeliveryGuarantee, OutputBatch, TransactionalSink
from dstreams.structured import StreamSession
from dstreams.testing import ManualClock
from tests.support.jobs import count_jobs

BATCHES = [[("a", 1), ("b", 1)], [("a", 2)], [], [("c", 1)]]


def add(values: list[int], state: int | None) -> int:
    return sum(values) + (state or 0)


def count(key: str, value: int, state: Any) -> tuple[str, int]:
    state.update((state.getOption or 0) + value)
    return key, state.get


# The newest RDD --------------------------------------------------------------------------------


def test_the_newest_rdd_of_any_stream(ssc: StreamingContext) -> None:
    """Of inputs, intermediate streams and outputs: the RDD of the last batch."""
    pairs = ssc.queueStream(BATCHES)
    doubled = pairs.mapValues(lambda v: 2 * v)
    doubled.filter(lambda pair: True).foreachRDD(lambda rdd: None)
    for expected in BATCHES:
        ssc.step()
        for stream, factor in ((pairs, 1), (doubled, 2)):
            newest = stream.latest()
            assert newest is not None
            assert sorted(newest.collect()) == [(k, factor * v) for k, v in expected]


def test_the_newest_rdd_is_that_of_a_batch_that_had_one(ssc: StreamingContext) -> None:
    """A batch without an RDD has nothing to show, and reports that."""
    pairs = ssc.queueStream([None, [("a", 1)]])
    pairs.foreachRDD(lambda rdd: None)
    ssc.step()
    assert pairs.latest() is None
    ssc.step()
    newest = pairs.latest()
    assert newest is not None
    assert newest.collect() == [("a", 1)]


def test_a_slow_stream_has_the_newest_of_its_own(ssc: StreamingContext) -> None:
    """After the third batch, a window with a slide of two batches has that of the second."""
    windows = ssc.queueStream([[1], [2], [3]]).window(2, 2)
    windows.foreachRDD(lambda rdd: None)
    ssc.step(3)
    newest = windows.latest()
    assert newest is not None
    assert newest.collect() == [1, 2]


def test_show_prints_as_pprint_does(
    ssc: StreamingContext, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the time of its batch, in one job."""
    numbers = ssc.queueStream([[1, 2, 3]])
    numbers.pprint(2)
    ssc.step()
    printed = capsys.readouterr().out
    assert count_jobs(ssc.sparkContext, lambda: numbers.show(2)) == 1
    assert capsys.readouterr().out == printed
    with pytest.raises(InvalidStreamError, match="n of show"):
        numbers.show(0)


def test_show_of_nothing(ssc: StreamingContext, capsys: pytest.CaptureFixture[str]) -> None:
    """show() reports that the last batch had no RDD."""
    numbers = ssc.queueStream([None])
    numbers.foreachRDD(lambda rdd: None)
    ssc.step()
    numbers.show()
    assert "queueStream at test_looks.py:" in capsys.readouterr().out


def test_when_there_is_nothing_to_look_at(ssc: StreamingContext) -> None:
    """Before the first batch, for a stream that no batch computes, and after the end."""
    numbers = ssc.queueStream([[1]])
    unused = numbers.map(str)
    numbers.foreachRDD(lambda rdd: None)
    with pytest.raises(StreamLifecycleError, match=r"no batch has run yet; run one with step\(\)"):
        numbers.latest()
    ssc.step()
    with pytest.raises(StreamLifecycleError, match="no output uses it"):
        unused.latest()
    ssc.stop(stopSparkContext=False)
    with pytest.raises(StreamLifecycleError, match="the context has stopped"):
        numbers.show()


def test_a_failed_batch_shows_what_was_made(ssc: StreamingContext) -> None:
    """So the records for which an output failed can be inspected."""
    numbers = ssc.queueStream([[1, 0]])
    numbers.map(lambda x: 1 / x).foreachRDD(lambda rdd: rdd.collect())
    with pytest.raises(Exception, match="division by zero"):
        ssc.step()
    newest = numbers.latest()
    assert newest is not None
    assert newest.collect() == [1, 0]


# State -----------------------------------------------------------------------------------------


@pytest.mark.deep
def test_state_is_looked_at_the_same_way(ssc: StreamingContext, tmp_path: Path) -> None:
    """The state of updateStateByKey like that of mapWithState: the newest, and as a stream."""
    ssc.checkpoint(str(tmp_path))
    pairs = ssc.queueStream(BATCHES)
    updated = pairs.updateStateByKey(add)
    mapped = pairs.mapWithState(StateSpec.function(count))
    seen: list[list[tuple[str, int]]] = []
    for stream in (updated.stateSnapshots(), mapped.stateSnapshots()):
        stream.foreachRDD(lambda rdd: seen.append(sorted(rdd.collect())))
    expected = {"a": 0, "b": 0, "c": 0}
    for batch in BATCHES:
        ssc.step()
        for key, value in batch:
            expected[key] += value
        there = [(key, value) for key, value in expected.items() if value]
        for stream in (updated, mapped):
            assert sorted(stream.stateStore().collect()) == [(*pair, None) for pair in there]
        assert seen[-2:] == [there, there]


@pytest.mark.deep
def test_state_of_an_earlier_batch(ssc: StreamingContext, tmp_path: Path) -> None:
    """While it is remembered; times between two batches are rounded down."""
    ssc.checkpoint(str(tmp_path))
    ssc.remember(3)
    counts = ssc.queueStream(BATCHES * 10).updateStateByKey(add).checkpoint(1)
    counts.foreachRDD(lambda rdd: None)
    with pytest.raises(StreamLifecycleError, match="no batch has run yet"):
        counts.stateStore()
    ssc.step(8)
    assert sorted(counts.stateStore(7).collect()) == [
        ("a", 6, None),
        ("b", 2, None),
        ("c", 1, None),
    ]
    assert counts.stateStore(datetime.fromtimestamp(7.5)).count() == 3  # noqa: DTZ006
    with pytest.raises(InvalidStreamError, match=r"after the batch at 1000 ms is not remembered"):
        counts.stateStore(1)


def test_no_state_yet(ssc: StreamingContext, tmp_path: Path) -> None:
    """Without a first RDD there is no state."""
    ssc.checkpoint(str(tmp_path))
    counts = ssc.queueStream([None]).updateStateByKey(add)
    counts.foreachRDD(lambda rdd: None)
    ssc.step()
    with pytest.raises(StreamLifecycleError, match="has no state yet"):
        counts.stateStore()


# Pictures --------------------------------------------------------------------------------------


def test_pictures_at_every_time_run_nothing(ssc: StreamingContext, tmp_path: Path) -> None:
    """Before anything is complete, while it runs, and after the end."""
    sc = ssc.sparkContext
    counts = ssc.queueStream(BATCHES, uid="pairs").updateStateByKey(add, uid="counts")
    ssc.checkpoint(str(tmp_path))

    def look_before() -> None:
        assert "cannot run yet: no output operations" in ssc._repr_html_()
        assert "updateStateByKey" in counts._repr_html_()

    assert count_jobs(sc, look_before) == 0
    unused = counts.map(str)
    counts.checkpoint(1).foreachRDD(lambda rdd: None)
    assert "cannot run yet" not in ssc._repr_html_()
    infos = ssc.step(2)

    def look() -> None:
        picture = ssc._repr_html_()
        assert "counts · test_looks.py:" in picture
        assert "a snapshot every 1 s" in picture
        assert "at least once" in picture
        assert "durable as of" in counts._repr_html_()
        assert "map" in unused._repr_html_()
        assert repr(infos).count("succeeded") == 2
        assert "2 batches" in infos._repr_html_()
        assert "2 batches" in ssc.recentProgress._repr_html_()
        assert repr(ssc).startswith("<StreamingContext ACTIVE, a batch every 1 s")

    assert count_jobs(sc, look) == 0
    ssc.stop(stopSparkContext=False)
    assert "stopped" in ssc._repr_html_()
    assert ssc.getState() is StreamingContextState.STOPPED
    shutil.rmtree(tmp_path)
    assert "stopped" in ssc._repr_html_()
    assert "counts" in counts._repr_html_()


def test_a_picture_keeps_nothing_of_a_stream_that_is_not_used(
    ssc: StreamingContext, tmp_path: Path
) -> None:
    """Inspecting a stream before the start adds nothing to the checkpoint."""
    numbers = ssc.queueStream([[1]])
    unused = numbers.map(abs)
    ssc.checkpoint(str(tmp_path))
    unused._repr_html_()
    numbers.foreachRDD(lambda rdd: None)
    assert unused._node not in ssc._graph.options
    ssc.step()


def test_a_picture_when_spark_has_stopped(
    ssc: StreamingContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reports that, and does not fail."""
    counts = ssc.queueStream(BATCHES).updateStateByKey(add)
    counts.pprint()
    monkeypatch.setattr(ssc, "_sc", SimpleNamespace(_jsc=None))
    assert "the SparkContext has been stopped" in ssc._repr_html_()
    assert "updateStateByKey" in counts._repr_html_()


def test_pictures_of_queries(sc: SparkContext) -> None:
    """Of the definition, a running query, the session, and the progress."""
    session = StreamSession(sc)
    events = session.memoryStream("<events>")
    counts = events.toDS().groupByKey(lambda x: x % 2).count()
    assert "&lt;events&gt;" in counts._repr_html_()
    assert "no queries" in session._repr_html_()
    query = counts.writeStream.outputMode("complete").format("memory").queryName("odd").start()
    try:
        events.addData(1, 2, 3)
        query.processAllAvailable()

        def look() -> None:
            assert "Query odd" in query._repr_html_()
            assert "at least once" in query._repr_html_()
            assert "odd" in session._repr_html_()
            assert "1 batch" in query.recentProgress._repr_html_()

        assert count_jobs(sc, look) == 0
    finally:
        session.stop()
    assert "stopped" in query._repr_html_()


# Explain ---------------------------------------------------------------------------------------


class Told(BatchSink):
    """A sink that states a guarantee."""

    promise = DeliveryGuarantee("exactly once", "by the moon")

    def write_batch(self, batch: OutputBatch, rdd: RDD[Any]) -> None:
        """Write nothing."""


def explained(ssc: StreamingContext, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """Return the output of explain, by heading, without line breaks."""
    ssc.explain()
    parts = capsys.readouterr().out.split("== ")[1:]
    titled = (part.partition(" ==\n") for part in parts)
    return {title: " ".join(text.split()) for title, _, text in titled}


def test_explain_says_what_each_output_promises(
    ssc: StreamingContext, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exactly once, at least once, and the condition."""
    ssc.checkpoint(str(tmp_path))
    pairs = ssc.queueStream(BATCHES, uid="pairs")
    pairs.pprint()
    pairs.foreachRDD(lambda rdd: None)
    pairs.foreachRDD(lambda time, rdd, batchId: None)
    pairs.saveAsTextFiles(str(tmp_path / "out"))
    pairs.foreachRDD(TransactionalSink(str(tmp_path / "db"), "INSERT INTO t VALUES (?, ?)"))
    pairs.foreachRDD(Told())
    pairs.saveToKafka("topic", {"bootstrap.servers": "localhost:1"})
    pairs.saveToKafka("topic", {"bootstrap.servers": "localhost:1"}, exactlyOnce=False)
    outputs = explained(ssc, capsys)["Outputs"]
    for uid, promise in {
        "pprint-0": "at least once: a batch that a crash interrupted is printed again",
        "foreachRDD-0": "at least once: after a crash, the function is called again",
        "foreachRDD-1": "at least once: after a crash, the function is called again with the "
        "interrupted batch, the same records and batch id: exactly once if it skips batch ids",
        "saveAsTextFiles-0": "exactly once: the directory of a batch is complete or absent",
        "foreachRDD-2": "exactly once: the rows of a batch and its id are committed in one",
        "foreachRDD-3": "exactly once: by the moon",
        "saveToKafka-0": "exactly once: for readers with isolation.level=read_committed",
        "saveToKafka-1": "at least once: a batch that a crash interrupted is written again",
    }.items():
        place = outputs.index(f"{uid}, ")
        assert promise in outputs[place : place + 300]
    assert "spark.dstreams.onFailure=continue" in outputs


def test_explain_says_what_is_durable_and_when(
    sc: SparkContext, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """State as snapshots and as changes; inputs that no restart can read again."""
    ssc = StreamingContext(sc, 1, clock=ManualClock(), settings=Settings(on_failure="stop"))
    pairs = ssc.queueStream(BATCHES, uid="pairs")
    counts = pairs.updateStateByKey(add, uid="counts")
    counts.join(pairs.mapWithState(StateSpec.function(count), uid="stored")).pprint()
    ssc.queueStream([[1]], replayable=True, uid="again").pprint()
    ssc.checkpoint(str(tmp_path))
    said = explained(ssc, capsys)
    assert list(said) == ["Graph", "Durable", "Outputs"]
    assert "[uid counts; durable: a snapshot every 10 s]" in said["Graph"]
    durable = said["Durable"]
    for fact in ("pairs, queueStream at test_looks.py:", "a restart is refused", "again, queue"):
        assert fact in durable
    assert "a snapshot of the whole state every 10 batches (10 s)" in durable
    assert "the state after each batch, before its outputs run" in durable
    assert "spark.dstreams.onFailure=stop" in said["Outputs"]


@pytest.mark.usefixtures("no_checkpoint_directory")
def test_explain_says_why_nothing_can_run_yet(
    ssc: StreamingContext, capsys: pytest.CaptureFixture[str]
) -> None:
    """First; and it reports that nothing is durable without a directory."""
    counts = ssc.queueStream(BATCHES).updateStateByKey(add)
    said = explained(ssc, capsys)
    assert "no output operations registered" in said["Cannot run yet"]
    assert said["Outputs"] == "none"
    counts.pprint()
    said = explained(ssc, capsys)
    assert "the checkpoint directory has not been set" in said["Cannot run yet"]
    assert said["Durable"].startswith("nothing: ")
    assert "at most once" in said["Outputs"]
