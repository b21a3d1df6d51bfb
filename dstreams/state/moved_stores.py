"""Stores that a restart moves state into, where it is to be in other partitions than before.

They count when a commit record names them. If the driver is killed before that, a later one deletes
them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from checkpoint import CommitLog, Files
from checkpoint.state_store import STORE_PREFIX, StateWriter
from dstreams.spark.blocks import Side
from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.placed_pairs import state_inputs
from dstreams.spark.shuffle import shuffle_pairs
from dstreams.spark.state_metrics import StateMetrics
from dstreams.spark.state_store_rdd import Pairs, StateStoreRDD
from dstreams.spark.state_version import StateVersion
from dstreams.state.state_versions import StateVersions

_FILE = re.compile(rf"{re.escape(STORE_PREFIX)}[^/]+/epoch-(?P<epoch>\d+)-\d+/")


def moved_store(epoch: int, time_ms: int) -> str:
    """Return the name of the store that a driver moves the version of a batch into.

    Each version has a store of its own: two contents in one would be two versions 1 of it.
    """
    return f"epoch-{epoch}-{time_ms}"


def delete_abandoned(files: Files, epoch: int) -> int:
    """Delete the stores of moved state that an earlier driver left, and return how many files.

    No record names them, not even a void one, which a rewind may make count again. What the driver
    of this *epoch* has moved stays.

    Raises:
        CheckpointError: something could not be read or deleted; a later call deletes the rest.
    """
    old: dict[str, list[str]] = {}
    for name in files.list(STORE_PREFIX):
        match = _FILE.match(name)
        if match is not None and int(match["epoch"]) < epoch:
            old.setdefault(match[0], []).append(name)
    if not old:
        return 0
    log = CommitLog(files)
    for record_id in log.all_ids():
        for name in log.read_record(record_id).file_names():
            match = _FILE.match(name)
            if match is not None:
                old.pop(match[0], None)
    names = [name for group in old.values() for name in group]
    for name in names:
        files.delete(name)
    return len(names)


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
