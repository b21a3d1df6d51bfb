"""Checksums are carried from version to version, and detect wrong content."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint import CorruptCheckpointError, StorageRefusedError, open_files
from checkpoint.state_store import (
    EMPTY,
    DataValues,
    LmdbBackend,
    MemoryBackend,
    Shapes,
    StateStore,
    StoreId,
    VersionId,
)
from checkpoint.state_store.backend import (
    Changes,
    ChecksumMismatchError,
    moved_checksum,
    pairs_checksum,
    require_checksum,
)
from checkpoint.state_store.lmdb_backend import LmdbVersion
from checkpoint.state_store.maintenance import take_snapshot
from checkpoint.state_store.store_files import Compression, StoredHeader, StoredKind, stored_frames
from checkpoint.storage.framing import FrameTotals

pytestmark = pytest.mark.usefixtures("no_sync")

ID = StoreId("stream-1", "counts", "default", 0, 1)

contents = st.dictionaries(st.binary(min_size=1, max_size=3), st.binary(min_size=1, max_size=3))


@given(contents, contents, st.randoms(use_true_random=False))
def test_what_changes_is_enough(
    before: dict[bytes, bytes], after: dict[bytes, bytes], random: Any
) -> None:
    """A checksum follows from the previous one and the changes, in any order."""
    keys = sorted({*before, *after})
    random.shuffle(keys)
    old, new = [before.get(k) for k in keys], [after.get(k) for k in keys]
    assert moved_checksum(pairs_checksum(before.items()), keys, old, new) == pairs_checksum(
        after.items()
    )


def test_what_it_finds() -> None:
    """Changed, missing, added and misplaced records are detected."""
    content = {b"%d" % number: b"record %d" % number for number in range(10_000)}
    checksum = pairs_checksum(content.items())
    require_checksum(checksum, pairs_checksum(sorted(content.items(), reverse=True)))
    require_checksum(None, 7)
    exchanged = {b"1": content[b"2"], b"2": content[b"1"]}
    for wrong in ({b"7": b"record 8"}, {b"new": b"record"}, exchanged):
        with pytest.raises(ChecksumMismatchError, match="the checksum of its records is"):
            require_checksum(checksum, pairs_checksum({**content, **wrong}.items()))
    del content[b"7"]
    with pytest.raises(ChecksumMismatchError):
        require_checksum(checksum, pairs_checksum(content.items()))


class Host:
    """A host with its own replica."""

    def __init__(self, root: Path, name: str) -> None:
        local = root / name
        local.mkdir(mode=0o700)
        self.backend = LmdbBackend(open_files(root / "files"), str(local))
        self.store = StateStore(self.backend, checksums=True)

    def batch(self, version_id: VersionId, number: int) -> VersionId:
        with self.store.writer(ID, version_id) as writer:
            writer.update([(f"key {n}", number) for n in range(40)], lambda new, old: (new, 0.5))
            writer.put("key 7", number, timeout_ms=number)
            writer.put(number, "text")
            writer.remove(number - 1)
            return writer.commit().version_id

    def checksum(self, version_id: VersionId) -> int | None:
        with closing(self.backend.open(ID, version_id)) as base:
            checksum = base.checksum
            if checksum is not None:
                assert checksum == pairs_checksum(base.scan())
            return checksum

    def rot(self, version_id: VersionId) -> None:
        """Change a byte of a record in the replica."""
        with closing(self.backend.open(ID, version_id)) as base:
            assert isinstance(base, LmdbVersion)
            environment = base._environment
            with environment.env.begin(db=environment.data, write=True) as txn:
                txn.put(b"skey 3", DataValues().encoder(Shapes())("rotten"))


def test_it_is_carried(tmp_path: Path) -> None:
    """Checksums continue over batches, hosts and snapshots, if each writer maintains them."""
    first = Host(tmp_path, "first")
    version_id = EMPTY
    for number in range(1, 5):
        version_id = first.batch(version_id, number)
        assert first.checksum(version_id) is not None
    with closing(first.backend.open(ID, version_id)) as base:
        assert isinstance(base, LmdbVersion)
        assert take_snapshot(first.backend, ID, base)
    assert Host(tmp_path, "second").checksum(version_id) == first.checksum(version_id)
    with StateStore(first.backend).writer(ID, version_id) as writer:
        writer.put("key 3", "without")
        without = writer.commit().version_id
    assert first.checksum(without) is None
    assert Host(tmp_path, "third").checksum(without) is None
    assert first.checksum(first.batch(without, 6)) is not None


def test_a_rotten_replica_becomes_no_snapshot(tmp_path: Path) -> None:
    """A damaged replica is detected before a snapshot, and the next open rebuilds it."""
    host = Host(tmp_path, "host")
    version_id = host.batch(host.batch(EMPTY, 1), 2)
    good = host.checksum(version_id)
    host.rot(version_id)
    with closing(host.backend.open(ID, version_id)) as base:
        assert isinstance(base, LmdbVersion)
        with pytest.raises(StorageRefusedError, match=r"is damaged: .* no snapshot was written"):
            take_snapshot(host.backend, ID, base)
    assert not list((tmp_path / "files").rglob("*.snapshot"))
    assert host.checksum(version_id) == good


def test_what_was_made_of_a_rotten_replica_is_refused(tmp_path: Path) -> None:
    """No host builds a version whose writer read a damaged replica."""
    host = Host(tmp_path, "host")
    root = host.batch(EMPTY, 1)
    version_id = host.batch(root, 2)
    host.rot(version_id)
    with host.store.writer(ID, version_id) as writer:
        writer.update([("key 3", 1)], lambda new, old: new)
        wrong = writer.commit().version_id
    with pytest.raises(CorruptCheckpointError, match="leads to wrong content") as error:
        Host(tmp_path, "other").backend.open(ID, wrong)
    assert "used a damaged replica; go back to an earlier batch" in error.value.remedy
    assert "checkpoint rewind" in error.value.remedy
    assert Host(tmp_path, "third").checksum(version_id) is not None


def test_a_checksum_never_becomes_negative(tmp_path: Path) -> None:
    """A store of one key that was read as another value is committed.

    It is rejected later, as above.
    """
    host = Host(tmp_path, "host")
    with host.store.writer(ID, EMPTY) as writer:
        writer.put("key 3", 0)
        version_id = writer.commit().version_id
    host.rot(version_id)
    with host.store.writer(ID, version_id) as writer:
        writer.remove("key 3")
        wrong = writer.commit().version_id
    with pytest.raises(CorruptCheckpointError, match="leads to wrong content"):
        Host(tmp_path, "other").backend.open(ID, wrong)


def test_a_snapshot_with_a_wrong_checksum_is_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An older snapshot is used, as for a damaged file."""
    host = Host(tmp_path, "host")
    version_id = host.batch(host.batch(EMPTY, 1), 2)
    host.rot(version_id)
    with closing(host.backend.open(ID, version_id)) as base:
        part = Changes(list(base.scan()), [], list(base.scan_index()), [], base.count(), 7)
        codec = base.codec
    header = StoredHeader(ID, StoredKind.SNAPSHOT, version_id, version_id, codec, Compression.NONE)
    host.backend.files.create(header.name, stored_frames(header, [part], FrameTotals()))
    assert Host(tmp_path, "other").checksum(version_id) is not None
    assert "leads to wrong content" in caplog.text


def test_memory_requires_it() -> None:
    """The model detects a writer with a wrong checksum."""
    with pytest.raises(ChecksumMismatchError):
        MemoryBackend().commit(ID, EMPTY, [Changes([(b"a", b"1")], [], [], [], 1, 5)], {})
