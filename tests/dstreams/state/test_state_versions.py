"""State versions: which count, which stand for another batch, which are deleted. No Spark."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from checkpoint.state_store import StateStore
from dstreams.spark.partitioner import StablePartitioner
from dstreams.state.state_versions import StateVersions
from tests.support.memory_backend import MemoryBackend

SPARK: Any = None
PARTITIONER = StablePartitioner(2)


def test_what_a_batch_that_was_cut_off_has_made_is_not_committed_before_it() -> None:
    """Its version is there, and the record of the batch before names the one of that."""
    states = StateVersions(SPARK, StateStore(MemoryBackend()))
    empty = states.empty("counts", PARTITIONER)
    committed, cut_off = replace(empty, watermark_ms=500), replace(empty, watermark_ms=1500)
    states.restore("counts", 1000, committed)
    states.restore("counts", 2000, cut_off)
    assert states.newest(1001) == {"counts": (1000, committed)}
    assert states.newest(2000) == states.newest() == {"counts": (2000, cut_off)}
    assert states.newest(999) == {}


def test_moved_stores_over_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    """They go when the rows of the first batch after the gap are forgotten, which need them."""
    states = StateVersions(SPARK, StateStore(MemoryBackend()))
    deleted: list[Any] = []
    monkeypatch.setattr(states, "_delete", deleted.extend)
    version = states.empty("counts", PARTITIONER)
    states.restore("counts", 2000, version, is_temporary=True)
    states.reuse("counts", 2000, 5000)
    states.reuse("counts", 2000, 5000)
    states.reuse("counts", 3000, 4000)
    assert (states.at("counts", 4000), states.at("counts", 5000)) == (None, version)
    states.restore("counts", 6000, version)
    for upto_ms, count in ((3000, 0), (5000, 0), (6000, 1), (9000, 1)):
        states.forget("counts", upto_ms)
        assert len(deleted) == count
