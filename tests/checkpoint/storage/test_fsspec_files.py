"""Files in object stores: whole, created once, and refused where that cannot be had."""

from __future__ import annotations

import gc
import pickle
import subprocess
import sys
import uuid
from collections.abc import Iterator
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry, known_implementations
from fsspec.spec import AbstractBufferedFile

from checkpoint import (
    AlreadyExistsError,
    CheckpointError,
    StorageRefusedError,
    StorageUncertainError,
)
from checkpoint.storage import fsspec_files
from checkpoint.storage.fsspec_files import FsspecFiles
from checkpoint.testing import check_files
from tests.support.s3_server import S3Server


def new_files() -> FsspecFiles:
    return FsspecFiles(f"memory://{uuid.uuid4()}/checkpoint/")


class ObjectStore(MemoryFileSystem):
    """An object store in memory that caches listings and can be made to fail.

    Its methods have the signatures of s3fs.
    """

    protocol = "s3"
    cachable = False
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    failing: tuple[str, BaseException] | None = None
    listings: ClassVar[dict[str, Any]] = {}

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return "/" + path.removeprefix("s3://").strip("/")

    def maybe_fail(self, call: str) -> None:
        if self.failing is not None and self.failing[0] == call:
            raise self.failing[1]

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        self.maybe_fail("create")
        super().pipe_file(path, value, mode, **options)

    def cat_file(
        self,
        path: str,
        version_id: str | None = None,
        start: int | None = None,
        end: int | None = None,
        **options: Any,
    ) -> Any:
        assert version_id is None, f"nothing reads an older version of {path}, got {version_id!r}"
        return super().cat_file(path, start, end, **options)

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        self.maybe_fail("ls")
        if path not in self.listings:
            self.listings[path] = super().ls(path, detail, **options)
        return self.listings[path]

    def invalidate_cache(self, path: str | None = None) -> None:
        self.listings.clear()

    def info(self, path: str, **options: Any) -> Any:
        self.maybe_fail("info")
        return super().info(path, **options)


class Upload(AbstractBufferedFile):
    """A file that is sent in parts, which the last request makes a file, as s3fs does."""

    def _initiate_upload(self) -> None:
        self.parts: list[bytes] = []

    def _upload_chunk(self, final: bool = False) -> bool:
        self.fs.maybe_fail("part")
        self.parts.append(self.buffer.getvalue())
        self.fs.part_sizes.append(len(self.parts[-1]))
        if final:
            mode = "create" if self.mode == "xb" else "overwrite"
            self.fs.pipe_file(self.path, b"".join(self.parts), mode=mode)
        return True

    def discard(self) -> None:
        self.fs.given_up.append(self.path)


class StoreOfParts(ObjectStore):
    """An object store that takes large files in parts."""

    part_sizes: ClassVar[list[int]] = []
    given_up: ClassVar[list[str]] = []

    def _open(
        self, path: str, mode: str = "rb", block_size: int | None = None, **options: Any
    ) -> Any:
        if block_size is None:
            return super()._open(path, mode, **options)
        return Upload(self, path, mode, block_size, size=0)


class CarelessStore(ObjectStore):
    """An object store that ignores the condition of a create."""

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        super().pipe_file(path, value, "overwrite", **options)


@pytest.fixture
def object_store(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[ObjectStore]]:
    """Put the object store in the place of s3, with nothing in it."""
    monkeypatch.setitem(_registry, "s3", ObjectStore)
    monkeypatch.setattr(ObjectStore, "store", {})
    monkeypatch.setattr(ObjectStore, "failing", None)
    return ObjectStore


def test_they_conform() -> None:
    """All promises of Files hold in fsspec's memory."""
    check_files(new_files)


def test_they_conform_with_the_signatures_of_s3fs(object_store: type[ObjectStore]) -> None:
    """File systems of fsspec order their parameters differently, so ranges are given by name."""
    check_files(lambda: FsspecFiles(f"s3://bucket/{uuid.uuid4()}"))


