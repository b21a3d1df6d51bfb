"""Files in an object store, or in memory, through fsspec.

fsspec is imported when the first file is used: checkpoints on local disks do not pay its 60 ms and
18 MB in every worker process.
"""

from __future__ import annotations

import contextlib
import re
import secrets  # noqa: TID251
import threading
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from checkpoint.errors import AlreadyExistsError, StorageRefusedError, StorageUncertainError
from checkpoint.storage.files import Names, is_name, require_name, require_prefix

EXCLUSIVE_PROTOCOLS = frozenset({"abfs", "abfss", "az", "gcs", "gs", "memory", "s3", "s3a"})
"""Protocols whose fsspec file system creates a file atomically, and only if it is absent.

According to the sources of s3fs, gcsfs and adlfs (2026.8 to 2026.10): one conditional request
(``If-None-Match``, ``ifGenerationMatch``, ``overwrite=False``), the last one of a multipart upload.
Others check first and then write, or show a file while it is being written.
"""

PART_BYTES = 16 << 20
"""Size of an upload part; a process buffers about two of them."""

_NOT_DONE = (FileNotFoundError, PermissionError, NotImplementedError, TypeError, ValueError)

# fsspec's memory file system checks and then stores, in two steps.
_memory_lock = threading.Lock()


_LEAST_SECRET = 6  # characters; a shorter value may be any word
_PASSWORD = re.compile(r"//([^/:@\s]*):[^\s]*@")
_PARAMETER = re.compile(r"([?&][^=&\s]+=)[^&\s]+")


def without_secrets(text: str) -> str:
    """Return *text* without passwords and parameter values (``?sig=...``) in its URLs.

    >>> without_secrets("abfs://user:a/b@c@host/x?sv=2024&sig=abc")
    'abfs://user:***@host/x?sv=***&sig=***'
    """
    return _PARAMETER.sub(r"\1***", _PASSWORD.sub(r"//\1:***@", text))


