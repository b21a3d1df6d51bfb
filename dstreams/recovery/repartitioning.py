"""State in the state store in another number of partitions, or placed by another function.

It is moved into new stores, which are named by the epoch that does so. They count when a commit
record names them; what is for the rows of earlier batches alone never does, and is deleted by the
run that has made it. A driver that is killed leaves its stores there: a later one collects them
(:func:`delete_abandoned`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from checkpoint import CommitLog, Files
from checkpoint.state_store import STORE_PREFIX, StateWriter
from dstreams.graph.state_store_dstream import StateStoreDStream
from dstreams.kernel.state_versions import StateVersions
from dstreams.rdd.blocks import Side
from dstreams.rdd.shuffle import shuffle_pairs
from dstreams.rdd.state_metrics import StateMetrics
from dstreams.rdd.state_store_rdd import Pairs, StateStoreRDD
from dstreams.rdd.state_version import StateVersion

_MOVED = re.compile(rf"{re.escape(STORE_PREFIX)}[^/]+/epoch-(?P<epoch>\d+)-\d+/")


def repartitioned(
    states: StateVersions,
    uid: str,
    node: StateStoreDStream,
    version: StateVersion,
    epoch: int,
    time_ms: int,
) -> StateVersion:
    """Write a version of a state into new stores, in one job.

    The old ones stay as they are: what is written counts when a commit record names it.

    Args:
        states: where *version* is that of the batch at *time_ms*.
        uid: the stream's.
        node: the stream.
        version: the version.
        epoch: epoch of this driver; it names the new stores.
        time_ms: the batch that made it.

    Raises:
        Py4JJavaError: a task failed, in reading or in writing.
    """
    entries = states.entries(uid, node.operation, time_ms)
    if entries is None:
        return version
    # Each in stores of its own: two contents in one would be two versions 1 of it.
    empty = states.empty(uid, node.partitioner, f"epoch-{epoch}-{time_ms}")
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


def delete_abandoned(files: Files, epoch: int) -> int:
    """Delete the stores of moved state that an earlier driver left, and return how many files.

    No record names them, also none that does not count any more: one that a rewind took back may
    count again. No driver of an earlier epoch writes another record.

    Args:
        files: the directory of the stream.
        epoch: epoch of this driver, which has not been replaced; what it has moved itself stays.

    Raises:
        CheckpointError: something could not be read or deleted; a later call deletes the rest.
    """
    old: dict[str, list[str]] = {}
    for name in files.list(STORE_PREFIX):
        match = _MOVED.match(name)
        if match is not None and int(match["epoch"]) < epoch:
            old.setdefault(match[0], []).append(name)
    if not old:
        return 0
    log = CommitLog(files)
    for record_id in log.all_ids():
        for name in log.read_record(record_id).file_names():
            match = _MOVED.match(name)
            if match is not None:
                old.pop(match[0], None)
    names = [name for group in old.values() for name in group]
    for name in names:
        files.delete(name)
    return len(names)


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
