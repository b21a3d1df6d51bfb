"""The window node: which RDDs it reads, and how they are kept."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pyspark import RDD, SparkContext, StorageLevel

from dstreams.graph.generated_rdds import GeneratedRdds
from dstreams.graph.node import Node, OutputOperation
from dstreams.graph.plan import StreamGraph
from dstreams.graph.transformed import TransformedDStream
from dstreams.graph.windowed import WindowedDStream, WindowTimes
from tests.dstreams.graph.given import PARENT, Given, compute
from tests.support.jobs import count_jobs


def window_of(parent: Node, window_ms: int, slide_ms: int) -> WindowedDStream:
    times = WindowTimes.of(window_ms / 1000, slide_ms / 1000, parent.slide_ms, "window at a.py:2")
    return WindowedDStream(parent, times, "window at a.py:2")


def numbers(sc: SparkContext, *times_ms: int) -> Given:
    """Return RDDs that contain their own second, one for each of the times."""
    return Given(sc, {(PARENT, ms): sc.parallelize([ms // 1000], 1) for ms in times_ms})


def test_what_a_window_is() -> None:
    """One parent, a slide of its own, and a parent that is remembered for a window longer."""
    node = window_of(PARENT, 4000, 2000)
    assert node.parents == (PARENT,)
    assert node.slide_ms == 2000
    assert node.parents_remember_ms(3000) == 7000
    assert not node.must_checkpoint
    assert not node.is_stateful


@pytest.mark.parametrize(
    ("there", "time_ms", "wanted"),
    [
        ([1000, 2000, 3000, 4000], 4000, [2, 3, 4]),
        ([1000, 2000, 4000], 4000, [2, 4]),
        ([4000], 4000, [4]),
        ([1000], 1000, [1]),
        ([1000], 4000, []),
        ([], 4000, []),
    ],
)
def test_the_union_of_what_there_is(
    sc: SparkContext, there: list[int], time_ms: int, wanted: list[int]
) -> None:
    """Missing RDDs are skipped; without any, the result is an empty RDD."""
    given = numbers(sc, *there)
    made = compute(window_of(PARENT, 3000, 1000), time_ms, given)
    assert made is not None
    assert made.collect() == wanted
    assert given.asked == [time_ms - 2000, time_ms - 1000]


def test_no_rdd_for_none(sc: SparkContext) -> None:
    """With empty_for_none=False, a window without an RDD of the parent has none either."""
    node = replace(window_of(PARENT, 3000, 1000), empty_for_none=False)
    assert compute(node, 4000, numbers(sc, 1000)) is None
    made = compute(node, 4000, numbers(sc, 1000, 2000))
    assert made is not None
    assert made.collect() == [2]


def test_making_a_window_runs_no_job(sc: SparkContext) -> None:
    """No job runs before an action."""
    given = numbers(sc, *range(1000, 11_000, 1000))
    node = window_of(PARENT, 10_000, 1000)
    assert count_jobs(sc, lambda: compute(node, 10_000, given)) == 0


def rdds_over(sc: SparkContext, *streams: Node, level: StorageLevel | None = None) -> GeneratedRdds:
    """RDDs of a graph in which *streams* have an output, each with a level if given."""
    graph = StreamGraph(1000)
    for node in streams:
        operation = OutputOperation(node, lambda time_ms, rdd: None, "pprint at a.py:4")
        graph.outputs.append(operation)
        if level is not None:
            graph.options_of(node).storage_level = level
    return GeneratedRdds(graph.freeze(0, has_checkpoint_directory=True), sc)


def run(rdds: GeneratedRdds, sc: SparkContext, node: Node, batches: int) -> list[Any]:
    """Run batches of their own number, and collect *node* when it fires."""
    found = []
    for time_ms in range(1000, 1000 * batches + 1, 1000):
        rdds.put(PARENT, time_ms, sc.parallelize([time_ms // 1000], 1))
        made = rdds.at(node, time_ms)
        found.append(None if made is None else made.collect())
        rdds.evict(time_ms)
    return found


@pytest.mark.deep
@pytest.mark.parametrize("slide_ms", [1000, 2000, 3000, 5000])
def test_the_parent_makes_each_rdd_once(sc: SparkContext, slide_ms: int) -> None:
    """Also those of batches in which the window did not fire, from remembered input."""
    asked: list[int] = []

    def noted(time_ms: int, rdds: tuple[RDD[Any], ...]) -> RDD[Any]:
        asked.append(time_ms)
        return rdds[0].map(str)

    parent = TransformedDStream((PARENT,), noted, "transform at a.py:2")
    node = window_of(parent, 4000, slide_ms)
    found = run(rdds_over(sc, node), sc, node, 15)
    wanted = [
        [str(n) for n in range(max(1, end - 3), end + 1)] if end * 1000 % slide_ms == 0 else None
        for end in range(1, 16)
    ]
    assert found == wanted
    in_some_window = {n for batch in wanted for n in batch or []}
    assert asked == [1000 * n for n in range(1, 16) if str(n) in in_some_window]


def test_what_windows_read_again_is_not_computed_again(sc: SparkContext) -> None:
    """Each record of the parent is computed by one task for all windows that contain it."""
    computed = sc.accumulator(0)

    def counted(value: Any) -> Any:
        computed.add(1)
        return value

    parent = TransformedDStream((PARENT,), lambda _, rdds: rdds[0].map(counted), "map at a.py:2")
    node = window_of(parent, 5000, 1000)
    run(rdds_over(sc, node), sc, node, 8)
    assert computed.value == 8


def persisted(sc: SparkContext) -> set[int]:
    return {int(number) for number in sc._jsc.getPersistentRDDs().keySet()}


def test_forgotten_rdds_are_unpersisted(sc: SparkContext) -> None:
    """The batches of a window and one before it are persisted at any time, and no others."""
    before = persisted(sc)
    parent = TransformedDStream((PARENT,), lambda _, rdds: rdds[0].map(str), "map at a.py:2")
    node = window_of(parent, 3000, 1000)
    run(rdds_over(sc, node), sc, node, 9)
    assert len(persisted(sc) - before) == 4


def test_an_rdd_that_is_handed_on_stays_persisted(sc: SparkContext) -> None:
    """A stream that drops its parent's own RDD does not unpersist it."""
    parent = TransformedDStream((PARENT,), lambda _, rdds: rdds[0].map(str), "map at a.py:2")
    same = TransformedDStream((parent,), lambda _, rdds: rdds[0], "transform at a.py:3")
    window = window_of(parent, 3000, 1000)
    rdds = rdds_over(sc, same, window, level=StorageLevel.MEMORY_ONLY)
    for time_ms in (1000, 2000):
        rdds.put(PARENT, time_ms, sc.parallelize([time_ms], 1))
        assert rdds.at(same, time_ms) is rdds.at(parent, time_ms)
        assert rdds.at(window, time_ms) is not None
        rdds.evict(time_ms)
    first = rdds.at(parent, 1000)
    assert first is not None
    assert rdds.times(same) == [2000]
    assert first.is_cached


