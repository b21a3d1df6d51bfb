"""The state node by itself: each branch, its partitioner, and what is shuffled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from pyspark import RDD, SparkContext

from dstreams.graph.state import StateDStream
from dstreams.spark.partitioner import StablePartitioner
from dstreams.state.update_function import UpdateFunction
from tests.dstreams.graph.given import PARENT, Given, compute
from tests.dstreams.spark.lineage import workers_of_a_task
from tests.support.jobs import count_jobs


def add_or_100(values: list[int], state: int | None) -> int:
    return (state or 0) + sum(values) + (0 if values else 100)


def add_or_100_each(entries: Iterator[tuple[str, list[int], int | None]]) -> Iterator[Any]:
    return ((key, add_or_100(values, state)) for key, values, state in entries)


def of(spark: SparkContext, pairs: list[tuple[str, int]]) -> RDD[Any]:
    return spark.parallelize(pairs)


PARTITIONER = StablePartitioner(2)


def state_of(initial: RDD[Any] | None = None, *, preserves: bool = True) -> StateDStream:
    operation = "updateStateByKey at a.py:2"
    update = UpdateFunction.checked(add_or_100, "values", operation)
    return StateDStream(PARENT, update, PARTITIONER, preserves, initial, operation)


def shuffles(rdd: RDD[Any]) -> int:
    lineage = rdd.toDebugString()
    assert lineage is not None
    return lineage.count(b"ShuffledRDD")


@pytest.mark.deep
@pytest.mark.parametrize("preserves", [True, False])
@pytest.mark.parametrize(
    ("previous", "batch", "initial", "wanted"),
    [
        pytest.param(
            [("a", 1), ("b", 1)], [("a", 1)], None, {"a": 2, "b": 101}, id="state and batch"
        ),
        pytest.param(
            [("a", 1)], [("b", 1)], [("z", 5)], {"a": 101, "b": 1}, id="initial state is unused"
        ),
        pytest.param([("a", 1), ("b", 1)], None, None, {"a": 101, "b": 101}, id="no batch"),
        pytest.param([("a", 1)], None, [("z", 5)], {"a": 101}, id="no batch, initial state"),
        pytest.param([("a", 1)], [], None, {"a": 101}, id="empty batch"),
        pytest.param(None, [("a", 1), ("a", 2)], None, {"a": 3}, id="no state"),
        pytest.param(None, [], None, {}, id="no state, empty batch"),
        pytest.param(
            None, [("a", 1)], [("a", 5), ("z", 5)], {"a": 6, "z": 105}, id="initial state"
        ),
        pytest.param(None, [], [("z", 5)], {"z": 105}, id="initial state, empty batch"),
        pytest.param(None, None, None, None, id="nothing"),
        pytest.param(None, None, [("z", 5)], None, id="nothing but an initial state"),
    ],
)
def test_branches(
    sc: SparkContext, previous: Any, batch: Any, initial: Any, wanted: Any, preserves: bool
) -> None:
    """With and without a batch, a previous state, and an initial state in its place."""
    node = state_of(None if initial is None else sc.parallelize(initial), preserves=preserves)
    given = Given(sc)
    if previous is not None:
        given.rdds[node, 1000] = sc.parallelize(previous)
    if batch is not None:
        given.rdds[PARENT, 2000] = sc.parallelize(batch)
    found = compute(node, 2000, given)
    if wanted is None:
        assert found is None
        return
    assert found is not None
    assert sorted(found.collect()) == sorted(wanted.items())
    assert found.getNumPartitions() == 2
    assert found.partitioner == (PARTITIONER if preserves else None)


def test_making_the_rdd_runs_no_job(sc: SparkContext) -> None:
    """No job runs before an action."""
    node = state_of(sc.parallelize([("a", 1)]))
    given = Given(sc, {(PARENT, 1000): sc.parallelize([("a", 1)])})
    assert count_jobs(sc, lambda: compute(node, 1000, given)) == 0


def test_only_new_records_are_shuffled(sc: SparkContext) -> None:
    """A state that claims its partitioner stays in place; without the claim it is shuffled."""
    for preserves, wanted in ((True, 1), (False, 2)):
        node = state_of(preserves=preserves)
        given = Given(sc, {(PARENT, 1000): sc.parallelize([("a", 1)])})
        first = compute(node, 1000, given)
        assert first is not None
        assert shuffles(first) == 1
        given.rdds = {(node, 1000): first}
        alone = compute(node, 2000, given)
        assert alone is not None
        assert shuffles(alone) == wanted
        given.rdds[PARENT, 2000] = sc.parallelize([("a", 1)])
        both = compute(node, 2000, given)
        assert both is not None
        assert shuffles(both) == wanted + 1


def test_a_batch_in_its_place_is_not_shuffled(sc: SparkContext) -> None:
    """A parent with the same partitioning, such as another state stream, stays in place."""
    parent = state_of()
    given = Given(sc, {(PARENT, 1000): sc.parallelize([("a", 1)])})
    first = compute(parent, 1000, given)
    assert first is not None
    update = UpdateFunction.checked(add_or_100, "values", "updateStateByKey at a.py:3")
    node = StateDStream(parent, update, StablePartitioner(2), True, None, "second at a.py:3")
    given.rdds = {(parent, 1000): first}
    second = compute(node, 1000, given)
    assert second is not None
    assert shuffles(second) == shuffles(first)
    assert second.collect() == [("a", 1)]


@pytest.mark.deep
@pytest.mark.parametrize("form", ["values", "iterator"])
@pytest.mark.parametrize(
    ("previous", "batches", "initial"),
    [
        pytest.param(
            [("a", 1), ("b", 1)],
            [[("a", 1)], None, [("c", 2), ("a", 3)]],
            None,
            id="state and batch",
        ),
        pytest.param([("a", 1)], [None, None, None], None, id="no batch"),
        pytest.param([("a", 1)], [[], [("b", 1)], []], [("z", 5)], id="empty batches"),
        pytest.param(None, [None, [("a", 1)], None], None, id="from the beginning"),
        pytest.param(None, [None, [("a", 1)], [("z", 1)]], [("z", 5)], id="initial"),
        pytest.param(None, [None, None], [("z", 5)], id="nothing yet"),
    ],
)
def test_a_replay_is_the_batches_one_after_the_other(
    sc: SparkContext, previous: Any, batches: list[Any], initial: Any, form: str
) -> None:
    """Several batches in one stage leave the same state as one by one."""
    node = state_of(None if initial is None else sc.parallelize(initial))
    if form == "iterator":
        update = UpdateFunction.checked(add_or_100_each, "iterator", node.operation)
        node = replace(node, update=update)
    given = Given(sc)
    if previous is not None:
        given.rdds[node, 1000] = compute(node, 1000, Given(sc, {(PARENT, 1000): of(sc, previous)}))
    times = [1000 * number for number in range(2, 2 + len(batches))]
    given.rdds |= {
        (PARENT, time_ms): of(sc, batch)
        for time_ms, batch in zip(times, batches, strict=True)
        if batch is not None
    }
    given_batches = {time_ms: given.get(PARENT, time_ms) for time_ms in times}
    found = node.replay(given.get(node, 1000), given_batches, sc)
    for time_ms in times:
        made = compute(node, time_ms, given)
        if made is not None:
            given.rdds[node, time_ms] = made
    wanted = given.get(node, times[-1])
    if wanted is None:
        assert found is None
        return
    assert found is not None
    assert found.partitioner == wanted.partitioner == PARTITIONER
    assert sorted(found.collect()) == sorted(wanted.collect()) != []


def test_a_replay_takes_one_worker_a_task(sc: SparkContext) -> None:
    """For any number of batches, the state passes through one worker."""
    node = state_of()
    first = compute(node, 1000, Given(sc, {(PARENT, 1000): of(sc, [])}))
    assert first is not None
    replayed = node.replay(first, {time_ms: of(sc, []) for time_ms in range(2000, 8000, 1000)}, sc)
    assert replayed is not None
    assert workers_of_a_task(replayed) == workers_of_a_task(first) + 1
