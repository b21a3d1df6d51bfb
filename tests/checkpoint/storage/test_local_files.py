"""Local files are complete, durable, private, and created once, also if the machine fails."""

from __future__ import annotations

import errno
import itertools
import os
import pickle
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from checkpoint import (
    AlreadyExistsError,
    CheckpointError,
    CorruptCheckpointError,
    LocalFiles,
    NotDurableError,
    StorageRefusedError,
    StorageUncertainError,
)
from checkpoint.testing import check_files
from tests.support.faults import SimulatedCrash


@pytest.fixture
def files(tmp_path: Path) -> LocalFiles:
    return LocalFiles(str(tmp_path))


def test_they_conform(tmp_path: Path) -> None:
    """A local directory fulfils the contract of Files."""
    numbers = itertools.count()

    def factory() -> LocalFiles:
        files = LocalFiles(str(tmp_path / str(next(numbers))))
        files.make_root()
        return files

    check_files(factory)


def test_they_travel_to_workers(files: LocalFiles) -> None:
    """A pickled copy reads what the original created."""
    files.create("a", [b"x"])
    copy = pickle.loads(pickle.dumps(files))
    assert copy == files
    assert copy.read("a") == b"x"


def test_a_relative_root_does_not_depend_on_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers with another working directory use the same directory."""
    monkeypatch.chdir(tmp_path)
    files = LocalFiles("here/")
    files.make_root()
    monkeypatch.chdir("/")
    files.create("a", [b"x"])
    assert (tmp_path / "here" / "a").read_bytes() == b"x"
    assert files.url == f"file://{tmp_path}/here"


def test_everything_is_private_whatever_the_umask(tmp_path: Path) -> None:
    """Directories are 0700 and files 0600 under umask 0."""
    files = LocalFiles(str(tmp_path / "new" / "root"))
    before = os.umask(0)
    try:
        files.make_root()
        files.create("state/counts/a", [b"x"])
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
    assert modes == {"new": 0o700, "root": 0o700, "state": 0o700, "counts": 0o700, "a": 0o600}


def test_each_step_is_durable_before_the_next(
    tmp_path: Path, faulty_os: Callable[..., Any]
) -> None:
    """Bytes are synced before they are linked, and the name before create returns."""
    root = tmp_path / "root"
    root.mkdir()
    files = LocalFiles(str(root))
    calls = faulty_os(0, SimulatedCrash()).calls
    files.create("d/one", [b"x", b"y"])
    create = ["open temp", "write temp", "fsync temp", "link temp", "unlink temp", "fsync d"]
    create.insert(1, "write temp")
    assert calls == ["mkdir d", "fsync root", *create]
    calls.clear()
    files.create("d/two", [b"xy"])
    create.remove("write temp")
    assert calls == create


def test_a_directory_made_by_another_process_is_synced_too(
    files: LocalFiles, tmp_path: Path, faulty_os: Callable[..., Any]
) -> None:
    """Its creator may have died before it synced the entry."""
    (tmp_path / "d").mkdir()
    calls = faulty_os(0, SimulatedCrash()).calls
    files.create("d/one", [b"x"])
    assert calls[:2] == [f"fsync {tmp_path.name}", "open temp"]


def test_a_crash_at_any_system_call_leaves_the_whole_file_or_none(
    tmp_path: Path, faulty_os: Callable[..., Any]
) -> None:
    """After each crash the file is complete or absent, and the name still works."""
    seen = set()
    for at in itertools.count(1):
        root = tmp_path / str(at)
        root.mkdir()
        files = LocalFiles(str(root))
        faulty = faulty_os(at, SimulatedCrash())
        try:
            files.create("a/b/one", [b"x" * 1000, b"y" * 1000])
        except SimulatedCrash:
            pass
        else:
            break
        faulty_os(0, SimulatedCrash())
        names = files.list("")
        assert names in ([], ["a/b/one"]), faulty.calls
        seen.add(len(names))
        if names:
            assert files.read("a/b/one") == b"x" * 1000 + b"y" * 1000
        else:
            assert files.create("a/b/one", [b"again"]) == 5
            assert files.read("a/b/one") == b"again"
    assert not faulty.fired
    assert at > 10
    assert seen == {0, 1}


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EACCES])
def test_an_error_at_any_system_call_says_truthfully_whether_it_happened(
    tmp_path: Path, faulty_os: Callable[..., Any], number: int
) -> None:
    """After a refusal no file exists, and a retry works; without an error it is complete."""
    for at in itertools.count(1):
        root = tmp_path / str(at)
        root.mkdir()
        files = LocalFiles(str(root))
        faulty = faulty_os(at, OSError(number, os.strerror(number)))
        error: CheckpointError | None = None
        try:
            files.create("d/one", [b"x"])
        except CheckpointError as raised:
            error = raised
        faulty_os(0, SimulatedCrash())
        if isinstance(error, StorageRefusedError):
            assert [path.name for path in root.rglob("*") if path.is_file()] == [], faulty.calls
            assert files.create("d/one", [b"x"]) == 1
        elif not isinstance(error, StorageUncertainError):
            assert error is None
            assert files.read("d/one") == b"x"
        if not faulty.fired:
            break
    assert at > 8


@pytest.mark.parametrize(
    ("fault", "kind", "said"),
    [
        (("write", 1, errno.ENOSPC), StorageRefusedError, r"cannot write .*one: .*; free space"),
        (("fsync", 2, errno.EIO), StorageRefusedError, r"cannot sync .*one: "),
        (("link", 1, errno.EPERM), StorageRefusedError, "needs hard links"),
        (("link", 1, errno.EACCES), StorageRefusedError, "give user id "),
        (("link", 1, errno.EIO), StorageUncertainError, r"cannot link .*one: "),
        (("fsync", 3, errno.EIO), NotDurableError, r"cannot sync the directory of .*one: "),
        (("open", 1, errno.EMFILE), StorageRefusedError, r"ulimit -n"),
        (("mkdir", 1, errno.EROFS), StorageRefusedError, "mount that file system writable"),
    ],
)
def test_errors_name_the_file_and_the_remedy(
    files: LocalFiles,
    faulty_os: Callable[..., Any],
    fault: tuple[str, int, int],
    kind: type[Exception],
    said: str,
) -> None:
    """Each failing system call has its error class and remedy."""
    call, at, number = fault
    faulty = faulty_os(at, OSError(number, os.strerror(number)), only=call)
    with pytest.raises(kind, match=said) as raised:
        files.create("d/one", [b"x"])
    assert faulty.fired
    assert type(raised.value) is kind
    assert isinstance(raised.value.__cause__, OSError)


def test_short_writes_are_continued(files: LocalFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the system writes fewer bytes than given, the rest is written next."""
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:7]))
    assert files.create("one", [b"0123456789", b"abcdefghij"]) == 20
    assert files.read("one") == b"0123456789abcdefghij"


