"""State in the state store in another number of partitions, or placed by another function.

A restart moves it into new stores (:func:`~dstreams.state.store_maintenance.moved_store`), which
count when a commit record names them. No record names stores that only the rows of earlier batches
need; the run that made them deletes them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from checkpoint.state_store import StateWriter
from dstreams.graph.state_store_dstream import StateStoreDStream
from dstreams.spark.blocks import Side
from dstreams.spark.placed_pairs import state_inputs
from dstreams.spark.shuffle import shuffle_pairs
from dstreams.spark.state_metrics import StateMetrics
from dstreams.spark.state_store_rdd import Pairs, StateStoreRDD
from dstreams.spark.state_version import StateVersion
from dstreams.state.state_versions import StateVersions
from dstreams.state.store_maintenance import moved_store


def repartitioned(
    states: StateVersions,
    uid: str,
    node: StateStoreDStream,
    version: StateVersion,
    epoch: int,
    time_ms: int,
) -> StateVersion:
    """Write the version that a batch made of a state into new stores, in one job.

    The old stores stay as they are. The new ones count when a commit record names them; *epoch*,
    that of this driver, is in their names.

    Raises:
        Py4JJavaError: a task failed, in reading or in writing.
    """
    entries = states.entries(uid, node.operation, time_ms)
    if entries is None:
        return version
    empty = states.empty(uid, node.partitioner, moved_store(epoch, time_ms))
    blocks = shuffle_pairs(entries.map(_keyed), node.partitioner, Side.STATE, node.operation)
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
