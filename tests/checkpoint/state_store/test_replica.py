"""Replicas: each open returns exactly the requested version, whatever the replica contains."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from checkpoint import CorruptCheckpointError, StorageRefusedError, open_files
from checkpoint.log.batch_records import EMPTY, PartitionCommit, StoreId, VersionId
from checkpoint.state_store import replica_files
from checkpoint.state_store.backend import Changes
from checkpoint.state_store.lmdb_backend import LmdbBackend, LmdbVersion, LocalSettings
from checkpoint.state_store.store_files import Compression, StoredKind, file_name
from checkpoint.testing import check_backend
from tests.support.replicas import close_unused
from tests.support.stores import (
    commit,
    commit_up_to,
    require_content,
    require_open,
    store_of,
)

STORE = store_of()

pytestmark = pytest.mark.usefixtures("no_sync")


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[LmdbBackend]:
    yield make_backend(tmp_path)
    close_unused()


def name_of(written: PartitionCommit) -> str:
    assert written.file is not None
    return written.file.name


def make_backend(tmp_path: Path, **options: object) -> LmdbBackend:
    settings = LocalSettings(first_map_bytes=1 << 20)
    options = {"settings": settings, "boot": "boot-1", **options}
    return LmdbBackend(open_files(tmp_path / "files"), str(tmp_path / "local"), **options)  # type: ignore[arg-type]


def generation(backend: LmdbBackend, store: StoreId = STORE) -> str:
    name = backend.replica(store).directory.current()
    assert name is not None
    return name


@pytest.mark.parametrize("place", ["path", "memory"])
@pytest.mark.parametrize("through_map", [True, False])
def test_contents_on_lmdb_do_what_contents_must(
    tmp_path: Path, place: str, through_map: bool
) -> None:
    """The backend fulfils its contract, on a path and on an object store."""
    numbers = iter(range(1000))

    def make() -> LmdbBackend:
        number = next(numbers)
        url = f"memory://{tmp_path.name}-{through_map}-{number}"
        files = open_files(url if place == "memory" else tmp_path / f"files-{number}")
        settings = LocalSettings(writes_through_map=through_map, first_map_bytes=1 << 20)
        return LmdbBackend(files, str(tmp_path / f"local-{number}"), settings=settings)

    check_backend(make)
    close_unused()


def test_a_batch_after_the_other_stays_in_one_generation(backend: LmdbBackend) -> None:
    """Committed changes are applied to the existing replica, without a rebuild."""
    version_ids = [EMPTY]
    generations = set()
    for _ in range(12):
        require_open(backend, STORE, version_ids[-1])
        if version_ids[-1] != EMPTY:
            generations.add(generation(backend))
        version_ids.append(commit(backend, STORE, version_ids[-1]).version_id)
    assert len(generations) == 1


def test_a_commit_changes_nothing_that_can_be_seen(backend: LmdbBackend) -> None:
    """Neither the open version nor the replica nor another attempt's version changes."""
    version_ids = commit_up_to(backend, STORE, 3)
    base = backend.open(STORE, version_ids[3])
    twins = [commit(backend, STORE, version_ids[3]) for _ in range(3)]
    assert len({twin.version_id for twin in twins}) == len(set(map(name_of, twins))) == 3
    require_content(base, 3)
    require_open(backend, STORE, version_ids[3])
    base.close()


def test_an_open_content_stays_as_it_is_while_later_ones_are_applied(backend: LmdbBackend) -> None:
    """Several versions are open in one process, also if the map grows."""
    version_ids = [EMPTY]
    opened = []
    record = os.urandom(3000)
    for version in range(1, 8):
        puts = [(b"%d-%d" % (version, number), record) for number in range(100)]
        part = Changes(puts, [], [], [], 100 * version)
        version_ids.append(backend.commit(STORE, version_ids[-1], [part], {}).version_id)
        opened.append(backend.open(STORE, version_ids[-1]))
    for version, base in enumerate(opened, 1):
        assert base.count() == len(list(base.scan())) == 100 * version
        base.close()


