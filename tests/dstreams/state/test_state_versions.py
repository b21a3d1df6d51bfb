"""State versions without Spark: which are newest, reused or deleted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from checkpoint import open_files
from checkpoint.state_store import EMPTY, LmdbBackend, MemoryBackend, StateStore, StoreId, VersionId
from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.state_version import StateVersion
from dstreams.state.state_versions import StateVersions

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
        states.evict("counts", upto_ms)
        assert len(deleted) == count


def made(store: StateStore, count: int) -> Iterator[StateVersion]:
    """Yield versions of one partition, in which the key is the number of the version."""
    version_id: VersionId = EMPTY
    store_id = StoreId("stream-1", "counts", "default", 0, 1)
    for number in range(1, count + 1):
        with store.writer(store_id, version_id) as writer:
            writer.put("key", number)
            version_id = writer.commit().version_id
        yield StateVersion(store_id, PARTITIONER.name, (version_id,))


def apart(path: Path) -> list[Path]:
    return list(path.rglob("apart.d"))


@pytest.mark.parametrize(
    ("committed", "expected", "builds_apart"),
    [
        ([3000], 3, False),
        ([1000, 3000], 3, False),
        ([1000, 2000, 3000], 3, False),
        ([1000], 1, True),
    ],
    ids=["newest", "one commit meanwhile", "two commits meanwhile", "tasks are ahead for long"],
)
def test_reading_while_tasks_take_replicas_on(
    tmp_path: Path, committed: list[int], expected: int, builds_apart: bool
) -> None:
    """The newest version is determined again; an old one is built apart only at last."""
    files = open_files(str(tmp_path / "files"))
    store = StateStore(LmdbBackend(files, str(tmp_path / "local")))
    states = StateVersions(SPARK, store)
    versions = list(made(store, 3))
    for number, version in enumerate(versions, 1):
        states.restore("counts", 1000 * number, version)
    with versions[-1].open(store, 0) as reader:  # a task takes the replica to version 3
        assert reader.get("key") == 3
    answers = iter(committed)
    newest = [committed[0]]

    def last() -> int:
        newest.append(next(answers, newest[-1]))
        return newest[-1]

    found = states.read_here("counts", last, lambda _: [0], lambda store: store.get("key"))
    assert found == (1000 * expected, [expected])
    assert bool(apart(tmp_path / "local")) == builds_apart
    assert states.read_here("other", last, lambda _: [0], lambda store: None) is None
