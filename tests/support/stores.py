"""Stores with known contents: every version follows from its number, whoever commits it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing

from checkpoint import CommitLog, CommitRecord, Files, StoreCommit
from checkpoint.log.batch_records import EMPTY, PartitionCommit, StoreId, VersionId
from checkpoint.state_store.backend import Changes, RawVersion, StateBackend, pairs_checksum
from checkpoint.state_store.store_files import (
    list_snapshots,
    plan_rebuilds,
    read_changelog,
    read_parent,
    read_state_snapshot,
)

KEYS = 40


def store_of(partition: int = 0, partitions: int = 1) -> StoreId:
    return StoreId("stream-1", "counts", "default", partition, partitions)


def content(version: int) -> tuple[dict[bytes, bytes], set[bytes]]:
    """Keys with records, and the index, that a store has at a version."""
    records: dict[bytes, bytes] = {}
    index: set[bytes] = set()
    for number in range(1, version + 1):
        for key in touched(number):
            records[key] = b"%d of %s;" % (number, key) * (1 + number % 3)
            index.add(b"%08d%s" % (number, key))
        if number > 2:
            for key in touched(number - 2)[:2]:
                records.pop(key, None)
            for key in touched(number - 2)[:3]:
                index.discard(b"%08d%s" % (number - 2, key))
    return records, index


def touched(version: int) -> list[bytes]:
    return sorted({b"key-%03d" % ((version * 7 + i * i) % KEYS) for i in range(8)})


def changes(version: int) -> list[Changes]:
    """The changes that lead to a version, in two parts."""
    before, index_before = content(version - 1)
    after, index_after = content(version)
    puts = sorted((k, v) for k, v in after.items() if before.get(k) != v)
    removes = sorted(before.keys() - after.keys())
    entries, gone = sorted(index_after - index_before), sorted(index_before - index_after)
    middle = len(puts) // 2
    checksum = pairs_checksum(after.items())
    return [
        Changes(puts[:middle], [], entries, [], len(after), checksum),
        Changes(puts[middle:], removes, [], gone, len(after), checksum),
    ]


def commit(backend: StateBackend, store: StoreId, base: VersionId) -> PartitionCommit:
    """Commit the version after *base*."""
    return backend.commit(store, base, changes(base.version + 1), {"keys": "test"})


def commit_up_to(backend: StateBackend, store: StoreId, version: int) -> list[VersionId]:
    """Commit versions 1 to *version*, and return all version ids from the empty one on."""
    version_ids = [EMPTY]
    for _ in range(version):
        version_ids.append(commit(backend, store, version_ids[-1]).version_id)
    return version_ids


def require_content(base: RawVersion, version: int) -> None:
    """Assert that *base* holds what a version holds."""
    records, index = content(version)
    assert dict(base.scan()) == records
    assert list(base.scan_index()) == sorted(index)
    assert base.count() == len(records)
    assert base.checksum == pairs_checksum(records.items())
    for key in touched(max(version, 1)):
        assert base.get(key) == records.get(key)


def require_open(backend: StateBackend, store: StoreId, version_id: VersionId) -> None:
    """Assert that a content opens and is what it should be."""
    with closing(backend.open(store, version_id)) as base:
        assert base.version_id == version_id
        require_content(base, version_id.version)


def require_files(files: Files, store: StoreId, version_id: VersionId) -> None:
    """Assert the same by files alone, with no replica."""
    plan = next(
        plan_rebuilds(
            version_id, list_snapshots(files, store), lambda ref: read_parent(files, store, ref)
        )
    )
    records: dict[bytes, bytes] = {}
    index: set[bytes] = set()
    for part in _parts(files, store, plan.start, plan.changelogs):
        records.update(part.puts)
        index.update(part.index_puts)
        for key in part.removes:
            del records[key]
        index.difference_update(part.index_removes)
    assert (records, index) == content(version_id.version)


def _parts(
    files: Files, store: StoreId, start: VersionId, changelogs: Iterable[VersionId]
) -> Iterator[Changes]:
    if start != EMPTY:
        yield from read_state_snapshot(files, store, start).parts
    for version_id in changelogs:
        yield from read_changelog(files, store, version_id).parts


def run_batch(
    files: Files, backend: StateBackend, stores: Sequence[StoreId], epoch: int = 1
) -> int:
    """Run the batch after the newest record: commit all stores, and name them in a record."""
    log = CommitLog(files)
    latest = log.latest()
    time_ms = 1000 if latest is None else latest.batch_time_ms + 1000
    version_ids = named(latest, stores)
    committed = [commit(backend, store, version_ids[store]) for store in stores]
    log.commit(record(time_ms, committed, epoch))
    return time_ms


def record(time_ms: int, committed: Iterable[PartitionCommit], epoch: int = 1) -> CommitRecord:
    stores = (StoreCommit("counts", "default", "stable", tuple(committed)),)
    return CommitRecord("stream-1", time_ms // 1000, time_ms, epoch, {}, {}, stores)


def named(found: CommitRecord | None, stores: Sequence[StoreId]) -> dict[StoreId, VersionId]:
    """The contents that a record names."""
    if found is None:
        return dict.fromkeys(stores, EMPTY)
    partitions = found.stores[0].partitions
    return {store: partitions[store.partition].version_id for store in stores}
