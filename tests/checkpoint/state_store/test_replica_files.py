"""Files of replicas: ownership, generations, the lock, and open environments."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from checkpoint import StorageRefusedError, open_files
from checkpoint.log.batch_records import EMPTY, StoreId, VersionId
from checkpoint.state_store import replica_files
from checkpoint.state_store.backend import Changes
from checkpoint.state_store.lmdb_backend import LmdbBackend, LmdbVersion, LocalSettings
from checkpoint.state_store.replica_files import (
    ReplicaDirectory,
    boot_id,
    delete_tree,
    host_directory,
    is_mapped_generation,
    refusing,
)
from tests.support.replicas import close_unused
from tests.support.stores import commit, commit_up_to, require_content, require_open, store_of


@pytest.fixture
def directory(tmp_path: Path) -> ReplicaDirectory:
    return ReplicaDirectory(str(tmp_path / "partition"))


def test_each_store_has_a_directory_of_its_own() -> None:
    """Names may have any characters, and the number of partitions is part of it."""
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
    """All processes have the same id until the host is restarted."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        assert boot_id() == file.read().strip()


def test_without_a_boot_id_replicas_are_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other processes do not use them, as the host may have been restarted."""
    monkeypatch.setattr(replica_files, "_BOOT_ID", "/no/such/file")
    boot_id.cache_clear()
    try:
        assert boot_id().startswith("process-")
    finally:
        boot_id.cache_clear()


def test_a_generation_counts_when_it_is_published(directory: ReplicaDirectory) -> None:
    """Then earlier and unfinished generations are deleted."""
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
    """A torn or foreign name means that there is no current generation."""
    with directory.locked(1000):
        Path(directory.child("cur")).write_text(text)
    assert directory.current() is None


def test_a_lock_excludes_the_others_until_it_is_released(directory: ReplicaDirectory) -> None:
    """Also within a process; a deleted lock file blocks no other process."""
    with directory.locked(1000):
        with pytest.raises(StorageRefusedError, match="was held by another process"):
            directory.locked(20).__enter__()
        os.unlink(directory.child("lock"))
        with directory.locked(20):
            pass
    with directory.locked(20):
        pass


def test_deleting_follows_no_link(tmp_path: Path) -> None:
    """The target of a link is not deleted."""
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").touch()
    os.symlink(kept, tmp_path / "link")
    delete_tree(str(tmp_path / "link"))
    delete_tree(str(tmp_path / "missing"))
    assert not os.path.lexists(tmp_path / "link")
    assert (kept / "file").exists()


def test_a_full_disk_is_refused_with_the_setting_of_another_directory(tmp_path: Path) -> None:
    """The error names the setting of the directory."""
    with (
        pytest.raises(
            StorageRefusedError, match=r"spark\.dstreams\.state\.localDirectory to another"
        ),
        refusing("reserve 4194304 bytes for the replica in", str(tmp_path)),
    ):
        raise OSError(28, "No space left on device")


pytestmark = pytest.mark.usefixtures("no_sync")

STORE = store_of()
ROOT = Path(__file__).parents[3]

# Opens the content that it is asked for and keeps it open until its input ends.
READER = """
import sys
from checkpoint import open_files
from checkpoint.state_store.lmdb_backend import LmdbBackend
from checkpoint.state_store.lmdb_backend import LocalSettings
from checkpoint.log.batch_records import VersionId
from tests.support.stores import require_content, store_of
files, local, version, uid = sys.argv[1:]
backend = LmdbBackend(open_files(files), local, settings=LocalSettings(first_map_bytes=1 << 20))
base = backend.open(store_of(), VersionId(int(version), uid))
print(base.count(), flush=True)
sys.stdin.readline()
print(len(list(base.scan())), flush=True)
"""


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[LmdbBackend]:
    settings = LocalSettings(first_map_bytes=1 << 20, max_open=4)
    yield LmdbBackend(open_files(tmp_path / "files"), str(tmp_path / "local"), settings=settings)
    close_unused()


@contextlib.contextmanager
def reader(backend: LmdbBackend, version_id: VersionId) -> Iterator[subprocess.Popen[str]]:
    """Another process that has a version open."""
    url = backend.files.url.removeprefix("file://")
    command = [sys.executable, "-c", READER, url, backend.local_directory]
    with subprocess.Popen(
        [*command, str(version_id.version), version_id.uid],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": str(ROOT)},
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def answer(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    return int(process.stdout.readline())


def many(backend: LmdbBackend, base: VersionId, number: int, count: int) -> VersionId:
    """Commit a thousand records of 2 kB each."""
    puts = [(b"%d-%04d" % (number, key), os.urandom(2000)) for key in range(1000)]
    return backend.commit(STORE, base, [Changes(puts, [], [], [], count + 1000)], {}).version_id


def test_two_processes_share_a_replica(backend: LmdbBackend) -> None:
    """One reads version 3 while the other continues to 6 and grows the map."""
    version_ids = commit_up_to(backend, STORE, 3)
    count = commit_count(backend, version_ids[3])
    with reader(backend, version_ids[3]) as process:
        assert answer(process) == count
        version_id = version_ids[3]
        for number in range(3):
            version_id = many(backend, version_id, number, count + number * 1000)
            with contextlib.closing(backend.open(STORE, version_id)) as base:
                assert base.count() == count + (number + 1) * 1000
        print(file=process.stdin, flush=True)
        assert answer(process) == count


def commit_count(backend: LmdbBackend, version_id: VersionId) -> int:
    with contextlib.closing(backend.open(STORE, version_id)) as base:
        return base.count()


def test_a_process_follows_a_map_that_another_has_grown(backend: LmdbBackend) -> None:
    """A process with the small map opens a version in the new part."""
    version_ids = commit_up_to(backend, STORE, 2)
    held = backend.open(STORE, version_ids[2])
    count = held.count()
    held.close()
    version_id = many(backend, version_ids[2], 0, count)
    with reader(backend, version_id) as process:
        assert answer(process) == count + 1000
    with contextlib.closing(backend.open(STORE, version_id)) as base:
        assert len(list(base.scan())) == count + 1000


def test_the_same_while_a_content_is_open_here(backend: LmdbBackend) -> None:
    """With a version open, the process continues in a new generation."""
    version_ids = commit_up_to(backend, STORE, 2)
    held = backend.open(STORE, version_ids[2])
    version_id = many(backend, version_ids[2], 0, held.count())
    with reader(backend, version_id) as process:
        assert answer(process) == held.count() + 1000
    with contextlib.closing(backend.open(STORE, version_id)) as base:
        assert base.count() == held.count() + 1000
    require_content(held, 2)
    held.close()


def test_the_pages_of_a_reader_that_died_are_used_again(backend: LmdbBackend) -> None:
    """Pages of a killed reader are freed by the next open."""
    version_id = many(backend, EMPTY, 0, 0)
    with contextlib.closing(backend.open(STORE, version_id)):
        pass
    with reader(backend, version_id) as process:
        assert answer(process) == 1000
        process.send_signal(signal.SIGKILL)
        process.wait()
    used = []
    for _ in range(8):
        puts = [(b"0-%04d" % key, os.urandom(2000)) for key in range(1000)]
        version_id = backend.commit(
            STORE, version_id, [Changes(puts, [], [], [], 1000)], {}
        ).version_id
        base = backend.open(STORE, version_id)
        assert isinstance(base, LmdbVersion)
        used.append(base._environment.used_bytes())  # the promise is about the file
        base.close()
    assert used[-1] == used[3]


def test_few_environments_are_kept_open(backend: LmdbBackend) -> None:
    """The least recently used ones are closed, unless a version is open."""
    stores = [store_of(partition, 8) for partition in range(8)]
    version_ids = {store: commit_up_to(backend, store, 2) for store in stores}
    held = backend.open(stores[0], version_ids[stores[0]][2])
    for store in stores:
        require_open(backend, store, version_ids[store][2])
    assert len(replica_files._table.open) <= backend.settings.max_open
    require_content(held, 2)
    held.close()
    for store in stores:
        require_open(backend, store, version_ids[store][1])


def in_child(work: object) -> int:
    """Run *work* in a fork of this process, and return its exit code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other tests may have left threads
        pid = os.fork()
    if pid == 0:
        try:
            work()  # type: ignore[operator]
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_fork_opens_for_itself_and_leaves_its_parent_alone(backend: LmdbBackend) -> None:
    """The pages of a reading parent do not change."""
    version_ids = commit_up_to(backend, STORE, 4)
    held = backend.open(STORE, version_ids[2])

    def child() -> None:
        held.close()
        require_open(backend, STORE, version_ids[3])
        close_unused()

    assert in_child(child) == 0
    require_content(held, 2)
    environment = held._environment  # type: ignore[attr-defined]
    assert str(os.getpid()) in environment.env.readers()
    require_open(backend, STORE, version_ids[4])
    require_content(held, 2)
    held.close()
    require_open(backend, STORE, version_ids[4])


