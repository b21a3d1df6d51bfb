"""Several batches meet the state in one task, where a restart makes up for them.

A state RDD is computed inside the one that is built on it, each in a Python worker of its own. If
nobody wants the states between, one task takes every step, a block at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain

from pyspark import RDD, SparkContext
from pyspark.rdd import PipelinedRDD

from dstreams.rdd import jvm
from dstreams.rdd.cogroup import StateTask
from dstreams.rdd.empty_partitions import empty_partitions
from dstreams.rdd.partitioner import StablePartitioner
from dstreams.rdd.worker_gc import settle_worker

_END = b""
"""Stands after the blocks of a batch; no block is empty."""


def replay_batches(
    spark: SparkContext,
    partitioner: StablePartitioner,
    batches: Sequence[RDD[bytes] | None],
    state: RDD[bytes] | None,
    tasks: Sequence[StateTask],
) -> RDD[bytes]:
    """Return the blocks of the state after several batches, oldest first, in one stage.

    A batch without new values is None, and so is a state before the first batch.
    """
    inputs: list[RDD[bytes]] = []
    for batch in batches:
        if batch is not None:
            inputs += [batch, empty_partitions(spark, partitioner)]
    if state is not None:
        inputs.append(state)
    has_blocks = tuple(batch is not None for batch in batches)
    steps = _Steps(tuple(tasks), has_blocks)
    return jvm.as_frames(PipelinedRDD(jvm.unite_frames(*inputs), steps, True), partitioner)


class _Steps:
    """Task: blocks of several batches, each with an end, and of the state -> the last state."""

    def __init__(self, tasks: tuple[StateTask, ...], has_blocks: tuple[bool, ...]) -> None:
        self.tasks = tasks
        self.has_blocks = has_blocks

    def __call__(self, split: int, frames: Iterable[bytes]) -> Iterator[bytes]:
        settle_worker()
        remaining = iter(frames)
        take = partial(next, remaining)
        batches = [list(iter(take, _END)) if given else [] for given in self.has_blocks]
        state: Iterator[bytes] = remaining
        for task, batch in zip(self.tasks, batches, strict=True):
            state = task(split, chain(batch, state))
        yield from state
