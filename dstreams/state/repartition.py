"""Moves stored state into stores with another number of partitions, when a stream restarts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from checkpoint.state_store import StateWriter
from dstreams.spark.blocks import Side
from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.placed_pairs import state_inputs
from dstreams.spark.shuffle import shuffle_pairs
from dstreams.spark.state_metrics import StateMetrics
from dstreams.spark.state_store_rdd import Pairs, StateStoreRDD
from dstreams.spark.state_version import StateVersion
from dstreams.state.state_versions import StateVersions
from dstreams.state.store_maintenance import moved_store


def repartition(
    states: StateVersions,
    uid: str,
    operation: str,
    partitioner: StablePartitioner,
    epoch: int,
    time_ms: int,
) -> StateVersion | None:
    """Write the version of a batch into new stores, in one job; None if there is no version.

    The old stores stay unchanged. The new ones, which have *epoch* in their names, count once a
    commit record names them.

    Raises:
        Py4JJavaError: a task failed.
    """
    version = states.at(uid, time_ms)
    entries = states.entries(uid, operation, time_ms)
    if version is None or entries is None:
        return version
    empty = states.empty(uid, partitioner, moved_store(epoch, time_ms))
    blocks = shuffle_pairs(entries.map(_keyed), partitioner, Side.STATE, operation)
    rdd = StateStoreRDD(state_inputs(blocks), states.store, empty, _Load())
    try:
        written = rdd.force()
    finally:
        rdd.unpersist()
    return replace(
        written,
        metrics=None,
        watermark_ms=version.watermark_ms,
        event_time_max_ms=version.event_time_max_ms,
    )


def _keyed(entry: tuple[Any, Any, int | None]) -> tuple[Any, tuple[Any, int | None]]:
    key, row, timeout_ms = entry
    return key, (row, timeout_ms)


@dataclass(frozen=True)
class _Load:
    """Put rows, with their timeouts, into an empty store."""

    def __call__(
        self, store: StateWriter, initial: Pairs, records: Pairs, metrics: StateMetrics
    ) -> Iterable[Any]:
        for key, (row, timeout_ms) in initial:
            store.put(key, row, timeout_ms)
        return []