@pytest.mark.parametrize("through_map", [True, False])
def test_the_map_grows_as_the_state_does(tmp_path: Path, through_map: bool) -> None:
    """From 1 MiB to 30 in one commit, without a setting or loss."""
    settings = LocalSettings(writes_through_map=through_map, first_map_bytes=1 << 20)
    backend = make_backend(tmp_path, settings=settings)
    version_ids = commit_up_to(backend, STORE, 2)
    require_open(backend, STORE, version_ids[2])
    record = os.urandom(10_000)
    parts = [
        Changes([(b"big-%05d" % n, record) for n in range(s, s + 500)], [], [], [], 3000 + 14)
        for s in range(0, 3000, 500)
    ]
    with contextlib.closing(backend.open(STORE, version_ids[2])) as base:
        before = base.count()
    parts = [Changes(part.puts, [], [], [], 3000 + before) for part in parts]
    version_id = backend.commit(STORE, version_ids[2], parts, {}).version_id
    with contextlib.closing(backend.open(STORE, version_id)) as base:
        assert base.count() == 3000 + before
        assert base.size_bytes() > 30_000_000
        assert base.get(b"big-02999") == record


def test_a_replica_on_another_chain_is_built_anew(backend: LmdbBackend) -> None:
    """After a rewind of two versions, the abandoned history has no effect."""
    version_ids = commit_up_to(backend, STORE, 5)
    require_open(backend, STORE, version_ids[5])
    lost = generation(backend)
    other = version_ids[:4]
    for _ in range(3):
        other.append(commit(backend, STORE, other[-1]).version_id)
        require_open(backend, STORE, other[-1])
    assert generation(backend) != lost
    require_open(backend, STORE, version_ids[4])


