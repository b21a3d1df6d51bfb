"""Versions of stored state: made in order, put back after a restart, looked at from outside."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from pyspark import RDD, SparkContext

from checkpoint import open_files
from checkpoint.state_store import LmdbBases, StateStore, StateWriter
from checkpoint.testing.memory_bases import MemoryBases
from dstreams.errors import RestartError
from dstreams.graph.history import History
from dstreams.graph.node import Node, Rdds
from dstreams.graph.output import OutputOperation
from dstreams.graph.plan import StreamGraph
from dstreams.graph.stored import StoredStateDStream
from dstreams.graph.stored_states import StoredStates
from dstreams.rdd.partitioner import StablePartitioner
from dstreams.rdd.state_metrics import StateMetrics
from dstreams.rdd.stored_version import NO_EVENT_TIME, StoredVersion
from dstreams.state.batch_functions import StoredBatch

Pairs = Iterator[tuple[Any, Any]]


@dataclass(frozen=True, eq=False)
class Letters(Node):
    """A pair for each letter of each second's text; the value is the second."""

    texts: tuple[str, ...]
    operation: str = "letters at a.py:1"
    slide_ms: int = 1000

    @property
    def parents(self) -> tuple[Node, ...]:
        return ()

    def compute(self, time_ms: int, rdds: Rdds) -> RDD[Any]:
        number = time_ms // 1000
        text = self.texts[number - 1] if number <= len(self.texts) else ""
        return rdds.spark.parallelize([(letter, number) for letter in text], 2)


@dataclass(frozen=True)
class Count:
    """Counts letters; the second of a letter is its event time, and the watermark is emitted."""

    watermark_ms: int

    def __call__(
        self, store: StateWriter, initial: Pairs, records: Pairs, metrics: StateMetrics
    ) -> Iterator[Any]:
        for key, state in initial:
            store.put(key, (state,))
        for key, second in records:
            metrics.eventTimeMaxMs = max(metrics.eventTimeMaxMs, second * 1000)
            count = (store.get(key) or (0,))[0] + 1
            store.put(key, (count,))
            yield key, count, self.watermark_ms


def counting(batch: StoredBatch) -> Count:
    return Count(batch.before.watermark_ms)


@dataclass
class Run:
    """A graph of one stored stream, and its states."""

    node: StoredStateDStream
    states: StoredStates
    history: History

    def rows(self, second: int) -> list[Any]:
        rdd = self.history.at(self.node, second * 1000)
        assert rdd is not None
        return sorted(rdd.collect())

    def committed(self) -> StoredVersion:
        """The newest version, as a commit record keeps it."""
        version = self.states.newest()[self.node]
        watermark_ms = self.states.watermarks().get("count-0", NO_EVENT_TIME)
        return StoredVersion.committed("stream-1", version.commit, watermark_ms)

    def go_on(self, second: int, version: StoredVersion) -> None:
        """Go on after the batch that made a version."""
        self.states.restore(self.node, second * 1000, version)


def run_of(
    sc: SparkContext,
    directory: Path,
    *texts: str,
    partitions: int = 2,
    delay_ms: int | None = 500,
    initial: RDD[Any] | None = None,
) -> Run:
    node = StoredStateDStream(
        Letters(texts),
        counting,
        StablePartitioner(partitions),
        initial,
        "count at a.py:2",
        delay_ms,
    )
    graph = StreamGraph(1000, 1000)
    graph.outputs.append(OutputOperation(node, lambda time_ms, rdd: None, "out at a.py:9"))
    plan = graph.freeze(0, has_checkpoint_directory=True)
    bases = LmdbBases(open_files(str(directory / "files")), str(directory / "local"))
    states = StoredStates(StateStore(bases), "stream-1", {node: "count-0"}, 0)
    return Run(node, states, History(plan, sc, states=states))


def test_a_restart_goes_on(sc: SparkContext, tmp_path: Path) -> None:
    """What a commit record names is where the next batch begins, watermark and all."""
    texts = ("ab", "a", "ac", "b")
    undisturbed = run_of(sc, tmp_path / "1", *texts)
    expected = [undisturbed.rows(second) for second in (1, 2, 3, 4)]
    assert expected[2] == [("a", 3, 1500), ("c", 1, 1500)]
    first = run_of(sc, tmp_path / "2", *texts)
    assert [first.rows(second) for second in (1, 2)] == expected[:2]
    second = run_of(sc, tmp_path / "2", *texts)
    second.go_on(2, first.committed())
    assert [second.rows(number) for number in (3, 4)] == expected[2:]
    assert second.states.watermarks() == {"count-0": 3500}


