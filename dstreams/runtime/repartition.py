"""Stored state in another number of partitions, or placed by another function."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from checkpoint.state_store import StateWriter
from dstreams.graph.history import History
from dstreams.graph.stored import StoredStateDStream
from dstreams.rdd.blocks import Side
from dstreams.rdd.shuffle import shuffle_pairs
from dstreams.rdd.state_metrics import StateMetrics
from dstreams.rdd.state_store_rdd import Pairs, StateStoreRDD
from dstreams.rdd.stored_version import StoredVersion


def repartitioned(
    history: History, node: StoredStateDStream, version: StoredVersion, epoch: int, time_ms: int
) -> StoredVersion:
    """Write a version of a stored state into new stores, in one job.

    The old ones stay as they are: what is written counts when a commit record names it.

    Args:
        history: where *version* is that of the batch at *time_ms*.
        node: the stream.
        version: the version.
        epoch: epoch of this driver; it names the new stores.
        time_ms: the batch that made it.

    Raises:
        Py4JJavaError: a task failed, in reading or in writing.
    """
    states = history.stored()
    entries = states.entries(node, history.spark, time_ms)
    if entries is None:
        return version
    # Each in stores of its own: two contents in one would be two versions 1 of it.
    empty = states.empty(node, node.partitioner, f"epoch-{epoch}-{time_ms}")
    blocks = shuffle_pairs(entries.map(_keyed), node.partitioner, Side.STATE, node.operation)
    rdd = StateStoreRDD([blocks], states.store, empty, _Load())
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
