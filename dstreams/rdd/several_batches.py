"""Several batches meet the state in one task: what a restart makes up for.

A state RDD is computed inside the one that is built on it, each in a Python worker of its own, and
the state passes through all of them. Where nobody wants the states between, one task takes every
step, a block at a time.

>>> from dstreams.rdd.cogroup import ColumnStep
>>> from dstreams.rdd.several_batches import replay_batches
>>> from dstreams.rdd.shuffle import shuffle_pairs
>>> class Sum:
...     where = "running sum"
...     needs_keys = False
...     def __call__(self, keys, values, states, into):
...         into.extend(sum(v) + (s or 0) for v, s in zip(values, states))
>>> batch = shuffle_pairs(words, partitioner)
>>> blocks = replay_batches(spark, partitioner, [batch, None, batch], None, [ColumnStep(Sum())] * 3)
>>> dict(pairs_of_blocks(blocks).collect())
{'a': 8, 'b': 4}
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
    """Compute the state after several batches from that before them, in one stage.

    Args:
        spark: the context.
        partitioner: that of the batches and of the state.
        batches: blocks of new values, oldest batch first, None for a batch without.
        state: blocks of the previous state, None when there is none.
        tasks: the step of each batch.

    Returns:
        RDD of blocks of the last state, which claims *partitioner*.
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