def test_without_address_space_the_error_says_so(backend: LmdbBackend) -> None:
    """Maps count against a memory limit; the state is intact, and opens without it."""
    version_id = many(backend, EMPTY, 0, 0)
    wide = LmdbBackend(
        backend.files,
        f"{backend.local_directory}-wide",
        settings=LocalSettings(writes_through_map=False, first_map_bytes=1 << 36),
    )

    def child() -> None:
        used_pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit_bytes = used_pages * resource.getpagesize() + (1 << 30)
        resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes))
        with pytest.raises(StorageRefusedError, match="the state itself is intact"):
            wide.open(STORE, version_id)
        require_count(backend, version_id, 1000)

    assert in_child(child) == 0
    require_count(wide, version_id, 1000)


def require_count(backend: LmdbBackend, version_id: VersionId, count: int) -> None:
    with contextlib.closing(backend.open(STORE, version_id)) as base:
        assert base.count() == count


@pytest.mark.parametrize("through_map", [True, False])
def test_a_file_may_not_grow_any_more(backend: LmdbBackend, through_map: bool) -> None:
    """A limit on files acts like a full disk: an error, and an unchanged replica."""
    settings = LocalSettings(first_map_bytes=1 << 20, writes_through_map=through_map)
    backend = LmdbBackend(backend.files, backend.local_directory, settings=settings)
    version_ids = commit_up_to(backend, STORE, 2)
    require_open(backend, STORE, version_ids[2])
    count = commit_count(backend, version_ids[2])
    version_id = many(backend, version_ids[2], 0, count)
    close_unused()

    def child() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        with pytest.raises(StorageRefusedError, match="the state itself is intact"):
            backend.open(STORE, version_id)
        require_open(backend, STORE, version_ids[2])

    assert in_child(child) == 0
    require_open(backend, STORE, version_ids[2])
    require_count(backend, version_id, count + 1000)
    version_ids.append(commit(backend, STORE, version_ids[2]).version_id)
    require_open(backend, STORE, version_ids[3])
