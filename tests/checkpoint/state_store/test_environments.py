"""LMDB as it is: processes, forks, readers that died, maps that grow, limits of address space."""

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
from checkpoint.log.version_records import EMPTY, VersionId
from checkpoint.state_store import environments
from checkpoint.state_store.backend import Changes
from checkpoint.state_store.lmdb_backend import LmdbBackend
from checkpoint.state_store.replica import LmdbVersion, LocalSettings
from tests.support.replicas import close_unused
from tests.support.stores import commit, commit_up_to, require_content, require_open, store_of

pytestmark = pytest.mark.usefixtures("no_sync")

STORE = store_of()
ROOT = Path(__file__).parents[3]

# Opens the content that it is asked for and keeps it open until its input ends.
READER = """
import sys
from checkpoint import open_files
from checkpoint.state_store.lmdb_backend import LmdbBackend
from checkpoint.state_store.replica import LocalSettings
from checkpoint.log.version_records import VersionId
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
    """Another process that has a content open."""
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
    """One reads version 3 while the other goes on to 6 and grows the map; both are right."""
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
    """This one has the small map; what it opens next is in the part that it does not see."""
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
    """The map cannot be exchanged under a reader: this process goes on in a new generation."""
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
    """A killed process pins what it read only until somebody opens a content."""
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
    """The least used are closed, those with an open content are not."""
    stores = [store_of(partition, 8) for partition in range(8)]
    version_ids = {store: commit_up_to(backend, store, 2) for store in stores}
    held = backend.open(stores[0], version_ids[stores[0]][2])
    for store in stores:
        require_open(backend, store, version_ids[store][2])
    assert len(environments._table.open) <= backend.settings.max_open
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
    """Also when the parent is reading: its pages do not change under it."""
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
    """A limit on the memory of workers counts maps; the state is intact, and opens without it."""
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
    """A limit on files stands for a full disk: an error, and the replica as it was."""
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
