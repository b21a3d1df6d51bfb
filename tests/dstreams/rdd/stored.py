"""A stored state of two partitions, and what it holds at a version."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from checkpoint.state_store import StateStore, StoreId
from dstreams.rdd.partitioner import StablePartitioner
from dstreams.rdd.stored_version import StoredVersion

TWO = StablePartitioner(2)
STORE = StoreId("stream-1", "counts-0", "default", 0, 2)


def contents(store: StateStore, version: StoredVersion) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for partition, reference in enumerate(version.references):
        with store.reader(replace(version.store_id, partition=partition), reference) as reader:
            found.update(reader.items())
    return found
