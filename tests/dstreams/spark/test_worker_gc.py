"""Workers: settled once, and kept over many batches."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

import psutil
import pytest
from pyspark import RDD, SparkContext

from dstreams.spark.blocks import Side
from dstreams.spark.cogroup import cogroup_with_state
from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.shuffle import BlockPairsRDD, shuffle_pairs
from dstreams.state.update_function import UpdateFunction
from tests.dstreams.spark.children import run_python
from tests.dstreams.spark.updates import count_all, count_none, count_some


def test_worker_is_settled_once() -> None:
    """The first call freezes all loaded objects; later objects are still collected."""
    frozen = run_python(
        """
        import gc, weakref
        from dstreams.spark.worker_gc import settle_worker

        class Node:
            pass

        at_start = gc.get_freeze_count()  # some, in Python 3.12
        settle_worker()
        first = gc.get_freeze_count()
        node = Node()
        node.itself = node
        gone = weakref.ref(node)
        settle_worker()
        del node
        assert gone() is not None
        gc.collect()
        print(first - at_start > 1000, gc.get_freeze_count() <= first)
        print(gone() is None, gc.isenabled())
        """
    )
    assert frozen.split() == ["True"] * 4


@pytest.mark.deep
@pytest.mark.parametrize("function", [count_all, count_some, count_none])
def test_workers_are_used_again(sc: SparkContext, function: Any) -> None:
    """Ten batches start few processes, also when functions stop early.

    A task starts one more when the worker of the task before it has not come back yet.
    """
    before_test = {child.pid for child in psutil.Process().children(recursive=True)}
    place = StablePartitioner(2)
    pids: set[int] = set()

    def look(_: int, frames: Iterable[bytes]) -> Iterator[int]:
        for _ in frames:
            pass
        yield os.getpid()

    task = UpdateFunction.checked(function, "iterator", "test").task(0, True, place)
    state: RDD[bytes] | None = None
    for number in range(10):
        pairs = sc.parallelize([(f"key {n} {number % 3}", n) for n in range(3000)], 2)
        before = state
        state = cogroup_with_state(shuffle_pairs(pairs, place), before, task).persist()
        pids.update(state.mapPartitionsWithIndex(look).collect())
        if before is not None:
            before.unpersist()
    assert pids
    assert len(pids - before_test) <= 8, pids - before_test
    if function is count_all:
        assert BlockPairsRDD(state, Side.STATE).values().sum() == 30_000