def test_a_failed_sync_is_not_tried_again_on_the_same_file(
    files: LocalFiles, faulty_os: Callable[..., Any]
) -> None:
    """A retry writes all bytes to another file."""
    calls = faulty_os(1, OSError(errno.EIO, "I/O error"), only="fsync").calls
    with pytest.raises(StorageRefusedError, match="cannot sync"):
        files.create("one", [b"x"])
    assert calls == ["open temp", "write temp", "unlink temp"]
    files.create("one", [b"x"])
    assert calls[3:6] == ["open temp", "write temp", "fsync temp"]


def test_an_existing_file_is_durable_before_it_is_reported(
    files: LocalFiles, tmp_path: Path, faulty_os: Callable[..., Any]
) -> None:
    """The directory is synced before AlreadyExistsError is raised."""
    files.create("one", [b"x"])
    calls = faulty_os(0, SimulatedCrash()).calls
    with pytest.raises(AlreadyExistsError, match="one exists already"):
        files.create("one", [b"x"])
    assert calls[-1] == f"fsync {tmp_path.name}"
    faulty_os(2, OSError(errno.EIO, "I/O error"), only="fsync")
    with pytest.raises(NotDurableError):
        files.create("one", [b"x"])


def test_a_repeated_link_of_nfs_is_recognised(
    files: LocalFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link that NFS created and then reported as existing is ours."""
    link = os.link

    def link_twice(source: str, target: str) -> None:
        link(source, target)
        link(source, target)

    monkeypatch.setattr(os, "link", link_twice)
    assert files.create("one", [b"x"]) == 1
    assert files.read("one") == b"x"


def test_an_existing_name_that_may_be_our_own_link_is_uncertain(
    files: LocalFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the owner of a link is unknown, the result is uncertain."""
    files.create("one", [b"x"])

    def fail(path: str) -> os.stat_result:
        raise OSError(errno.ESTALE, "stale file handle")

    monkeypatch.setattr(os, "stat", fail)
    with pytest.raises(StorageUncertainError, match=r"cannot link .*one: File exists"):
        files.create("one", [b"y"])


def test_a_deleted_root_is_not_made_anew(tmp_path: Path) -> None:
    """A stream whose directory was deleted fails instead of continuing in an empty one."""
    files = LocalFiles(str(tmp_path / "root"))
    files.make_root()
    files.create("d/one", [b"x"])
    shutil.rmtree(tmp_path / "root")
    for act in (lambda: files.create("d/two", [b"x"]), lambda: files.list("")):
        with pytest.raises(StorageRefusedError, match=r"root.*: No such file.*not recreated"):
            act()
    assert not (tmp_path / "root").exists()


def test_a_deleted_directory_below_the_root_is_made_again(
    files: LocalFiles, tmp_path: Path
) -> None:
    """Cached knowledge about directories is dropped when it proves wrong."""
    files.create("a/b/one", [b"x"])
    (tmp_path / "a/b/one").unlink()
    (tmp_path / "a/b").rmdir()
    (tmp_path / "a").rmdir()
    files.create("a/b/c/two", [b"x"])
    files.create("a/b/one", [b"x"])
    assert files.list("") == ["a/b/c/two", "a/b/one"]


def test_a_root_that_is_a_file_is_refused(tmp_path: Path) -> None:
    """A root that is a file is an error at once."""
    (tmp_path / "root").write_bytes(b"")
    with pytest.raises(StorageRefusedError, match="root: Not a directory"):
        LocalFiles(str(tmp_path / "root")).make_root()


def test_a_file_system_without_files() -> None:
    """The error says that the place is unsuitable, not that a directory is missing."""
    with pytest.raises(StorageRefusedError, match="cannot hold files; give a directory on a disk"):
        LocalFiles("/proc/checkpoint").make_root()


@pytest.mark.parametrize(
    ("flags", "remedy"),
    [(0, f"give user id {os.geteuid()} the permission"), (os.ST_RDONLY, "mount that file system")],
)
def test_a_directory_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: int, remedy: str
) -> None:
    """It is refused when it is opened, not at the first file."""
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_flag=flags))
    with pytest.raises(
        StorageRefusedError, match=f"cannot create a file in {tmp_path}: .*{remedy}"
    ):
        LocalFiles(str(tmp_path)).make_root()