def test_a_replica_far_behind_is_built_from_a_snapshot(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Above the limit, changelogs are not applied one by one."""
    backend = make_backend(
        tmp_path, settings=LocalSettings(first_map_bytes=1 << 20, max_catch_up=3)
    )
    version_ids = commit_up_to(backend, STORE, 1)
    require_open(backend, STORE, version_ids[1])
    first = generation(backend)
    for _ in range(5):
        version_ids.append(commit(backend, STORE, version_ids[-1]).version_id)
    with caplog.at_level(logging.INFO, "checkpoint.state_store"):
        require_open(backend, STORE, version_ids[-1])
    assert "does not lead to version 6" in caplog.text
    assert generation(backend) != first


def test_old_versions_are_read_apart_from_the_replica(backend: LmdbBackend) -> None:
    """Any retained version can be read, and the replica stays where it was."""
    version_ids = commit_up_to(backend, STORE, 6)
    require_open(backend, STORE, version_ids[6])
    before = generation(backend)
    for version_id in version_ids:
        with backend.open_apart(STORE, version_id) as base:
            require_content(base, version_id.version)
    assert generation(backend) == before
    apart = Path(backend.local_directory) / "stream-1" / "boot-1" / "apart.d"
    assert list(apart.iterdir()) == []


def test_who_is_late_does_not_take_the_replica_back(backend: LmdbBackend) -> None:
    """An attempt of an old batch gets its version; replica and disk are unchanged."""
    version_ids = commit_up_to(backend, STORE, 6)
    require_open(backend, STORE, version_ids[6])
    before, open_before = generation(backend), len(replica_files._table.open)
    late = backend.open(STORE, version_ids[3])
    require_content(late, 3)
    apart = Path(backend.local_directory) / "stream-1" / "boot-1" / "apart.d"
    assert len(list(apart.iterdir())) == 1
    require_open(backend, STORE, version_ids[6])
    late.close()
    assert list(apart.iterdir()) == []
    assert len(replica_files._table.open) == open_before
    assert generation(backend) == before


def test_after_going_back_the_next_batches_have_a_replica_again(backend: LmdbBackend) -> None:
    """The first version is built separately, the next one moves the replica."""
    version_ids = commit_up_to(backend, STORE, 6)
    require_open(backend, STORE, version_ids[6])
    left = generation(backend)
    require_open(backend, STORE, version_ids[3])
    assert generation(backend) == left
    after = commit(backend, STORE, version_ids[3]).version_id
    require_open(backend, STORE, after)
    assert generation(backend) != left
    after = commit(backend, STORE, after).version_id
    now = generation(backend)
    require_open(backend, STORE, after)
    assert generation(backend) == now


def test_after_a_restart_of_the_host_no_replica_is_trusted(tmp_path: Path) -> None:
    """Unsynced files may contain anything after a power loss, and are not opened."""
    before = make_backend(tmp_path)
    version_ids = commit_up_to(before, STORE, 4)
    require_open(before, STORE, version_ids[4])
    close_unused()
    for path in Path(before.local_directory).rglob("data.mdb"):
        path.write_bytes(os.urandom(50_000))
    require_open(make_backend(tmp_path, boot="boot-2"), STORE, version_ids[4])


def damage_pages(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[:100] = os.urandom(100)
    data[4096:4196] = os.urandom(100)
    path.write_bytes(data)


DAMAGES = {
    "empty": lambda path: path.write_bytes(b""),
    "one page": lambda path: os.truncate(path, 4096),
    "cut": lambda path: os.truncate(path, 3 * 4096),
    "zeros": lambda path: path.write_bytes(bytes(100_000)),
    "no LMDB": lambda path: path.write_bytes(b"x" * 100_000),
    "meta pages": damage_pages,
    "deleted": os.unlink,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_replica_is_built_anew(
    backend: LmdbBackend, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Any damage to a closed file leads to a rebuild."""
    version_ids = commit_up_to(backend, STORE, 5)
    require_open(backend, STORE, version_ids[4])
    old = generation(backend)
    close_unused()
    DAMAGES[damage](Path(backend.replica(STORE).directory.child(old)) / "data.mdb")
    require_open(backend, STORE, version_ids[5])
    assert generation(backend) != old
    assert "replica rebuilt" in caplog.text


def test_a_replica_with_other_keys_is_noticed_by_their_number(
    backend: LmdbBackend, caplog: pytest.LogCaptureFixture
) -> None:
    """A key inserted into the replica is gone after the next batch."""
    version_ids = commit_up_to(backend, STORE, 5)
    require_open(backend, STORE, version_ids[4])
    directory = backend.replica(STORE).directory
    environment = replica_files.acquire(directory, generation(backend), 64)
    with environment.env.begin(write=True) as txn:
        txn.put(b"somebody else's", b"record", db=environment.data)
    replica_files.release(environment)
    require_open(backend, STORE, version_ids[5])
    assert "replica rebuilt" in caplog.text


@pytest.mark.parametrize("name", ["cur", "lock", "."])
def test_files_that_a_cleaner_deleted_are_made_again(backend: LmdbBackend, name: str) -> None:
    """The current name, the lock, or the whole directory may be deleted."""
    version_ids = commit_up_to(backend, STORE, 3)
    require_open(backend, STORE, version_ids[2])
    path = Path(backend.replica(STORE).directory.child(name))
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    require_open(backend, STORE, version_ids[2])
    require_open(backend, STORE, version_ids[3])


def test_the_replica_of_another_store_is_not_taken(backend: LmdbBackend) -> None:
    """A moved directory is recognized by its metadata."""
    other = store_of(1, 2)
    mine = store_of(0, 2)
    version_id = commit_up_to(backend, mine, 1)[1]
    other_reference = commit_up_to(backend, other, 1)[1]
    require_open(backend, mine, version_id)
    close_unused()
    path = backend.replica(mine).directory.path
    shutil.move(path, backend.replica(other).directory.path)
    require_open(backend, other, other_reference)
    require_open(backend, mine, version_id)


def test_cached_changelogs_stand_in_for_the_storage(tmp_path: Path) -> None:
    """A changelog committed on this host is applied from the cache, once."""
    backend = make_backend(tmp_path, caches_changelogs=True, compression=Compression.ZSTD)
    version_ids = commit_up_to(backend, STORE, 3)
    loser = commit(backend, STORE, version_ids[2])
    require_open(backend, STORE, version_ids[2])
    (tmp_path / "files" / file_name(STORE, version_ids[3], StoredKind.CHANGES)).unlink()
    require_open(backend, STORE, version_ids[3])
    copies = tmp_path / "local" / "stream-1" / "boot-1" / "changelogs.d"
    assert [path for path in copies.rglob("*") if path.is_file()] == []
    assert (tmp_path / "files" / name_of(loser)).exists()


@pytest.mark.parametrize("left", [0, 10, 300, -3])
def test_a_torn_cached_changelog_is_not_used(tmp_path: Path, left: int) -> None:
    """The changelog is read from the storage instead."""
    backend = make_backend(tmp_path, caches_changelogs=True)
    version_ids = commit_up_to(backend, STORE, 3)
    require_open(backend, STORE, version_ids[2])
    copies = tmp_path / "local" / "stream-1" / "boot-1" / "changelogs.d"
    path = copies / file_name(STORE, version_ids[3], StoredKind.CHANGES)
    path.write_bytes(path.read_bytes()[:left])
    require_open(backend, STORE, version_ids[3])


def test_an_unknown_content_is_refused_by_name(backend: LmdbBackend) -> None:
    """The error has file, version and store, and the replica is unchanged."""
    version_ids = commit_up_to(backend, STORE, 2)
    require_open(backend, STORE, version_ids[2])
    unknown = VersionId(3, "0" * 24)
    with pytest.raises(CorruptCheckpointError, match=r"is missing.*version 3.*'counts'") as error:
        backend.open(STORE, unknown)
    assert error.value.file.endswith(file_name(STORE, unknown, StoredKind.CHANGES))
    require_open(backend, STORE, version_ids[2])


def test_a_closed_content_says_so(backend: LmdbBackend) -> None:
    """Reading a closed version is an error, and does not affect the replica."""
    version_id = commit_up_to(backend, STORE, 1)[1]
    base = backend.open(STORE, version_id)
    base.close()
    base.close()
    for read in (lambda: base.get(b"k"), lambda: list(base.scan()), base.count, base.size_bytes):
        with pytest.raises(ValueError, match="was closed"):
            read()
    require_open(backend, STORE, version_id)


def test_a_content_that_nobody_closed_is_given_back(backend: LmdbBackend) -> None:
    """A version that a failed task left open is released."""
    version_id = commit_up_to(backend, STORE, 1)[1]
    base = backend.open(STORE, version_id)
    entries = base.scan()
    next(entries)
    environment = base._environment  # type: ignore[attr-defined]
    assert environment.users == 1
    del base, entries
    gc.collect()
    assert environment.users == 0
    assert environment.reading == set()


def test_everything_is_private(tmp_path: Path) -> None:
    """Files and directories are for their owner only."""
    umask = os.umask(0)
    try:
        backend = make_backend(tmp_path, caches_changelogs=True)
        version_ids = commit_up_to(backend, STORE, 2)
        require_open(backend, STORE, version_ids[1])
    finally:
        os.umask(umask)
    for path in (tmp_path / "local").rglob("*"):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path


def test_a_directory_that_others_can_write_is_refused(tmp_path: Path) -> None:
    """Others could put a forged replica there."""
    backend = make_backend(tmp_path)
    version_id = commit_up_to(backend, STORE, 1)[1]
    os.makedirs(backend.local_directory)
    os.chmod(backend.local_directory, 0o777)  # noqa: S103 (the fault under test)
    with pytest.raises(StorageRefusedError, match=r"only user .* can write, mode 0700"):
        backend.open(STORE, version_id)
    os.chmod(backend.local_directory, 0o700)
    require_open(backend, STORE, version_id)


def test_a_link_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    """Its target is unknown."""
    backend = make_backend(tmp_path)
    version_id = commit_up_to(backend, STORE, 1)[1]
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    os.symlink(tmp_path / "elsewhere", backend.local_directory)
    with pytest.raises(StorageRefusedError, match="is not a directory, or is a link"):
        backend.open(STORE, version_id)


def test_codec_and_progress_come_with_the_content(backend: LmdbBackend) -> None:
    """A version has the codec of its commit, and the distance from the last snapshot."""
    version_id = commit_up_to(backend, STORE, 4)[4]
    base = backend.open(STORE, version_id)
    assert isinstance(base, LmdbVersion)
    assert base.codec == {"keys": "test"}
    assert (base.meta.changelogs, base.meta.snapshot) == (4, EMPTY)
    assert base.meta.changelog_bytes > 400
    base.close()


@pytest.mark.parametrize(
    "settings",
    [{"first_map_bytes": 4096}, {"first_map_bytes": (1 << 20) + 1}, {"max_open": 0}],
)
def test_impossible_settings_are_refused(settings: dict[str, int]) -> None:
    """Invalid settings are rejected when they are created."""
    with pytest.raises(ValueError, match="must"):
        LocalSettings(**settings)  # type: ignore[arg-type]
