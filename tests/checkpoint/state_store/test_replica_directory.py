"""Directories of replicas: names, locks, generations."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from checkpoint import StorageRefusedError
from checkpoint.log.version_records import StoreId
from checkpoint.state_store import replica_directory
from checkpoint.state_store.replica_directory import (
    ReplicaDirectory,
    boot_id,
    delete_tree,
    host_directory,
    is_mapped_generation,
    refusing,
)


@pytest.fixture
def directory(tmp_path: Path) -> ReplicaDirectory:
    return ReplicaDirectory(str(tmp_path / "partition"))


def test_each_store_has_a_directory_of_its_own() -> None:
    """Whatever characters its names have, also when only the number of partitions differs."""
    stores = [
        StoreId(stream, operator, name, partition, count)
        for stream in ("s", "../s", "S")
        for operator in ("a", "a/b", "changelogs.d")
        for name in ("x", "..", "\u00e9")
        for partition, count in ((0, 1), (0, 2), (1, 2))
    ]
    paths = {
        ReplicaDirectory.of(host_directory("/root-of-copies", store.stream_id, "boot"), store).path
        for store in stores
    }
    assert len(paths) == len(stores)
    assert all(os.path.normpath(path) == path for path in paths)
    assert all(path.startswith("/root-of-copies/") for path in paths)


def test_the_boot_id_is_that_of_the_kernel() -> None:
    """The same for each process until the host is started again."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        assert boot_id() == file.read().strip()


def test_without_a_boot_id_replicas_are_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else trusts them, as nobody knows whether the host was started since."""
    monkeypatch.setattr(replica_directory, "_BOOT_ID", "/no/such/file")
    boot_id.cache_clear()
    try:
        assert boot_id().startswith("process-")
    finally:
        boot_id.cache_clear()


def test_a_generation_counts_when_it_is_published(directory: ReplicaDirectory) -> None:
    """Then those before it are deleted, and so is what was left half built."""
    assert directory.current() is None
    with directory.locked(1000):
        abandoned = directory.new_temp()
        directory.publish(directory.new_temp(), 3, is_mapped=False)
    first = directory.current()
    assert first is not None
    assert first.startswith("g3-")
    assert not is_mapped_generation(first)
    assert not os.path.exists(abandoned)
    with directory.locked(1000):
        directory.publish(directory.new_temp(), 4, is_mapped=True)
    second = directory.current()
    assert second is not None
    assert is_mapped_generation(second)
    assert sorted(os.listdir(directory.path)) == sorted(["cur", "lock", second])
    directory.drop_current(first)
    assert directory.current() == second
    directory.drop_current(second)
    assert directory.current() is None


@pytest.mark.parametrize("text", ["", "../../etc", "g1", "tmp-0123456789abcdef", "g1-" + "0" * 17])
def test_what_is_no_name_of_a_generation_is_none(directory: ReplicaDirectory, text: str) -> None:
    """Torn, or written by somebody else: it leads nowhere."""
    with directory.locked(1000):
        Path(directory.child("cur")).write_text(text)
    assert directory.current() is None


def test_a_lock_excludes_the_others_until_it_is_released(directory: ReplicaDirectory) -> None:
    """In this process as in others; a deleted lock file excludes nobody for ever."""
    with directory.locked(1000):
        with pytest.raises(StorageRefusedError, match="was held by another process"):
            directory.locked(20).__enter__()
        os.unlink(directory.child("lock"))
        with directory.locked(20):
            pass
    with directory.locked(20):
        pass


def test_deleting_follows_no_link(tmp_path: Path) -> None:
    """What a link leads to is not ours."""
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").touch()
    os.symlink(kept, tmp_path / "link")
    delete_tree(str(tmp_path / "link"))
    delete_tree(str(tmp_path / "missing"))
    assert not os.path.lexists(tmp_path / "link")
    assert (kept / "file").exists()


def test_a_full_disk_is_refused_with_the_setting_of_another_directory(tmp_path: Path) -> None:
    """Who reads it may not know where replicas are, or why."""
    with (
        pytest.raises(
            StorageRefusedError, match=r"spark\.dstreams\.state\.localDirectory to another"
        ),
        refusing("reserve 4194304 bytes for the replica in", str(tmp_path)),
    ):
        raise OSError(28, "No space left on device")
