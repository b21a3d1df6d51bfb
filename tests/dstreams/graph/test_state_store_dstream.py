"""State in the state store: versions are made in order, and put back after a restart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark import RDD, SparkContext

from checkpoint import open_files
from checkpoint.state_store import LmdbBackend, StateStore, StateWriter
from dstreams.graph.generated_rdds import GeneratedRdds
from dstreams.graph.node import Node, OutputOperation, Previous
from dstreams.graph.plan import StreamGraph
from dstreams.graph.state import StateStoreDStream
from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.state_version import NO_EVENT_TIME, StateMetrics, StateVersion
from dstreams.state.state_versions import StateVersions
from tests.support.jobs import count_jobs

Pairs = Iterator[tuple[Any, Any]]
UID = "count-0"


@dataclass(frozen=True, eq=False)
class Letters(Node):
    """A pair for each letter of each second's text; the value is the second."""

    texts: tuple[str, ...]
    operation: str = "letters at a.py:1"
    slide_ms: int = 1000
    failing: list[int] = field(default_factory=list)

    @property
    def parents(self) -> tuple[Node, ...]:
        return ()

    def compute(
        self, time_ms: int, parents: Sequence[RDD[Any] | None], previous: Previous
    ) -> RDD[Any]:
        if time_ms in self.failing:
            raise ValueError(f"no letters at {time_ms}")
        number = time_ms // 1000
        text = self.texts[number - 1] if number <= len(self.texts) else ""
        return previous.spark.parallelize([(letter, number) for letter in text], 2)


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


class Counting:
    """Counts the records of each key, and emits the watermark of the batch."""

    def in_batch(self, time_ms: int, watermark_ms: int, is_checkpoint: bool) -> Count:
        return Count(watermark_ms)


@dataclass
class Run:
    """A graph of one stored stream, and its states."""

    node: StateStoreDStream
    states: StateVersions
    rdds: GeneratedRdds

    @property
    def failing(self) -> list[int]:
        """The times of batches without letters."""
        assert isinstance(self.node.parent, Letters)
        return self.node.parent.failing

    def rows(self, second: int) -> list[Any]:
        self.rdds.retry_failed()
        rdd = self.rdds.at(self.node, second * 1000)
        assert rdd is not None
        return sorted(rdd.collect())

    def committed(self) -> StateVersion:
        """The newest version, as in a commit record."""
        _, version = self.states.newest()[UID]
        return StateVersion.committed("stream-1", version.commit, version.watermark_ms)

    def watermark_ms(self) -> int:
        """The watermark of the batch after the newest one."""
        return self.states.newest()[UID][1].watermark_ms

    def go_on(self, second: int, version: StateVersion) -> None:
        """Continue after the batch that made a version."""
        self.states.restore(UID, second * 1000, version)


def run_of(
    sc: SparkContext,
    directory: Path,
    *texts: str,
    partitions: int = 2,
    delay_ms: int | None = 500,
    initial: RDD[Any] | None = None,
) -> Run:
    node = StateStoreDStream(
        Letters(texts),
        Counting(),
        StablePartitioner(partitions),
        initial,
        "count at a.py:2",
        delay_ms,
    )
    graph = StreamGraph(1000, 1000)
    graph.outputs.append(OutputOperation(node, lambda time_ms, rdd: None, "out at a.py:9"))
    plan = graph.freeze(0, has_checkpoint_directory=True)
    backend = LmdbBackend(open_files(str(directory / "files")), str(directory / "local"))
    states = StateVersions(sc, StateStore(backend), "stream-1")
    return Run(node, states, GeneratedRdds(plan, sc, states=states))


def test_a_restart_goes_on(sc: SparkContext, tmp_path: Path) -> None:
    """The next batch begins with the version in the commit record, including the watermark."""
    texts = ("ab", "a", "ac", "b")
    undisturbed = run_of(sc, tmp_path / "1", *texts)
    expected = [undisturbed.rows(second) for second in (1, 2, 3, 4)]
    assert expected[2] == [("a", 3, 1500), ("c", 1, 1500)]
    first = run_of(sc, tmp_path / "2", *texts)
    assert [first.rows(second) for second in (1, 2)] == expected[:2]
    second = run_of(sc, tmp_path / "2", *texts)
    second.go_on(2, first.committed())
    assert [second.rows(number) for number in (3, 4)] == expected[2:]
    assert second.watermark_ms() == 3500


def test_rows_of_a_restored_batch(sc: SparkContext, tmp_path: Path) -> None:
    """Its rows can be recomputed, and the next batch builds on the committed version."""
    first = run_of(sc, tmp_path, "ab", "a", "a")
    first.rows(1)
    before = first.committed()
    rows = first.rows(2)
    second = run_of(sc, tmp_path, "ab", "a", "a")
    second.go_on(1, before)
    second.go_on(2, first.committed())
    committed = second.states.at(UID, 2000)
    assert second.rows(2) == rows == [("a", 2, 500)]
    assert second.states.at(UID, 2000) is committed
    assert second.rows(3) == [("a", 3, 1500)]


