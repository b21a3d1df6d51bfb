"""Maintenance: snapshots, compaction of replicas, and sweeping."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from pathlib import Path

import pytest

from checkpoint import StorageRefusedError, open_files
from checkpoint.log.batch_records import EMPTY, VersionId
from checkpoint.state_store.backend import Changes
from checkpoint.state_store.lmdb_backend import LmdbBackend, LmdbVersion, LocalSettings
from checkpoint.state_store.maintenance import (
    SnapshotRule,
    compact_if_due,
    delete_local,
    maintain_store,
    replica_compaction_due,
    snapshot_if_due,
)
from checkpoint.state_store.replica_builder import ReplicaMeta
from checkpoint.state_store.store_files import list_snapshots
from tests.support.replicas import close_unused, sweep_local
from tests.support.stores import commit, commit_up_to, require_open, store_of

pytestmark = pytest.mark.usefixtures("no_sync")

STORE = store_of()
ALWAYS = SnapshotRule(1, 1)


@pytest.fixture
def backend(tmp_path: Path) -> LmdbBackend:
    settings = LocalSettings(first_map_bytes=1 << 20)
    return LmdbBackend(
        open_files(tmp_path / "files"), str(tmp_path / "local"), settings=settings, boot="boot-1"
    )


def many_keys(count: int) -> tuple[list[bytes], Changes]:
    """Return keys, and the changes that put 2,000 bytes to each of them."""
    keys = [b"%06d" % number for number in range(count)]
    return keys, Changes([(key, os.urandom(2000)) for key in keys], [], [], [], count)


def file_bytes(backend: LmdbBackend) -> int:
    """Return the size of the replica."""
    directory = backend.replica(STORE).directory
    return os.stat(directory.child(f"{directory.current()}/data.mdb")).st_size


@pytest.mark.parametrize(
    ("changelogs", "changelog_bytes", "snapshot_bytes", "due"),
    [
        (9, 10**9, 0, False),  # too few, however large
        (10, 100, 0, True),  # there is none yet
        (10, 100, 101, False),
        (10, 101, 101, True),  # as much as the snapshot
        (99, 100, 10**9, False),
        (100, 100, 10**9, True),  # many, however small
    ],
)
def test_a_snapshot_is_due_by_the_amount_of_change(
    changelogs: int, changelog_bytes: int, snapshot_bytes: int, due: bool
) -> None:
    """A snapshot is due if reading the changelogs costs as much."""
    progress = ReplicaMeta(
        VersionId(500, "ab" * 12), {}, EMPTY, snapshot_bytes, changelogs, changelog_bytes
    )
    assert SnapshotRule().is_due(progress) is due


def test_snapshots_come_as_they_are_due(backend: LmdbBackend) -> None:
    """The first comes after ten batches, the next one after ten more."""
    version_id, written = EMPTY, []
    for version in range(1, 34):
        version_id = commit(backend, STORE, version_id).version_id
        if snapshot_if_due(backend, STORE, version_id) is not None:
            written.append(version)
    assert written[0] == 10
    assert all(later - earlier >= 10 for earlier, later in zip(written, written[1:]))  # noqa: B905, RUF007
    assert sorted(found.version for found in list_snapshots(backend.files, STORE)) == written
    base = backend.open(STORE, version_id)
    assert isinstance(base, LmdbVersion)
    assert base.meta.snapshot.version == written[-1]
    assert base.meta.changelogs == 33 - written[-1]
    base.close()


def test_a_snapshot_is_written_once(backend: LmdbBackend) -> None:
    """A second writer finds it, and the empty version needs none."""
    version_id = commit_up_to(backend, STORE, 3)[3]
    assert snapshot_if_due(backend, STORE, version_id, ALWAYS) is not None
    assert snapshot_if_due(backend, STORE, version_id, ALWAYS) is None
    assert snapshot_if_due(backend, STORE, EMPTY, ALWAYS) is None
    other = LmdbBackend(backend.files, f"{backend.local_directory}-2", settings=backend.settings)
    assert snapshot_if_due(other, STORE, version_id, ALWAYS) is None


def test_a_snapshot_of_a_content_that_is_open_while_batches_go_on(backend: LmdbBackend) -> None:
    """It has the requested version, and the replica records the distance."""
    version_ids = commit_up_to(backend, STORE, 4)
    with contextlib.closing(backend.replica(STORE).open(version_ids[4])) as base:
        held = base.meta
        for _ in range(3):
            version_ids.append(commit(backend, STORE, version_ids[-1]).version_id)
            require_open(backend, STORE, version_ids[-1])
        backend.replica(STORE).note_snapshot(held, 1234)
    with contextlib.closing(backend.replica(STORE).open(version_ids[7])) as base:
        assert base.meta.snapshot == version_ids[4]
        assert (base.meta.changelogs, base.meta.snapshot_bytes) == (3, 1234)


def test_the_replica_is_not_taken_back_for_a_snapshot(backend: LmdbBackend) -> None:
    """If the replica is ahead, no snapshot is written."""
    version_ids = commit_up_to(backend, STORE, 4)
    require_open(backend, STORE, version_ids[4])
    generation = backend.replica(STORE).directory.current()
    assert snapshot_if_due(backend, STORE, version_ids[3], ALWAYS) is None
    assert snapshot_if_due(backend, STORE, version_ids[4], ALWAYS) is not None
    assert backend.replica(STORE).directory.current() == generation
    progress = backend.replica(STORE).meta()
    assert progress is not None
    assert progress.snapshot == version_ids[4]


@pytest.mark.parametrize(
    ("used", "live", "due"), [(100, 1, False), (100 << 20, 30 << 20, False), (100 << 20, 1, True)]
)
def test_compaction_is_due_when_most_of_a_file_was_freed(used: int, live: int, due: bool) -> None:
    """Small files and the normal free pages of two versions are left alone."""
    assert replica_compaction_due(used, live) is due


@pytest.mark.parametrize("through_map", [True, False])
def test_a_replica_that_has_grown_is_compacted(tmp_path: Path, through_map: bool) -> None:
    """After many removals the file shrinks, and open readers continue."""
    settings = LocalSettings(writes_through_map=through_map, first_map_bytes=1 << 20)
    backend = LmdbBackend(
        open_files(tmp_path / "files"), str(tmp_path / "local"), settings=settings
    )
    keys, full = many_keys(3000)
    version_id = backend.commit(STORE, EMPTY, [full], {}).version_id
    before = backend.open(STORE, version_id)
    emptied = Changes([], keys[10:], [], [], 10)
    version_id = backend.commit(STORE, version_id, [emptied], {}).version_id
    backend.open(STORE, version_id).close()
    large = file_bytes(backend)
    assert compact_if_due(backend, STORE, min_bytes=1 << 20)
    assert file_bytes(backend) < large / 4
    assert not compact_if_due(backend, STORE, min_bytes=1 << 20)
    assert len(list(before.scan())) == 3000
    before.close()
    with contextlib.closing(backend.open(STORE, version_id)) as base:
        assert [key for key, _ in base.scan()] == keys[:10]
        again = Changes(full.puts[10:], [], [], [], 3000)
        version_id = backend.commit(STORE, version_id, [again], {}).version_id
    with contextlib.closing(backend.open(STORE, version_id)) as base:
        assert base.count() == 3000


def test_maintaining_a_store_does_all_that_is_due(backend: LmdbBackend) -> None:
    """Snapshot, compaction, and a sweep at the first call of a process."""
    left = Path(backend.local_directory) / "stream-0" / "boot-0"
    keys, full = many_keys(10_000)
    version_id = backend.commit(STORE, EMPTY, [full], {}).version_id
    backend.open(STORE, version_id).close()
    emptied = Changes([], keys[10:], [], [], 10)
    version_id = backend.commit(STORE, version_id, [emptied], {}).version_id
    backend.open(STORE, version_id).close()
    large = file_bytes(backend)
    for _ in range(2):
        left.mkdir(parents=True, exist_ok=True)
        maintain_store(backend, STORE, version_id, ALWAYS)
    assert list_snapshots(backend.files, STORE) == {version_id}
    assert file_bytes(backend) < large / 4
    assert left.exists()  # as the second time was not the first
    sweep_local(backend)
    assert not left.exists()


def test_there_is_nothing_to_compact_where_there_is_no_replica(backend: LmdbBackend) -> None:
    """No replica is created for it."""
    assert not compact_if_due(backend, STORE)
    assert not (Path(backend.local_directory) / "stream-1").exists()


def test_sweeping_deletes_what_the_dead_have_left(backend: LmdbBackend) -> None:
    """Other boots, unfinished generations and temporary replicas, unless in use."""
    version_ids = commit_up_to(backend, STORE, 3)
    require_open(backend, STORE, version_ids[3])
    stream = Path(backend.local_directory) / "stream-1"
    directory = Path(backend.replica(STORE).directory.path)
    (stream / "boot-0" / "counts").mkdir(parents=True)
    (directory / f"tmp-{'0' * 16}").mkdir()
    (directory / f"g1-{'0' * 16}").mkdir()
    (directory / f"cur.{'0' * 16}").write_text("g1")
    (directory / "notes").write_text("of the administrator")
    dead = stream / "boot-1" / "apart.d" / ("0" * 16)
    dead.mkdir(parents=True)
    (dead / "lock").touch()
    with backend.open_apart(STORE, version_ids[2]) as base:
        swept = [os.path.relpath(path, stream) for path in sweep_local(backend)]
        assert base.count()
    at = directory.relative_to(stream)
    assert sorted(swept) == sorted(
        [
            "boot-0",
            f"boot-1/apart.d/{'0' * 16}",
            f"{at}/cur.{'0' * 16}",
            f"{at}/g1-{'0' * 16}",
            f"{at}/tmp-{'0' * 16}",  # noqa: S108
        ]
    )
    assert sweep_local(backend) == []
    assert (directory / "notes").exists()
    require_open(backend, STORE, version_ids[3])


def test_a_stopped_process_does_not_stop_this_one_for_ever(backend: LmdbBackend) -> None:
    """The lock has a time limit, and the error explains it."""
    version_ids = commit_up_to(backend, STORE, 2)
    require_open(backend, STORE, version_ids[1])
    hasty = LmdbBackend(
        backend.files,
        backend.local_directory,
        settings=LocalSettings(lock_timeout_ms=30),
        boot="boot-1",
    )
    with backend.replica(STORE).directory.locked(1000):
        require_open(hasty, STORE, version_ids[1])  # needs no lock
        with pytest.raises(StorageRefusedError, match="was held by another process for 30 ms"):
            hasty.open(STORE, version_ids[2])
    require_open(hasty, STORE, version_ids[2])
    close_unused()


def age(directory: Path, days: float) -> None:
    """Set the modification times of a directory to the past."""
    for path in (directory, *directory.rglob("*")):
        then_s = path.lstat().st_mtime - days * 86_400
        os.utime(path, (then_s, then_s), follow_symlinks=False)


@pytest.mark.parametrize(("days", "is_kept"), [(6.9, True), (7.1, False)])
def test_sweeping_deletes_what_nobody_uses(
    backend: LmdbBackend, days: float, is_kept: bool
) -> None:
    """Replicas of a stream that did not run for a week are deleted, and rebuilt later."""
    version_ids = commit_up_to(backend, STORE, 3)
    require_open(backend, STORE, version_ids[3])
    stream = Path(backend.local_directory) / "stream-1"
    age(stream, days)
    assert sweep_local(backend) == ([] if is_kept else [str(stream)])
    assert [path.name for path in stream.parent.iterdir()] == (["stream-1"] if is_kept else [])
    require_open(backend, STORE, version_ids[3])


def test_how_long_replicas_are_kept(backend: LmdbBackend) -> None:
    """The setting decides, and one newer file keeps all replicas of a stream."""
    backend = dataclasses.replace(backend, settings=LocalSettings(unused_ms=3_600_000))
    version_ids = commit_up_to(backend, STORE, 1)
    require_open(backend, STORE, version_ids[1])
    stream = Path(backend.local_directory) / "stream-1"
    age(stream, 0.05)
    (lock,) = stream.rglob("lock")
    os.utime(lock)
    assert sweep_local(backend) == []
    age(stream, 0.05)
    assert sweep_local(backend) == [str(stream)]


def test_maintenance_is_use(backend: LmdbBackend) -> None:
    """Maintenance marks replicas as used, whatever the times of their files."""
    version_ids = commit_up_to(backend, STORE, 1)
    require_open(backend, STORE, version_ids[1])
    age(Path(backend.local_directory) / "stream-1", 8)
    maintain_store(backend, STORE, version_ids[1])
    assert sweep_local(backend) == []


def test_what_is_locked_is_kept(backend: LmdbBackend) -> None:
    """Locked replicas are kept, however old they are."""
    version_ids = commit_up_to(backend, STORE, 1)
    require_open(backend, STORE, version_ids[1])
    stream = Path(backend.local_directory) / "stream-1"
    with backend.replica(STORE).directory.locked(0):
        age(stream, 8)
        assert sweep_local(backend) == []
        delete_local(backend, "stream-1")
        assert stream.exists()


def test_replicas_of_a_stream_that_is_given_up(backend: LmdbBackend) -> None:
    """All replicas of the stream are deleted, open ones too, and no others."""
    other = dataclasses.replace(STORE, stream_id="stream-2")
    version_ids = {store: commit_up_to(backend, store, 2) for store in (STORE, other)}
    for store, known in version_ids.items():
        require_open(backend, store, known[2])
    with contextlib.closing(backend.open(STORE, version_ids[STORE][2])) as base:
        delete_local(backend, "stream-1")
        assert os.listdir(backend.local_directory) == ["stream-2"]
        assert base.count()
    delete_local(backend, "stream-1")
    require_open(backend, other, version_ids[other][2])
