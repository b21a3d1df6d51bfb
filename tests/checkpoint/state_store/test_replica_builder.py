"""Building a replica from scratch: from the newest intact snapshot and later changelogs."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from checkpoint import CorruptCheckpointError, open_files
from checkpoint.log.batch_records import EMPTY, VersionId
from checkpoint.state_store.backend import Changes
from checkpoint.state_store.lmdb_backend import LmdbBackend, LocalSettings
from checkpoint.state_store.maintenance import SnapshotRule, snapshot_if_due
from checkpoint.state_store.store_files import (
    Compression,
    StoredHeader,
    StoredKind,
    file_name,
    new_uid,
    stored_frames,
)
from checkpoint.storage.framing import FrameTotals
from tests.support.replicas import close_unused
from tests.support.stores import commit, require_open, store_of

pytestmark = pytest.mark.usefixtures("no_sync")

STORE = store_of()


class Stored:
    """Nine versions with snapshots of 3 and 6, and new hosts without replicas."""

    def __init__(self, path: Path, compression: Compression) -> None:
        self.path = path
        self.compression = compression
        self.hosts = 0
        self.backend = self.new_host()
        self.version_ids = [EMPTY]
        for version in range(1, 10):
            self.version_ids.append(commit(self.backend, STORE, self.version_ids[-1]).version_id)
            if version in (3, 6):
                rule = SnapshotRule(1, 1)
                assert snapshot_if_due(self.backend, STORE, self.version_ids[-1], rule)

    def new_host(self) -> LmdbBackend:
        self.hosts += 1
        return LmdbBackend(
            open_files(self.path / "files"),
            str(self.path / f"host-{self.hosts}"),
            settings=LocalSettings(first_map_bytes=1 << 20),
            compression=self.compression,
        )

    def file(self, version: int, kind: StoredKind) -> Path:
        return self.path / "files" / file_name(STORE, self.version_ids[version], kind)


@pytest.fixture(params=Compression)
def stored(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Stored]:
    yield Stored(tmp_path, request.param)
    close_unused()


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def test_a_new_host_needs_the_newest_snapshot_and_what_follows(stored: Stored) -> None:
    """No earlier file is read."""
    for version in range(1, 7):
        stored.file(version, StoredKind.CHANGES).unlink()
    stored.file(3, StoredKind.SNAPSHOT).unlink()
    for version in (6, 7, 9):
        require_open(stored.new_host(), STORE, stored.version_ids[version])


@pytest.mark.parametrize("kind", ["damaged", "cut", "empty", "of another content"])
def test_instead_of_a_damaged_snapshot_the_one_before_is_taken(
    stored: Stored, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """More changelogs are applied, and a warning names the file."""
    path = stored.file(6, StoredKind.SNAPSHOT)
    if kind == "damaged":
        damage(path)
    elif kind == "of another content":
        path.write_bytes(stored.file(3, StoredKind.SNAPSHOT).read_bytes())
    else:
        os.truncate(path, 0 if kind == "empty" else path.stat().st_size - 7)
    with caplog.at_level(logging.WARNING, "checkpoint.state_store"):
        require_open(stored.new_host(), STORE, stored.version_ids[9])
    [message] = [record.getMessage() for record in caplog.records]
    assert message.startswith("snapshot fallback: ")
    assert str(path) in message


def test_without_any_snapshot_all_changelogs_are_applied(
    stored: Stored, caplog: pytest.LogCaptureFixture
) -> None:
    """If both snapshots are damaged, warnings name both."""
    for version in (3, 6):
        damage(stored.file(version, StoredKind.SNAPSHOT))
    require_open(stored.new_host(), STORE, stored.version_ids[9])
    assert caplog.text.count("snapshot fallback: ") == 2


def test_a_damaged_changelog_before_a_snapshot_does_no_harm(stored: Stored) -> None:
    """It is not read."""
    damage(stored.file(5, StoredKind.CHANGES))
    require_open(stored.new_host(), STORE, stored.version_ids[8])


def test_a_damaged_changelog_after_the_snapshot_is_refused(stored: Stored) -> None:
    """The error names the file, which cannot be replaced."""
    path = stored.file(8, StoredKind.CHANGES)
    damage(path)
    host = stored.new_host()
    with pytest.raises(CorruptCheckpointError, match=r"damaged|has no") as error:
        host.open(STORE, stored.version_ids[9])
    assert error.value.file == f"file://{path}"
    assert "go back to a batch before it" in error.value.remedy
    require_open(host, STORE, stored.version_ids[7])


def test_when_there_is_no_way_both_files_are_named(stored: Stored) -> None:
    """The error names the missing changelog and the damaged snapshot."""
    stored.file(4, StoredKind.CHANGES).unlink()
    damage(stored.file(6, StoredKind.SNAPSHOT))
    with pytest.raises(CorruptCheckpointError, match="is missing") as error:
        stored.new_host().open(STORE, stored.version_ids[9])
    assert error.value.file == f"file://{stored.file(4, StoredKind.CHANGES)}"
    assert str(stored.file(6, StoredKind.SNAPSHOT)) in error.value.remedy


def put_file(
    stored: Stored, kind: StoredKind, version_id: VersionId, base: VersionId, part: Changes
) -> None:
    header = StoredHeader(STORE, kind, version_id, base, {}, stored.compression)
    stored.backend.files.create(header.name, stored_frames(header, [part], FrameTotals()))


def test_a_changelog_that_leads_to_another_count_is_refused(stored: Stored) -> None:
    """An intact changelog with a wrong number of keys is rejected."""
    version_id = VersionId(10, new_uid(1))
    part = Changes([(b"new", b"1")], [], [], [], 99)
    put_file(stored, StoredKind.CHANGES, version_id, stored.version_ids[9], part)
    require_open(stored.backend, STORE, stored.version_ids[9])
    with pytest.raises(CorruptCheckpointError, match=r"leads to \d+ keys; expected 99 keys"):
        stored.backend.open(STORE, version_id)
    require_open(stored.backend, STORE, stored.version_ids[9])


@pytest.mark.parametrize(
    "part",
    [
        Changes([(b"b", b"1"), (b"a", b"1")], [], [], [], 2),
        Changes([(b"a", b"1"), (b"b", b"1")], [], [b"2", b"1"], [], 2),
    ],
)
def test_a_snapshot_out_of_order_is_not_taken(
    stored: Stored, part: Changes, caplog: pytest.LogCaptureFixture
) -> None:
    """Keys that would be lost are detected."""
    version_id = stored.version_ids[9]
    put_file(stored, StoredKind.SNAPSHOT, version_id, version_id, part)
    require_open(stored.new_host(), STORE, version_id)
    assert "has 1 keys out of order" in caplog.text