def test_a_state_that_fell_behind(sc: SparkContext, tmp_path: Path) -> None:
    """Batches that did not make the state make it now, each its own version."""
    first = run_of(sc, tmp_path, "ab", "a")
    first.rows(1)
    second = run_of(sc, tmp_path, "ab", "a", "b")
    second.go_on(1, first.committed())
    assert second.rows(3) == [("b", 2, 1500)]
    assert second.states.newest()[UID][1].version == 3


def test_a_stream_that_was_not_restored(sc: SparkContext, tmp_path: Path) -> None:
    """It begins empty."""
    first = run_of(sc, tmp_path, "a")
    assert first.states.newest() == {}
    assert first.rows(1) == [("a", 1, -1)]


def test_initial_states_are_for_the_first_batch_ever(sc: SparkContext, tmp_path: Path) -> None:
    """A restart does not insert them again."""
    initial = sc.parallelize([("a", 10)])
    first = run_of(sc, tmp_path, "a", "a", initial=initial)
    assert first.rows(1) == [("a", 11, -1)]
    second = run_of(sc, tmp_path, "a", "a", initial=initial)
    second.go_on(1, first.committed())
    assert second.rows(2) == [("a", 12, 500)]


def test_the_watermark_never_goes_back(sc: SparkContext, tmp_path: Path) -> None:
    """A longer delay after a restart does not move the watermark back."""
    first = run_of(sc, tmp_path, "", "", "", "a", delay_ms=1000)
    for second in (1, 2, 3, 4):
        first.rows(second)
    assert first.watermark_ms() == 3000
    again = run_of(sc, tmp_path, "", "", "", "a", "b", "b", delay_ms=4000)
    again.go_on(4, first.committed())
    assert [again.rows(second) for second in (5, 6)] == [[("b", 1, 3000)], [("b", 2, 3000)]]


def test_without_event_time_there_is_no_watermark(sc: SparkContext, tmp_path: Path) -> None:
    """The version has none."""
    run = run_of(sc, tmp_path, "a", delay_ms=None)
    run.rows(1)
    assert run.watermark_ms() == NO_EVENT_TIME


def test_saying_what_a_batch_does_runs_no_job(sc: SparkContext, tmp_path: Path) -> None:
    """One job makes the version, and another one reads its rows."""
    run = run_of(sc, tmp_path, "ab", "a")
    run.rows(1)
    before = run.states.at(UID, 1000)
    assert before is not None
    batch = run.rdds.at(run.node.parent, 2000)
    assert count_jobs(sc, lambda: run.node.update(2000, before, batch, run.rdds)) == 0
    assert count_jobs(sc, lambda: run.rdds.make([run.node], 2000)) == 1
    assert count_jobs(sc, lambda: run.rdds.make([run.node], 2000)) == 0
    assert run.rows(2) == [("a", 2, 500)]


def test_what_could_not_be_made(sc: SparkContext, tmp_path: Path) -> None:
    """Reading the rows raises the error that made them fail, and the next batch catches up."""
    run = run_of(sc, tmp_path, "ab", "a", "b")
    run.rows(1)
    for second in (2, 3):
        run.failing.append(2000)
        with pytest.raises(ValueError, match="no letters at 2000"):
            run.rows(second)
        with pytest.raises(ValueError, match="no letters at 2000"):
            run.rdds.at(run.node, second * 1000)
        assert {uid: batch for uid, (batch, _) in run.states.newest().items()} == {UID: 1000}
        run.failing.clear()
    assert run.rows(3) == [("b", 2, 1500)]
    assert run.rows(2) == [("a", 2, 500)]


def test_rows_of_a_restored_batch_that_cannot_be_made(sc: SparkContext, tmp_path: Path) -> None:
    """Later batches build on their versions, and the rows are recomputed on the next read."""
    first = run_of(sc, tmp_path, "ab", "a", "b", "a")
    versions = []
    for second in (1, 2, 3):
        first.rows(second)
        versions.append(first.committed())
    again = run_of(sc, tmp_path, "ab", "a", "b", "a")
    for second, version in enumerate(versions, start=1):
        again.go_on(second, version)
    again.failing.append(2000)
    with pytest.raises(ValueError, match="no letters at 2000"):
        again.rows(2)
    assert again.rows(4) == [("a", 3, 2500)]
    assert again.rdds.times(again.node) == [4000]
    again.failing.clear()
    assert again.rows(2) == [("a", 2, 500)]