@pytest.fixture
def on_s3(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """Let s3fs in this process contact the server."""
    for name, value in s3.environment().items():
        monkeypatch.setenv(name, value)
    return s3


def test_they_conform_on_s3(on_s3: S3Server) -> None:
    """All promises of Files hold for s3fs and a server."""
    check_files(lambda: FsspecFiles(on_s3.new_url()))


def test_a_large_file_on_s3(on_s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file in parts is created once, also by s3fs and a server."""
    monkeypatch.setattr(fsspec_files, "PART_BYTES", 5 << 20)  # the least that S3 takes
    chunks = [bytes([number]) * (1 << 20) for number in range(12)]
    files = FsspecFiles(on_s3.new_url())
    assert files.create("a", chunks) == 12 << 20
    with pytest.raises(AlreadyExistsError, match="are created only once"):
        files.create("a", chunks)
    assert b"".join(files.read_chunks("a", 7 << 20)) == b"".join(chunks)


def test_they_travel_to_workers() -> None:
    """A pickled copy reads what the original created, and needs no second proof."""
    files = new_files()
    files.create("a", [b"x"])
    copy = pickle.loads(pickle.dumps(files))
    assert copy.url == files.url
    assert copy.read("a") == b"x"
    assert copy._is_proved


@pytest.mark.parametrize(
    "url", ["sftp://host/x", "ftp://host/x", "hdfs://host/x", "simplecache::s3://b/x", "nonsense"]
)
def test_protocols_without_exclusive_create_are_refused(url: str) -> None:
    """A file system that cannot create once cannot hold a checkpoint, and the message says so."""
    with pytest.raises(StorageRefusedError, match="is not known to create a file whole and only"):
        FsspecFiles(url).create("a", [b"x"])


def test_a_store_that_ignores_the_condition_is_found_out(
    object_store: type[ObjectStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The right protocol is not enough: the storage itself has to refuse a second create."""
    monkeypatch.setitem(_registry, "s3", CarelessStore)
    with pytest.raises(StorageRefusedError, match=r"s3://bucket replaces an existing file"):
        FsspecFiles("s3://bucket").create("a", [b"x"])
    assert object_store.store == {}


def test_the_proof_leaves_nothing_and_is_made_once(object_store: type[ObjectStore]) -> None:
    """The probe is deleted, and the second create makes none."""
    files = FsspecFiles("s3://bucket/c")
    files.create("a", [b"x"])
    assert sorted(object_store.store) == ["/bucket/c/a"]
    object_store.failing = ("ls", AssertionError("no call but one"))
    files.create("b", [b"x"])
    assert sorted(object_store.store) == ["/bucket/c/a", "/bucket/c/b"]


@pytest.fixture
def in_parts(
    object_store: type[ObjectStore], monkeypatch: pytest.MonkeyPatch
) -> type[StoreOfParts]:
    """Let a file of more than 100 bytes be a large one."""
    monkeypatch.setitem(_registry, "s3", StoreOfParts)
    monkeypatch.setattr(fsspec_files, "PART_BYTES", 100)
    monkeypatch.setattr(StoreOfParts, "part_sizes", [])
    monkeypatch.setattr(StoreOfParts, "given_up", [])
    return StoreOfParts


def large(upto: int = 1000, fails: BaseException | None = None) -> Iterator[bytes]:
    for number in range(0, upto, 20):
        yield f"{number:020}".encode()
    if fails is not None:
        raise fails


def test_a_large_file_is_sent_in_parts(in_parts: type[StoreOfParts]) -> None:
    """No more of it than two parts is in memory at a time; it is created once, as any other."""
    files = FsspecFiles("s3://bucket/c")
    assert files.create("a", large()) == 1000
    assert files.read("a") == b"".join(large())
    assert max(in_parts.part_sizes) <= 120
    with pytest.raises(AlreadyExistsError, match="are created only once"):
        files.create("a", large(1020))
    assert files.read("a") == b"".join(large())
    in_parts.part_sizes.clear()
    assert files.create("b", large(100)) == 100
    assert in_parts.part_sizes == []
    check_files(lambda: FsspecFiles(f"s3://bucket/{uuid.uuid4()}"))


@pytest.mark.parametrize(
    ("call", "error", "kind"),
    [
        ("part", TimeoutError("slow"), StorageRefusedError),
        ("part", PermissionError("no"), StorageRefusedError),
        ("create", TimeoutError("slow"), StorageUncertainError),
        ("create", PermissionError("no"), StorageRefusedError),
    ],
)
def test_of_a_file_in_parts_only_the_last_request_is_uncertain(
    in_parts: type[StoreOfParts], call: str, error: Exception, kind: type[CheckpointError]
) -> None:
    """What was sent before is given up, and never becomes a file."""
    files = FsspecFiles("s3://bucket/c")
    files.require_exclusive_create()
    in_parts.failing = (call, error)
    with pytest.raises(kind, match=r"s3://bucket/c/a") as raised:
        files.create("a", large())
    assert type(raised.value) is kind
    in_parts.failing = None
    gc.collect()
    assert files.list("") == []
    assert in_parts.given_up == ["/bucket/c/a"]


def test_an_error_of_who_makes_a_large_file_leaves_nothing(in_parts: type[StoreOfParts]) -> None:
    """It is passed on as it is."""
    files = FsspecFiles("s3://bucket/c")
    with pytest.raises(LookupError, match="no such state"):
        files.create("a", large(fails=LookupError("no such state")))
    gc.collect()
    assert files.list("") == []
    assert in_parts.given_up == ["/bucket/c/a"]


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A protocol whose package is not installed says so before anything is done."""
    monkeypatch.delitem(_registry, "gs", raising=False)
    monkeypatch.setitem(known_implementations, "gs", {"class": "no_such.Package", "err": "get it"})
    with pytest.raises(
        StorageRefusedError, match=r"get it; .* package of that protocol is installed"
    ):
        FsspecFiles("gs://bucket").create("a", [b"x"])


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (FileExistsError("there"), AlreadyExistsError),
        (PermissionError("no"), StorageRefusedError),
        (FileNotFoundError("no bucket"), StorageRefusedError),
        (NotImplementedError("no"), StorageRefusedError),
        (TimeoutError("slow"), StorageUncertainError),
        (OSError("connection reset"), StorageUncertainError),
        (RuntimeError("anything else"), StorageUncertainError),
    ],
)
def test_errors_of_a_create_tell_whether_it_may_have_happened(
    object_store: type[ObjectStore], error: Exception, kind: type[CheckpointError]
) -> None:
    """What was refused did not happen; what was lost on the way may have."""
    files = FsspecFiles("s3://bucket/c")
    files.require_exclusive_create()
    object_store.failing = ("create", error)
    with pytest.raises(kind, match=r"s3://bucket/c/a") as raised:
        files.create("a", [b"x"])
    assert type(raised.value) is kind
    assert raised.value.__cause__ is error


def test_an_error_of_the_network_is_not_taken_for_absence(
    object_store: type[ObjectStore],
) -> None:
    """A listing or a look that failed is an error: no commits would mean to start from nothing."""
    files = FsspecFiles("s3://bucket/c")
    files.create("commits/1", [b"x"])
    object_store.failing = ("ls", OSError("connection reset"))
    with pytest.raises(StorageRefusedError, match=r"cannot list .*connection reset"):
        files.list("commits/")
    object_store.failing = ("info", OSError("connection reset"))
    with pytest.raises(StorageRefusedError, match=r"cannot look up .*connection reset"):
        files.exists("commits/1")
    with pytest.raises(StorageRefusedError, match="cannot read"):
        list(files.read_chunks("commits/1", 10))


def test_what_others_created_since_is_listed(object_store: type[ObjectStore]) -> None:
    """The listing that fsspec remembers is not taken for the listing of now."""
    files = FsspecFiles("s3://bucket/c")
    files.create("commits/1", [b"x"])
    assert files.list("commits/") == ["commits/1"]
    object_store.store["/bucket/c/commits/2"] = object_store.store["/bucket/c/commits/1"]
    assert files.list("commits/") == ["commits/1", "commits/2"]


def test_in_memory_one_thread_creates_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """fsspec's memory looks first and stores then; a lock makes one step of the two."""
    files = new_files()
    files.require_exclusive_create()
    held = []
    store = MemoryFileSystem.pipe_file

    def pipe_file(*args: Any, **options: Any) -> None:
        held.append(fsspec_files._memory_lock.locked())
        store(*args, **options)

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", pipe_file)
    files.create("a", [b"x"])
    assert held == [True]


def test_passwords_and_options_are_not_shown() -> None:
    """What is printed, or goes into a message, has no secrets."""
    files = FsspecFiles("s3://user:hunter2@host/x", key="hunter3")
    assert files.url == "s3://user:***@host/x"
    assert repr(files) == "FsspecFiles('s3://user:***@host/x')"
    assert FsspecFiles("abfs://box@account.net/x").url == "abfs://box@account.net/x"
    for password in ("a/b", "a@b", "a:b", "//@"):
        assert FsspecFiles(f"s3://user:{password}@host/x").url == "s3://user:***@host/x"
    assert FsspecFiles("az://box/x?sig=hunter2&sv=2").url == "az://box/x?sig=***&sv=***"


def test_errors_of_a_file_system_repeat_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither from the URL nor from the options."""
    files = FsspecFiles(f"memory://{uuid.uuid4()}", account_key="hunter22")

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError("403 of https://box.net/x?sig=hunter23 with hunter22")

    monkeypatch.setattr(MemoryFileSystem, "cat_file", refuse)
    with pytest.raises(StorageRefusedError, match=r"x\?sig=\*\*\* with \*\*\*; check"):
        files.read("a")


def test_foreign_files_are_not_listed() -> None:
    """Only names that create could have made are listed."""
    files = new_files()
    files.create("d/one", [b"x"])
    fs, root = fsspec.core.url_to_fs(files.url)
    for name in (".probe-1", "a b", "one~"):
        fs.pipe_file(f"{root}/d/{name}", b"x")
    assert files.list("") == ["d/one"]


def test_importing_checkpoint_does_not_import_fsspec() -> None:
    """Workers on local disks do not pay for it."""
    code = "import sys, checkpoint; print('fsspec' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert done.stdout.strip() == "False"


def test_a_file_is_replaced() -> None:
    """By one request, with what follows the condition of a create left out."""
    files = new_files()
    files.create("a/file", [b"old"])
    files.replace("a/file", [b"new ", b"content"])
    assert files.read("a/file") == b"new content"
    assert files.list("") == ["a/file"]


def test_a_large_file_is_replaced_in_parts(in_parts: type[StoreOfParts]) -> None:
    """Until the last request the old one is there."""
    files = FsspecFiles("s3://bucket/c")
    files.create("a", [b"old"])
    with pytest.raises(ValueError, match="no more"):
        files.replace("a", large(1000, ValueError("no more")))
    assert files.read("a") == b"old"
    in_parts.part_sizes.clear()
    files.replace("a", large())
    assert files.read("a") == b"".join(large())
    assert max(in_parts.part_sizes) <= 120
