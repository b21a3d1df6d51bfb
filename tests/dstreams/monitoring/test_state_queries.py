"""Looking into the state of what runs: one key, and the largest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

from dstreams import InvalidStreamError, State, StateSpec, StreamingContext
from dstreams.monitoring.monitor import Monitor
from dstreams.monitoring.registry import registry
from dstreams.monitoring.state_queries import StateOfKey, StateQueries
from dstreams.structured import StreamSession, window
from dstreams.testing import ManualClock


def add_up(values: list[int], state: int | None) -> int:
    return sum(values) + (state or 0)


def remember(key: str, value: int | None, state: State[str]) -> None:
    if not state.isTimingOut:
        state.update("x" * (value or 0))


def access(monitor: Monitor) -> StateQueries:
    assert monitor.states is not None
    return monitor.states


def newest_monitor() -> Monitor:
    return registry().monitors()[0]


@pytest.mark.deep
@pytest.mark.parametrize("preserves", [True, False], ids=["placed", "anywhere"])
def test_a_state_rdd(ssc: StreamingContext, tmp_path: Path, preserves: bool) -> None:
    """As of the last batch, also between two snapshots."""
    ssc.checkpoint(str(tmp_path))
    pairs = ssc.queueStream([[("a", 1), (("b", 2), 5)], [("a", 1)]])
    counts = pairs.updateStateByKey(add_up, preservePartitioning=preserves, uid="counts")
    counts.foreachRDD(lambda rdd: None)
    ssc.step(2)
    looked = access(newest_monitor())
    found = looked.look_up("counts", "a")
    assert (found.value, found.is_there, found.batch_time_ms) == (2, True, 2000)
    assert looked.look_up("counts", ("b", 2)).value == 5
    missing = looked.look_up("counts", "c")
    assert (missing.is_there, missing.value) == (False, None)
    assert {one.key for one in looked.largest("counts", 5)} == {"a", ("b", 2)}
    with pytest.raises(InvalidStreamError, match="has the uid 'other'; known uids: counts"):
        looked.look_up("other", "a")
    if preserves:
        with pytest.raises(InvalidStreamError, match=r"\{'a': 1\} cannot be a key"):
            looked.look_up("counts", {"a": 1})
    else:
        assert not looked.look_up("counts", {"a": 1}).is_there


def test_stored_state(ssc: StreamingContext, tmp_path: Path) -> None:
    """The state of a key, and the largest ones, are read from the store."""
    ssc.checkpoint(str(tmp_path))
    pairs = ssc.queueStream([[("a", 10), ("b", 5000), ("c", 70)]])
    spec = StateSpec.function(remember).timeout(60)
    pairs.mapWithState(spec, uid="names").foreachRDD(lambda rdd: None)
    monitor = ssc._monitor
    assert monitor.states is None
    ssc.step()
    looked = access(monitor)
    found = looked.look_up("names", "a")
    assert found == StateOfKey("names", 1000, found.partition, True, "x" * 10, found.timeout_ms)
    assert found.timeout_ms is not None
    assert [one.key for one in looked.largest("names", 2)] == ["b", "c"]
    assert looked.largest("names", 1)[0].size_bytes > 5000
    ssc.stop(stopSparkContext=False)
    assert monitor.states is None


def test_states_of_a_query(sc: SparkContext) -> None:
    """By the keys that people know: of a window its end in milliseconds, and the rest."""
    session = StreamSession(sc, clock=ManualClock(10_000))
    words = session.memoryStream("words")
    marked = words.toDS().withWatermark(len, "1 minute")
    query = (
        marked.groupByKey(lambda word: word, window(len, "2 seconds"))
        .count()
        .writeStream.format("memory")
        .queryName("counted")
        .outputMode("update")
        .start()
    )
    try:
        words.addData("a", "b", "a")
        query.processAllAvailable()
        looked = access(newest_monitor())
        uid = newest_monitor().status().states[0].uid
        keys: list[Any] = [one.key for one in looked.largest(uid, 5)]
        assert len(keys) == 2
        found = [looked.look_up(uid, key) for key in keys]
        assert all(one.is_there for one in found)
        assert not looked.look_up(uid, "z").is_there
    finally:
        session.stop()
