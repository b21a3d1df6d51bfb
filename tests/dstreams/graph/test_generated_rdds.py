"""The RDDs of a stream: each computed once, persisted as planned, evicted in time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest
from pyspark import RDD, SparkContext, StorageLevel

from dstreams.errors import InvalidStreamError
from dstreams.graph.generated_rdds import GeneratedRdds
from dstreams.graph.node import InputDStream, Node, OutputOperation, Previous
from dstreams.graph.plan import StreamGraph
from dstreams.graph.windowed import ReducedWindowedDStream, WindowedDStream, WindowTimes
from dstreams.sources.queue import QueueSource


@dataclass(frozen=True, eq=False)
class Made(Node):
    """A stream made by a function, which records the times for which it was computed."""

    make: Callable[[int, Previous], RDD[Any] | None]
    asked: list[int] = field(default_factory=list)
    operation: str = "made at a.py:1"
    sources: tuple[Node, ...] = ()
    slide_ms: int = 1000

    @property
    def parents(self) -> tuple[Node, ...]:
        return self.sources

    def compute(
        self, time_ms: int, parents: Sequence[RDD[Any] | None], previous: Previous
    ) -> RDD[Any] | None:
        self.asked.append(time_ms)
        return self.make(time_ms, previous)


class Chained(Made):
    """A stream that depends on its own RDD of the previous batch."""

    is_stateful: ClassVar[bool] = True


def rdds_over(
    sc: SparkContext,
    *nodes: Node,
    level: StorageLevel | None = None,
    remember_ms: int = 1000,
    unpersist: bool = True,
) -> GeneratedRdds:
    graph = StreamGraph(1000, remember_ms)
    for node in nodes:
        graph.outputs.append(OutputOperation(node, lambda time_ms, rdd: None, "out at a.py:9"))
        graph.options_of(node).storage_level = level
    return GeneratedRdds(graph.freeze(0, has_checkpoint_directory=True), sc, unpersist=unpersist)


def rdds_of(sc: SparkContext) -> Made:
    return Made(lambda time_ms, rdds: sc.parallelize([time_ms], 1))


def test_an_rdd_is_made_once(sc: SparkContext) -> None:
    """An RDD is computed once."""
    node = rdds_of(sc)
    rdds = rdds_over(sc, node)
    assert rdds.spark is sc
    assert rdds.at(node, 1000) is rdds.at(node, 1000)
    assert node.asked == [1000]


@pytest.mark.parametrize("time_ms", [-1000, 0, 500, 1500])
def test_there_is_no_rdd_when_the_stream_has_no_turn(sc: SparkContext, time_ms: int) -> None:
    """At zero time, before it, and between batches the node is not called."""
    node = rdds_of(sc)
    assert rdds_over(sc, node).at(node, time_ms) is None
    assert node.asked == []


def test_no_rdd_is_remembered(sc: SparkContext) -> None:
    """A node is computed once per batch, also if it has no RDD."""
    node = Made(lambda time_ms, rdds: None)
    rdds = rdds_over(sc, node)
    assert rdds.at(node, 1000) is rdds.at(node, 1000) is None
    assert node.asked == [1000]


def test_no_rdd_is_remembered_for_streams_with_a_past(sc: SparkContext) -> None:
    """Otherwise all of their past would be computed again in every batch."""
    node = Chained(lambda time_ms, rdds: None)
    rdds = rdds_over(sc, node)
    for time_ms in range(1000, 5001, 1000):
        assert rdds.at(node, time_ms) is None
        rdds.evict(time_ms)
    assert node.asked == [1000, 2000, 3000, 4000, 5000]


def test_a_missing_past_is_made_up_for_in_order(sc: SparkContext) -> None:
    """Thousands of batches that were never computed are made oldest first, without recursion."""
    node = Chained(lambda time_ms, rdds: None)
    rdds = rdds_over(sc, node)
    assert rdds.at(node, 3_000_000) is None
    assert node.asked == list(range(1000, 3_000_001, 1000))


def test_a_past_that_failed_is_made_up_for(sc: SparkContext) -> None:
    """A failure is not kept: the next batch tries that time again, and then its own."""
    failing = [True]

    def make(time_ms: int, rdds: Previous) -> RDD[Any]:
        if time_ms == 2000 and failing[0]:
            raise InvalidStreamError("not yet")
        return sc.parallelize([time_ms], 1)

    node = Chained(make)
    rdds = rdds_over(sc, node)
    rdds.at(node, 1000)
    for _ in range(2):
        with pytest.raises(InvalidStreamError, match="not yet"):
            rdds.at(node, 2000)
        rdds.retry_failed()
    failing[0] = False
    rdds.at(node, 3000)
    assert node.asked == [1000, 2000, 2000, 2000, 3000]


def test_the_operation_that_failed(sc: SparkContext) -> None:
    """It is the node whose compute raised, not the node that needed its RDD."""

    def fail(time_ms: int, rdds: Previous) -> RDD[Any]:
        raise LookupError("no table")

    parent = Made(fail, operation="transform at a.py:1")
    child = Made(lambda time_ms, rdds: rdds.get(parent, time_ms), sources=(parent,))
    rdds = rdds_over(sc, child)
    with pytest.raises(LookupError) as raised:
        rdds.at(child, 1000)
    failed = rdds.failure(child, 1000)
    assert failed is not None
    assert (failed.error, failed.node) == (raised.value, parent)
    assert child.asked == []
    rdds.retry_failed()
    assert rdds.failure(child, 1000) is None


def test_what_was_fed_is_the_input(sc: SparkContext) -> None:
    """An RDD or None, which is kept; at other times inputs have no RDD."""
    node = InputDStream(0, QueueSource([]), 1000, "queueStream at a.py:1")
    rdds = rdds_over(sc, node)
    rdd = sc.parallelize([1])
    rdds.put(node, 1000, rdd)
    rdds.put(node, 2000, None)
    assert rdds.at(node, 1000) is rdd
    assert rdds.at(node, 2000) is None
    assert rdds.at(node, 3000) is None
    assert rdds.times(node) == [1000, 2000]


def test_feeding_a_stream_that_no_output_uses_is_ignored(sc: SparkContext) -> None:
    """It is read, because its source is running, and dropped."""
    unused = InputDStream(0, QueueSource([]), 1000, "queueStream at a.py:1")
    rdds = rdds_over(sc, rdds_of(sc))
    rdds.put(unused, 1000, sc.parallelize([1]))
    rdds.evict(1000)


def test_forgetting_keeps_what_is_planned(sc: SparkContext) -> None:
    """Everything up to the batch time minus the remember duration is dropped."""
    node = rdds_of(sc)
    rdds = rdds_over(sc, node, remember_ms=3000)
    for time_ms in range(1000, 6001, 1000):
        rdds.at(node, time_ms)
    rdds.evict(5000)
    assert rdds.times(node) == [3000, 4000, 5000, 6000]


def test_what_is_remembered_is_returned_and_nothing_made(sc: SparkContext) -> None:
    """Of a half-open range, oldest first, without times that have no RDD."""
    node = InputDStream(0, QueueSource([]), 1000, "queueStream at a.py:1")
    rdds = rdds_over(sc, node)
    for time_ms in (3000, 1000, 4000):
        rdds.put(node, time_ms, sc.parallelize([time_ms], 1))
    rdds.put(node, 2000, None)
    found = [rdd.first() for rdd in rdds.between(node, 0, 3000)]
    assert found == [1000, 3000]
    assert [rdd.first() for rdd in rdds.between(node, 1000, 9000)] == [3000, 4000]


@pytest.mark.parametrize("unpersist", [True, False])
def test_rdds_are_persisted_while_they_are_remembered(sc: SparkContext, unpersist: bool) -> None:
    """At the planned level; later not, unless that is left to Spark."""
    node = rdds_of(sc)
    rdds = rdds_over(sc, node, level=StorageLevel.DISK_ONLY, unpersist=unpersist)
    rdd = rdds.at(node, 1000)
    assert rdd is not None
    assert rdd.getStorageLevel() == StorageLevel.DISK_ONLY
    rdds.evict(2000)
    assert rdd.is_cached is not unpersist
    rdd.unpersist()


def test_what_a_user_persisted_is_left_alone(sc: SparkContext) -> None:
    """It stays persisted, at its level."""
    mine = sc.parallelize([1]).persist(StorageLevel.DISK_ONLY)
    node = Made(lambda time_ms, rdds: mine)
    rdds = rdds_over(sc, node, level=StorageLevel.MEMORY_ONLY)
    assert rdds.at(node, 1000) is mine
    rdds.evict(9000)
    assert mine.getStorageLevel() == StorageLevel.DISK_ONLY
    mine.unpersist()


def test_replacing_an_rdd(sc: SparkContext) -> None:
    """The new one is persisted as planned, the old one is unpersisted."""
    node = rdds_of(sc)
    rdds = rdds_over(sc, node, level=StorageLevel.MEMORY_ONLY)
    old = rdds.at(node, 1000)
    assert old is not None
    new = sc.parallelize([1000], 1)
    rdds.replace(node, 1000, new)
    assert rdds.at(node, 1000) is new
    assert (old.is_cached, new.is_cached) == (False, True)
    rdds.evict(9000)
    assert not new.is_cached


def test_releasing_frees_blocks(sc: SparkContext) -> None:
    """Executors keep no block of a stream that has stopped, unless unpersisting is disabled."""
    node = rdds_of(sc)
    rdds = rdds_over(sc, node, level=StorageLevel.MEMORY_ONLY)
    rdd = rdds.at(node, 1000)
    assert rdd is not None
    rdds.release()
    assert not rdd.is_cached


def test_clearing_says_nothing_to_spark(sc: SparkContext) -> None:
    """Spark may have stopped: RDDs are dropped without a call."""
    node = rdds_of(sc)
    rdds = rdds_over(sc, node, level=StorageLevel.MEMORY_ONLY)
    rdd = rdds.at(node, 1000)
    assert rdd is not None
    rdds.clear()
    assert rdds.times(node) == []
    assert rdd.is_cached
    rdd.unpersist()


def test_times_without_a_batch_have_no_rdd(sc: SparkContext) -> None:
    """No function is called for skipped batches; the state after them must be put."""
    node, chained = rdds_of(sc), Chained(lambda time_ms, rdds: sc.parallelize([time_ms], 1))
    rdds = rdds_over(sc, node, chained)
    rdds.at(chained, 2000)
    rdds.mark_gap(2000, 5000)
    rdds.mark_gap(2000, 5000)
    for time_ms in (3000, 4000):
        assert rdds.at(node, time_ms) is rdds.at(chained, time_ms) is None
    with pytest.raises(LookupError, match="at 5000 ms: its state before"):
        rdds.at(chained, 5000)
    rdds.retry_failed()
    assert not rdds.is_current(5000)
    state = sc.parallelize([2000], 1)
    rdds.put(chained, 4000, state)
    assert rdds.before(chained, 5000) is state
    assert rdds.at(chained, 4000) is None
    assert rdds.between(chained, 2000, 4000) == []
    assert rdds.at(chained, 5000) is not None
    assert (node.asked, chained.asked) == ([], [1000, 2000, 5000])


@pytest.mark.parametrize(("after_ms", "known_ms"), [(4000, []), (5000, [6000])])
def test_batches_from_before_a_gap_are_in_one_more_rdd(
    sc: SparkContext, after_ms: int, known_ms: list[int]
) -> None:
    """In the next RDD of a stream with a longer slide that had no RDD for them yet."""
    node = Made(lambda time_ms, rdds: sc.parallelize([time_ms], 1), slide_ms=2000)
    rdds = rdds_over(sc, node)
    rdds.mark_gap(after_ms, 10_000)
    found = [time_ms for time_ms in (6000, 8000) if rdds.at(node, time_ms) is not None]
    assert found == known_ms


def test_what_windows_read_is_computed_first() -> None:
    """RDDs are computed oldest first, for any order of the windows."""
    node = Made(lambda time_ms, rdds: cast(Any, SimpleNamespace(is_cached=True)))
    short = WindowedDStream(node, WindowTimes(2000, 1000, 1000), "window at a.py:2")
    long = WindowedDStream(node, WindowTimes(4000, 1000, 1000), "window at a.py:3")
    rdds = rdds_over(cast(Any, None), short, long)
    rdds.make([short, long], 9000)
    assert node.asked == [6000, 7000, 8000, 9000]
    rdds.make([short, long], 10_000)
    assert node.asked == [6000, 7000, 8000, 9000, 10_000]


def test_what_windows_read_of_an_earlier_run_is_computed_first() -> None:
    """Before anything of the batch; nothing of this run, and nothing without an earlier run."""
    node = Made(lambda time_ms, rdds: cast(Any, SimpleNamespace(is_cached=True)))
    window = WindowedDStream(node, WindowTimes(4000, 1000, 1000), "window at a.py:3")
    rdds = rdds_over(cast(Any, None), window)
    rdds.make_resumed(9000)
    assert node.asked == []
    rdds.mark_resumed(8000)
    rdds.make_resumed(9000)
    assert node.asked == [6000, 7000, 8000]
    rdds.make_resumed(10_000)
    assert node.asked == [6000, 7000, 8000]


def test_a_failure_before_the_batch_fails_the_window() -> None:
    """The window has the error of the oldest RDD that it reads, which is tried once per batch."""

    def fail(time_ms: int, rdds: Previous) -> RDD[Any] | None:
        raise ValueError(time_ms)

    node = Made(fail)
    window = WindowedDStream(node, WindowTimes(2000, 1000, 1000), "window at a.py:2")
    rdds = rdds_over(cast(Any, None), window)
    for _ in range(2):
        with pytest.raises(ValueError, match="8000"):
            rdds.at(window, 9000)
    assert node.asked == [8000, 9000]


def test_a_reduced_window_asks_for_what_left_and_entered() -> None:
    """Windows read earlier batches only, not the current one."""
    times = WindowTimes(3000, 2000, 1000)
    node = ReducedWindowedDStream(cast(Any, None), cast(Any, None), times, "at a.py:2")
    assert list(node.earlier_times(7000)) == [3000, 4000, 6000]