class FsspecFiles:
    """Files below *url* of an fsspec file system that can create exclusively.

    A file is sent in one conditional request, or, if it is larger than :data:`PART_BYTES`, in parts
    and a last, conditional request that creates it. So it is created atomically even if the sender
    dies, and a failure before that request changes nothing. A probe before the first create detects
    servers that ignore the condition, as some S3 look-alikes do.
    """

    def __init__(self, url: str, **options: Any) -> None:
        self._url = url.rstrip("/")
        self._options = options
        self._is_proved = False

    @property
    def url(self) -> str:
        """The location, without the secrets in it."""
        return without_secrets(self._url)

    def __repr__(self) -> str:
        return f"FsspecFiles({self.url!r})"

    def require_exclusive_create(self) -> None:
        """Raise StorageRefusedError unless a second create of a name fails on this storage."""
        fs, root = self._connect()
        probe = f"{root}/.probe-{secrets.token_hex(8)}"
        with self._refusing("create a file in", ""):
            fs.pipe_file(probe, b"probe", mode="create")
        try:
            with self._refusing("create a file in", ""):
                fs.pipe_file(probe, b"second", mode="create")
        except AlreadyExistsError:
            self._is_proved = True
        finally:
            with contextlib.suppress(Exception):
                fs.rm_file(probe)
        if not self._is_proved:
            raise StorageRefusedError(
                f"{self.url} replaces an existing file instead of refusing to create it, so "
                "two drivers could commit the same batch; upgrade that storage or its fsspec "
                "package, or use another one"
            )

    def create(self, name: str, chunks: Iterable[bytes | memoryview]) -> int:
        require_name(name)
        if not self._is_proved:
            self.require_exclusive_create()
        fs, root = self._connect()
        is_memory = fs.protocol == "memory"  # which shows a file before its last part
        begin: list[bytes | memoryview] = []
        size_bytes, rest = 0, iter(chunks)
        for chunk in rest:
            begin.append(chunk)
            size_bytes += memoryview(chunk).nbytes
            if size_bytes > PART_BYTES and not is_memory:
                return self._create_in_parts(fs, f"{root}/{name}", name, chain(begin, rest))
        data = b"".join(begin)
        with self._creating(name), _memory_lock if is_memory else contextlib.nullcontext():
            fs.pipe_file(f"{root}/{name}", data, mode="create")
        return size_bytes

    def replace(self, name: str, chunks: Iterable[bytes | memoryview]) -> None:
        fs, root = self._connect()
        path = f"{root}/{require_name(name)}"
        data: list[bytes] = []
        size_bytes, rest = 0, iter(chunks)
        for chunk in rest:
            data.append(bytes(chunk))
            size_bytes += len(data[-1])
            if size_bytes > PART_BYTES and fs.protocol != "memory":
                self._create_in_parts(fs, path, name, chain(data, rest), "wb")
                return
        with self._creating(name):
            fs.pipe_file(path, b"".join(data), mode="overwrite")

    def _create_in_parts(
        self, fs: Any, path: str, name: str, chunks: Iterable[bytes | memoryview], mode: str = "xb"
    ) -> int:
        with self._creating(name, is_last=False):
            upload = fs.open(path, mode, block_size=PART_BYTES)
        size_bytes = 0
        try:
            for chunk in chunks:
                with self._creating(name, is_last=False):
                    upload.write(chunk)
                size_bytes += memoryview(chunk).nbytes
            with self._creating(name):
                upload.close()
        except BaseException:
            with contextlib.suppress(Exception):
                upload.discard()
            upload.closed = True  # or garbage collection would close it, and so create the file
            raise
        return size_bytes

    @contextlib.contextmanager
    def _creating(self, name: str, *, is_last: bool = True) -> Iterator[None]:
        """Raise an error by whether the file may exist: only the last request creates it."""
        try:
            yield
        except FileExistsError as error:
            raise AlreadyExistsError(
                f"{self.url}/{name} exists already, and files are created only once"
            ) from error
        except Exception as error:
            is_uncertain = is_last and not isinstance(error, _NOT_DONE)
            kind = StorageUncertainError if is_uncertain else StorageRefusedError
            raise kind(self._message("create", name, error)) from error

    def read_chunks(self, name: str, chunk_bytes: int) -> Iterator[bytes]:
        require_name(name)
        fs, root = self._connect()
        path = f"{root}/{name}"
        with self._refusing("read", name):
            size_bytes = int(fs.info(path)["size"])
        for start in range(0, size_bytes, chunk_bytes):
            end = min(start + chunk_bytes, size_bytes)
            with self._refusing("read", name):
                # As keywords: the second parameter of s3fs is the version of the object.
                chunk = bytes(fs.cat_file(path, start=start, end=end))
            yield chunk

    def read(self, name: str) -> bytes:
        fs, root = self._connect()
        with self._refusing("read", require_name(name)):
            return bytes(fs.cat_file(f"{root}/{name}"))

    def exists(self, name: str) -> bool:
        fs, root = self._connect()
        try:
            with self._refusing("look up", require_name(name)):
                return bool(fs.info(f"{root}/{name}")["type"] == "file")
        except FileNotFoundError:
            return False

    def list(self, prefix: str) -> Names:
        directory = require_prefix(prefix).rpartition("/")[0]
        fs, root = self._connect()
        with self._refusing("list", directory):
            paths = list(_walk(fs, f"{root}/{directory}".rstrip("/")))
        names = (path.removeprefix(f"{root}/") for path in paths)
        return sorted(name for name in names if name.startswith(prefix) and is_name(name))

    def directories(self, directory: str = "") -> Names:
        fs, root = self._connect()
        above = f"{root}/{require_name(directory)}" if directory else root
        with self._refusing("list", directory):
            try:
                entries = fs.ls(above, detail=True)
            except FileNotFoundError:
                return []
        paths = (entry["name"].rstrip("/") for entry in entries if entry["type"] == "directory")
        names = (path.removeprefix(f"{above}/") for path in paths if path != above)
        return sorted(name for name in names if is_name(name))

    def delete(self, name: str) -> None:
        fs, root = self._connect()
        with contextlib.suppress(FileNotFoundError), self._refusing("delete", require_name(name)):
            fs.rm_file(f"{root}/{name}")

    def _connect(self) -> tuple[Any, str]:
        """Return the file system and the path of the root in it.

        fsspec caches one connection per process and set of options, so this is cheap, and safe in a
        forked worker.
        """
        protocol = self._url.partition(":")[0]
        if protocol not in EXCLUSIVE_PROTOCOLS:
            raise StorageRefusedError(
                f"{self.url} cannot hold a checkpoint: {protocol} is not known to create a file "
                "whole and only if it is absent; use a path of a local or mounted file system, or "
                f"one of {', '.join(sorted(EXCLUSIVE_PROTOCOLS))}"
            )
        import fsspec.core  # noqa: PLC0415

        try:
            fs, root = fsspec.core.url_to_fs(self._url, **self._options)
        except Exception as error:
            raise StorageRefusedError(
                f"cannot open {self.url}: {self._reason(error)}; check the URL, its storage "
                "options, and that the fsspec package of that protocol is installed"
            ) from error
        fs.invalidate_cache()  # others may have created files since the cached listing
        return fs, str(root).rstrip("/")

    @contextlib.contextmanager
    def _refusing(self, action: str, name: str) -> Iterator[None]:
        try:
            yield
        except FileExistsError as error:
            raise AlreadyExistsError(self._message(action, name, error)) from error
        except FileNotFoundError:
            raise
        except Exception as error:
            raise StorageRefusedError(self._message(action, name, error)) from error

    def _message(self, action: str, name: str, error: Exception) -> str:
        return (
            f"cannot {action} {self.url}/{name}: {self._reason(error)}; "
            "check that storage, its credentials and the network"
        )

    def _reason(self, error: Exception) -> str:
        """Return the text of an error of the file system without secrets."""
        reason = without_secrets(str(error) or type(error).__name__)
        for value in self._options.values():
            if isinstance(value, str) and len(value) >= _LEAST_SECRET:
                reason = reason.replace(value, "***")
        return reason


def _walk(fs: Any, directory: str) -> Iterator[str]:
    """Yield the paths of all files below *directory*.

    ``fs.find`` and ``fs.isfile`` treat a network error as "not found", and a checkpoint that seems
    to have no commits would start from scratch.
    """
    try:
        entries = fs.ls(directory, detail=True)
    except FileNotFoundError:
        return
    for entry in entries:
        path = entry["name"].rstrip("/")
        if entry["type"] != "directory":
            yield path
        elif path != directory:  # some stores list a directory in itself
            yield from _walk(fs, path)