def test_a_level_for_a_window_is_one_for_its_parent() -> None:
    """Through windows of windows; the choice for the parent itself comes first."""
    graph = StreamGraph(1000)
    plain = TransformedDStream((PARENT,), lambda _, rdds: rdds[0], "map at a.py:2")
    other = TransformedDStream((PARENT,), lambda _, rdds: rdds[0], "map at a.py:2")
    inner = window_of(plain, 2000, 1000)
    outer = window_of(inner, 4000, 2000)
    second = window_of(other, 2000, 1000)
    for node in (outer, second):
        operation = OutputOperation(node, lambda time_ms, rdd: None, "pprint at a.py:4")
        graph.outputs.append(operation)
    graph.options_of(outer).storage_level = StorageLevel.DISK_ONLY
    graph.options_of(second).storage_level = StorageLevel.DISK_ONLY
    graph.options_of(other).storage_level = StorageLevel.MEMORY_AND_DISK
    plan = graph.freeze(0, has_checkpoint_directory=False)
    levels = {node: found.storage_level for node, found in plan.nodes.items()}
    assert outer.holder is inner.holder is plain
    assert levels[plain] == StorageLevel.DISK_ONLY
    assert levels[other] == StorageLevel.MEMORY_AND_DISK
    assert [levels[node] for node in (PARENT, inner, outer, second)] == [None] * 4


def test_storing_nothing_is_a_choice() -> None:
    """Then each window recomputes its batches."""
    graph = StreamGraph(1000)
    node = window_of(PARENT, 2000, 1000)
    operation = OutputOperation(node, lambda time_ms, rdd: None, "pprint at a.py:4")
    graph.outputs.append(operation)
    graph.options_of(PARENT).storage_level = StorageLevel(False, False, False, False)
    plan = graph.freeze(0, has_checkpoint_directory=False)
    assert plan.nodes[PARENT].storage_level is None
