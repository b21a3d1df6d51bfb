"""Full, read-only and deleted disks: a clear error, intact state, and recovery afterwards."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from checkpoint import CheckpointError, CommitLog, StorageRefusedError, open_files
from checkpoint.state_store import replica_builder, replica_files
from checkpoint.state_store.lmdb_backend import LmdbBackend, LocalSettings
from checkpoint.state_store.maintenance import SnapshotRule, snapshot_if_due
from tests.support.replicas import close_unused
from tests.support.stores import commit, commit_up_to, named, require_open, run_batch, store_of

STORE = store_of()


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[LmdbBackend]:
    settings = LocalSettings(first_map_bytes=1 << 20)
    yield LmdbBackend(
        open_files(tmp_path / "files"),
        str(tmp_path / "local"),
        settings=settings,
        caches_changelogs=True,
    )
    close_unused()


@pytest.mark.parametrize(
    "code", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EIO, errno.ESTALE, errno.EMFILE]
)
def test_a_fault_at_any_system_call_of_a_commit(
    tmp_path: Path, backend: LmdbBackend, faulty_os: Callable[..., Any], code: int
) -> None:
    """The batch fails or is committed, and the next one runs."""
    run_batch(backend.files, backend, [STORE])
    log, messages = CommitLog(backend.files), list[str]()
    for at in range(1, 40):
        before = log.latest()
        faulty = faulty_os(at, OSError(code, os.strerror(code)))
        try:
            run_batch(backend.files, backend, [STORE])
        except CheckpointError as error:
            messages.append(str(error))
        faulty_os(0, OSError())
        latest = log.latest()
        assert before is not None
        assert latest is not None
        assert latest.batch_time_ms - before.batch_time_ms in (0, 1000)
        require_open(backend, STORE, named(latest, [STORE])[STORE])
        if not faulty.fired:
            break
    assert at > 15
    assert messages
    assert all(os.strerror(code) in message for message in messages)


def test_a_full_local_disk_is_an_error_of_the_local_disk(
    backend: LmdbBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the directory; with free space the next batch runs."""
    version_ids = commit_up_to(backend, STORE, 2)

    def full(fd: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(StorageRefusedError, match=r"reserve \d+ bytes.*No space left") as error:
            backend.open(STORE, version_ids[2])
        assert backend.local_directory in str(error.value)
        assert "the state itself is intact" in str(error.value)
    require_open(backend, STORE, version_ids[2])


def test_where_room_cannot_be_reserved_the_map_is_not_written(
    backend: LmdbBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such file systems are supported, a little slower."""

    def unknown(fd: int, offset: int, length: int) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "posix_fallocate", unknown)
    version_ids = commit_up_to(backend, STORE, 3)
    for version_id in version_ids:
        require_open(backend, STORE, version_id)
    generation = backend.replica(STORE).directory.current()
    assert generation is not None
    assert not replica_files.is_mapped_generation(generation)


def test_a_copy_that_cannot_be_kept_is_no_fault(
    backend: LmdbBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The local cache of a changelog is optional."""
    version_ids = commit_up_to(backend, STORE, 1)

    class Full:
        def __getattr__(self, name: str) -> Any:
            return getattr(os, name)

        def write(self, fd: int, data: bytes) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(replica_builder, "os", Full())
        version_ids.append(commit(backend, STORE, version_ids[1]).version_id)
    copies = list(Path(backend.local_directory).rglob("*.changes*"))
    assert len(copies) == 1  # of the first one, whole
    require_open(backend, STORE, version_ids[2])


@pytest.mark.parametrize("name", ["files", "local"])
def test_a_deleted_directory(tmp_path: Path, backend: LmdbBackend, name: str) -> None:
    """A deleted storage is an error, never an empty state; a deleted replica is rebuilt."""
    version_ids = commit_up_to(backend, STORE, 3)
    require_open(backend, STORE, version_ids[3])
    shutil.move(tmp_path / name, tmp_path / "away")
    if name == "files":
        with pytest.raises(StorageRefusedError, match="create the directory again"):
            commit(backend, STORE, version_ids[3])
        with pytest.raises(CheckpointError):
            snapshot_if_due(backend, STORE, version_ids[3], SnapshotRule(1, 1))
        assert not (tmp_path / "files").exists()
        shutil.move(tmp_path / "away", tmp_path / "files")
    version_ids.append(commit(backend, STORE, version_ids[3]).version_id)
    require_open(backend, STORE, version_ids[4])


def test_a_local_directory_that_is_a_file(tmp_path: Path, backend: LmdbBackend) -> None:
    """The error names it."""
    version_id = commit_up_to(backend, STORE, 1)[1]
    shutil.rmtree(backend.local_directory)
    Path(backend.local_directory).write_text("a file")
    with pytest.raises(StorageRefusedError, match="local"):
        backend.open(STORE, version_id)
    Path(backend.local_directory).unlink()
    require_open(backend, STORE, version_id)


def test_a_generation_directory_that_is_read_only(backend: LmdbBackend) -> None:
    """A lock that cannot be opened is an error."""
    version_id = commit_up_to(backend, STORE, 1)[1]
    directory = backend.replica(STORE).directory
    replica_files.make_directories(directory.child("lock"))
    with pytest.raises(StorageRefusedError, match="cannot lock"):
        backend.open(STORE, version_id)
    os.rmdir(directory.child("lock"))
    require_open(backend, STORE, version_id)