def test_rows_of_a_restored_batch(sc: SparkContext, tmp_path: Path) -> None:
    """Its rows can be made again, and what was committed stays what the next batch builds on."""
    first = run_of(sc, tmp_path, "ab", "a", "a")
    first.rows(1)
    before = first.committed()
    rows = first.rows(2)
    second = run_of(sc, tmp_path, "ab", "a", "a")
    second.go_on(1, before)
    second.go_on(2, first.committed())
    committed = second.states.at(second.node, 2000)
    rdd = second.node.compute(2000, second.history)
    assert rdd is not None
    assert sorted(rdd.collect()) == rows == [("a", 2, 500)]
    assert second.states.at(second.node, 2000) is committed
    assert second.rows(3) == [("a", 3, 1500)]


def test_a_state_that_fell_behind(sc: SparkContext, tmp_path: Path) -> None:
    """Batches that did not make the state make it now, each its own version."""
    first = run_of(sc, tmp_path, "ab", "a")
    first.rows(1)
    second = run_of(sc, tmp_path, "ab", "a", "b")
    second.go_on(1, first.committed())
    assert second.rows(3) == [("b", 2, 1500)]
    assert second.states.newest()[second.node].version == 3


def test_a_stream_that_was_not_restored(sc: SparkContext, tmp_path: Path) -> None:
    """It begins empty."""
    first = run_of(sc, tmp_path, "a")
    assert first.states.newest_ms(first.node) == 0
    assert first.rows(1) == [("a", 1, -1)]


def test_initial_states_are_for_the_first_batch_ever(sc: SparkContext, tmp_path: Path) -> None:
    """A restart does not put them in again."""
    initial = sc.parallelize([("a", 10)])
    first = run_of(sc, tmp_path, "a", "a", initial=initial)
    assert first.rows(1) == [("a", 11, -1)]
    second = run_of(sc, tmp_path, "a", "a", initial=initial)
    second.go_on(1, first.committed())
    assert second.rows(2) == [("a", 12, 500)]


def test_keys_that_are_placed_otherwise_now(sc: SparkContext, tmp_path: Path) -> None:
    """A restart with another number of partitions says what was and what is."""
    first = run_of(sc, tmp_path, "a")
    first.rows(1)
    second = run_of(sc, tmp_path, "a", "a", partitions=3)
    second.go_on(1, first.committed())
    with pytest.raises(RestartError, match=r"count at a\.py:2 was written in 2 partitions by"):
        second.rows(2)


def test_the_watermark_never_goes_back(sc: SparkContext, tmp_path: Path) -> None:
    """A longer delay after a restart does not undo what has passed."""
    first = run_of(sc, tmp_path, "", "", "", "a", delay_ms=1000)
    for second in (1, 2, 3, 4):
        first.rows(second)
    assert first.states.watermarks() == {"count-0": 3000}
    again = run_of(sc, tmp_path, "", "", "", "a", "b", "b", delay_ms=4000)
    again.go_on(4, first.committed())
    assert [again.rows(second) for second in (5, 6)] == [[("b", 1, 3000)], [("b", 2, 3000)]]


def test_without_event_time_there_is_no_watermark(sc: SparkContext, tmp_path: Path) -> None:
    """A commit record says nothing of it."""
    run = run_of(sc, tmp_path, "a", delay_ms=None)
    run.rows(1)
    assert run.states.watermarks() == {}


def test_what_a_batch_that_was_cut_off_has_made_is_not_committed_before_it() -> None:
    """Its version is there, and the record of the batch before names the one of that."""
    partitioner = StablePartitioner(2)
    node = StoredStateDStream(Letters(()), counting, partitioner, None, "count at a.py:2", 500)
    states = StoredStates(StateStore(MemoryBases()), "stream-1", {node: "count-0"}, 0)
    empty = states.empty(node, partitioner)
    committed, cut_off = replace(empty, watermark_ms=500), replace(empty, watermark_ms=1500)
    states.restore(node, 1000, committed)
    states.restore(node, 2000, cut_off)
    assert states.newest_made(1001) == {node: (1000, committed)}
    assert states.newest_made(2000) == states.newest_made() == {node: (2000, cut_off)}
    assert states.newest_made(999) == {}
    assert states.watermarks(1001) == {"count-0": 500}


def test_moved_stores_over_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    """They go when the rows of the first batch after the gap are forgotten, which need them."""
    partitioner = StablePartitioner(2)
    node = StoredStateDStream(Letters(()), counting, partitioner, None, "count at a.py:2", 500)
    states = StoredStates(StateStore(MemoryBases()), "stream-1", {node: "count-0"}, 0)
    deleted: list[StoredVersion] = []
    monkeypatch.setattr(states, "_delete_stores", deleted.append)
    version = states.empty(node, partitioner)
    states.restore(node, 2000, version, is_passing=True)
    states.carry(node, 2000, 5000)
    states.carry(node, 2000, 5000)
    states.carry(node, 3000, 4000)
    assert (states.at(node, 4000), states.at(node, 5000)) == (None, version)
    states.restore(node, 6000, version)
    for upto_ms, count in ((3000, 0), (5000, 0), (6000, 1), (9000, 1)):
        states.forget(node, upto_ms)
        assert len(deleted) == count