def test_leftovers_of_others_are_not_listed(files: LocalFiles, tmp_path: Path) -> None:
    """Temporary and hidden files, backups, links and pipes are not listed."""
    files.create("d/one", [b"x"])
    for name in (".0123456789abcdef.tmp", ".DS_Store", ".one.crc", "one~", "#one#", "a b"):
        (tmp_path / "d" / name).write_bytes(b"x")
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden/one").write_bytes(b"x")
    (tmp_path / "d/link").symlink_to(tmp_path / "d/one")
    (tmp_path / "loop").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "d/pipe")
    assert files.list("") == ["d/one"]
    assert files.list("d/") == ["d/one"]


@pytest.mark.parametrize("kind", ["directory", "pipe", "link"])
def test_what_is_no_regular_file_is_refused_without_waiting(
    files: LocalFiles, tmp_path: Path, kind: str
) -> None:
    """A directory, pipe or symbolic link is an error, and is never read."""
    path = tmp_path / "one"
    if kind == "directory":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/etc/passwd")
    with pytest.raises(CorruptCheckpointError, match=r"one is a .*; expected a regular file"):
        files.read("one")
    assert not files.exists("one")


@pytest.mark.usefixtures("no_sync")
def test_a_file_is_replaced_whole(files: LocalFiles) -> None:
    """Open readers keep the old content; the file stays private, and nothing else is left."""
    files.create("a/file", [b"old content"])
    reading = files.read_chunks("a/file", 4)
    assert next(reading) == b"old "
    files.replace("a/file", [b"new ", b"content"])
    assert b"".join(reading) == b"content"
    assert files.read("a/file") == b"new content"
    path = Path(files.root) / "a/file"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.usefixtures("no_sync")
def test_a_file_that_cannot_be_replaced(files: LocalFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is unchanged; a missing one is not created."""
    with pytest.raises(StorageRefusedError, match=r"cannot replace .*a/file: No such file"):
        files.replace("a/file", [b"new"])
    files.create("a/file", [b"old"])

    def broken() -> Iterator[bytes]:
        yield b"new"
        raise SimulatedCrash

    with pytest.raises(SimulatedCrash):
        files.replace("a/file", broken())
    for number, error in ((errno.EROFS, StorageRefusedError), (errno.EIO, StorageUncertainError)):
        failure = OSError(number, os.strerror(number))
        monkeypatch.setattr(os, "rename", lambda *_, failure=failure: raise_it(failure))
        with pytest.raises(error, match="cannot replace"):
            files.replace("a/file", [b"new"])
    assert files.read("a/file") == b"old"
    assert [path.name for path in (Path(files.root) / "a").iterdir()] == ["file"]


def raise_it(error: Exception) -> None:
    raise error


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.usefixtures("no_sync")
def test_a_replaced_file_is_its_owners(files: LocalFiles) -> None:
    """If root replaces a file, its owner can still read it."""
    files.create("file", [b"old"])
    os.chown(Path(files.root) / "file", 12345, 54321)
    files.replace("file", [b"new"])
    status = (Path(files.root) / "file").stat()
    assert (status.st_uid, status.st_gid) == (12345, 54321)
