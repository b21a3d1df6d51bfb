"""A state of two partitions, and what it holds at a version."""

from __future__ import annotations

from typing import Any

from checkpoint.state_store import StateStore, StoreId
from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.state_version import StateVersion

TWO = StablePartitioner(2)
STORE = StoreId("stream-1", "counts-0", "default", 0, 2)


def contents(store: StateStore, version: StateVersion) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for partition in range(len(version.version_ids)):
        with version.open(store, partition) as reader:
            found.update(reader.items())
    return found
