"""Files on HDFS, through hdfs-native: no JVM and no libhdfs, on the driver and on the workers.

What HDFS guarantees, as measured against Hadoop 3.5: a rename without overwrite is decided by the
NameNode, so one of several racing writers wins; a file that is being written is visible with fewer
bytes, so a file is written under a hidden name first; ``hsync`` returns when every DataNode of the
pipeline has the bytes on its disk.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

from checkpoint.errors import (
    AlreadyExistsError,
    CheckpointError,
    StorageRefusedError,
    StorageUncertainError,
)
from checkpoint.storage.files import (
    Names,
    is_name,
    is_temporary,
    require_name,
    require_prefix,
    temporary_name,
)
from checkpoint.storage.local_files import OTHERS_WRITE, untrusted

_T = TypeVar("_T")

PROTOCOLS = ("hdfs", "viewfs")

_KEPT_BYTES = 16 << 20
"""A file up to this size is kept until it is created, so that it can be written again."""
_ATTEMPTS = 3
"""The number of attempts to write a small file; a DataNode may fail during each of them."""

_ANSWER_S = 30
"""The time limit of a write step, after which a small file is retried on other DataNodes."""

_NO_NODES = "could only be written to 0 of"
"""The error of a NameNode that started a moment ago: a DataNode gets blocks after a heartbeat."""
_HEARTBEAT_S = 4
"""More than ``dfs.heartbeat.interval``, which is 3 s by default."""

_LOST = "RPC listener disconnected"
"""The client's error if a connection ended before the answer."""

_RETRIABLE = "RetriableException"
"""The error of a NameNode that became active and has not left safe mode yet."""
_RETRY_WAITS_S = (0.5, 1, 2, 4, 8, 15, 15, 15)
"""About the waits of Hadoop's own client, whose ``dfs.client.retry.max.attempts`` is 10."""

_AT_ONCE = 32

_REMEDIES = {
    "SafeMode": "the NameNode is in safe mode: wait, or run hdfs dfsadmin -safemode leave",
    "StandbyException": "no NameNode is active: see hdfs haadmin -getAllServiceState",
    "TimeoutError": "check HDFS: a NameNode must be active, and DataNodes and the network work",
    "QuotaExceeded": "free space, or raise the quota of that directory",
    "GSSAPI": "get a ticket of Kerberos by kinit, or name a keytab in KRB5_CLIENT_KTNAME",
    "PermissionError": "give the user of this driver the permission to write there",
    "AccessControlException": "give the user of this driver the permission to write there",
    _NO_NODES: "check that DataNodes run and have space: hdfs dfsadmin -report",
}
"""By a part of an error's type and text."""
_ANY_REMEDY = "check HDFS, its configuration and the network"

_PRIVATE = (0o700, 0o600)
_PUBLIC = (0o755, 0o644)
"""Modes of directories and files."""

_clients: dict[tuple[Any, ...], Any] = {}


class HdfsFiles:
    """Files below *url* on HDFS.

    A file is created in these steps::

        create a hidden temporary file    a unique name, in the same directory
        write, hsync, close               now the bytes are on all DataNodes of the pipeline
        rename to the final name          fails if the name is taken; the NameNode decides

    Only the rename creates the file, so what fails before it changes nothing. If the answer to the
    rename is lost, the temporary file is deleted: if it was there, the rename did not happen and
    never will; if not, the content of the file shows whether it is this one.

    A process that is killed on the way leaves at worst a hidden file, which is never listed;
    ``dstreams checkpoint gc`` deletes it.

    Args:
        url: ``hdfs://host:port/path``, ``hdfs://nameservice/path``, or ``hdfs:///path`` for the
            default file system. Hadoop's configuration is read from ``HADOOP_CONF_DIR``.
        is_private: the owner alone may read the files.
        options: of ``hdfs_native.Client``, such as ``kerberos_keytab``.
    """

    def __init__(self, url: str, *, is_private: bool = True, **options: Any) -> None:
        self._url = url.rstrip("/")
        self._is_private = is_private
        self._options = options
        parts = urlsplit(self._url)
        self._root = parts.path.rstrip("/")
        self._authority = f"{parts.scheme}://{parts.netloc}" if parts.netloc else None
        if not self._root.startswith("/"):
            raise ValueError(
                f"{url!r} names no directory; write hdfs://host/path, not the root of a file system"
            )

    @property
    def url(self) -> str:
        return self._url

    @property
    def at_once(self) -> int:
        return _AT_ONCE

    def __repr__(self) -> str:
        return f"HdfsFiles({self._url!r})"

    def require_exclusive_create(self) -> None:
        """Create the root, and raise StorageRefusedError unless files there can be made durable."""
        client = self._client()
        with self._refusing("create the directory", ""):
            _resent(partial(client.mkdirs, self._root, self._modes[0], True))
        self._own_name(client)

    def require_own(self, prefix: str = "") -> None:
        """Require that only this user and the superuser can write the files below *prefix*.

        HDFS grants the rights of an ACL only as far as the bits of the group, so these show them.

        Raises:
            UntrustedFileError: others can write a file, its directory, or a directory above.
            StorageRefusedError: this user, or the owner of a file, cannot be determined.
        """
        client = self._client()
        with self._refusing("read the owners of", ""):
            superuser = client.get_file_info("/").owner
            owners = (superuser, self._own_name(client))
            parts = self._root.split("/")
            for end in range(2, len(parts) + 1):
                path = "/".join(parts[:end])
                self._require_owner(path, client.get_file_info(path), owners, path != self._root)
            for status in _walk(client, self._root, f"{self._root}/{prefix}"):
                self._require_owner(status.path, status, owners)

    def _own_name(self, client: Any) -> str:
        """Return the name that HDFS knows this user by: the owner of a new file."""
        probe, _, _ = self._write_again(f"{self._root}/probe", "", [b"probe"])
        try:
            return str(client.get_file_info(probe).owner)
        finally:
            self._discard(client, probe)

    def _require_owner(
        self, path: str, status: Any, owners: tuple[str, str], is_above: bool = False
    ) -> None:
        is_sticky = is_above and bool(status.permission & stat.S_ISVTX)
        if status.owner not in owners:
            found = f"belongs to the user {status.owner} of HDFS"
            remedy = f"hdfs dfs -chown {owners[1]}"
        elif status.permission & OTHERS_WRITE and not is_sticky:
            found = f"can be written by others (mode {status.permission:04o})"
            remedy = "hdfs dfs -chmod go-w"
        else:
            return
        raise untrusted(f"{self._authority or 'hdfs://'}{path}", found, f"user {owners[1]}", remedy)

    def create(self, name: str, chunks: Iterable[bytes | memoryview]) -> int:
        return self._put(name, chunks, overwrite=False)

    def replace(self, name: str, chunks: Iterable[bytes | memoryview]) -> None:
        self._put(name, chunks, overwrite=True)

    def read_chunks(self, name: str, chunk_bytes: int) -> Iterator[bytes]:
        with self._refusing("read", require_name(name)):
            reader = self._reader(name)
        size_bytes = len(reader)
        for start in range(0, size_bytes, chunk_bytes):
            with self._refusing("read", name):
                chunk = bytes(reader.read_range(start, min(chunk_bytes, size_bytes - start)))
            yield chunk

    def read(self, name: str) -> bytes:
        with self._refusing("read", require_name(name)):
            return bytes(self._reader(name).read())

    def _reader(self, name: str) -> Any:
        return _retried(partial(self._client().read, f"{self._root}/{name}"))

    def exists(self, name: str) -> bool:
        try:
            with self._refusing("look up", require_name(name)):
                return not self._client().get_file_info(f"{self._root}/{name}").isdir
        except FileNotFoundError:
            return False

    def list(self, prefix: str) -> Names:
        directory = require_prefix(prefix).rpartition("/")[0]
        names = (
            status.path.removeprefix(f"{self._root}/")
            for status in self._statuses(directory, recursive=True)
            if not status.isdir
        )
        return sorted(name for name in names if name.startswith(prefix) and is_name(name))

    def directories(self, directory: str = "") -> Names:
        if directory:
            require_name(directory)
        names = (
            status.path.rpartition("/")[2]
            for status in self._statuses(directory, recursive=False)
            if status.isdir
        )
        return sorted(name for name in names if is_name(name))

    def delete(self, name: str) -> None:
        self.delete_temporary(require_name(name))

    def temporary(self) -> Names:
        """Return the names of temporary files, of running writers and of killed ones."""
        return sorted(
            status.path.removeprefix(f"{self._root}/")
            for status in self._statuses("", recursive=True)
            if not status.isdir and is_temporary(status.path.rpartition("/")[2])
        )

    def delete_temporary(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError), self._refusing("delete", name):
            _resent(partial(self._client().delete, f"{self._root}/{name}", False))

    @property
    def _modes(self) -> tuple[int, int]:
        return _PRIVATE if self._is_private else _PUBLIC

    def _client(self) -> Any:
        """Return this process's client: one from before a fork would never answer."""
        key = (os.getpid(), self._authority, repr(sorted(self._options.items())))
        if key not in _clients:
            try:
                import hdfs_native  # noqa: PLC0415 - an extra, and workers of other stores need none
            except ImportError as error:
                raise StorageRefusedError(
                    f"cannot open {self._url}: hdfs-native is not installed for this Python; "
                    "pip install 'dstreams[hdfs]' for the driver and the workers"
                ) from error
            try:
                _clients[key] = hdfs_native.Client(self._authority, **self._options)
            except Exception as error:
                raise StorageRefusedError(
                    f"cannot open {self._url}: {_reason(error)}; check the URL and the "
                    "configuration in HADOOP_CONF_DIR"
                ) from error
        return _clients[key]

    def _statuses(self, directory: str, *, recursive: bool) -> Iterator[Any]:
        path = f"{self._root}/{directory}".rstrip("/")
        try:
            with self._refusing("list", directory):
                yield from list(self._client().list_status(path, recursive))
        except FileNotFoundError:
            return

    def _put(self, name: str, chunks: Iterable[bytes | memoryview], *, overwrite: bool) -> int:
        path = f"{self._root}/{require_name(name)}"
        client = self._client()
        temp, size_bytes, checksum = self._write_temp(path, name, chunks)
        try:
            _retried(partial(client.rename, temp, path, overwrite))
        except FileExistsError as error:
            self._discard(client, temp)
            raise self._taken(name) from error
        except Exception as error:
            self._settle(client, temp, name, checksum, error)
        return size_bytes

    def _taken(self, name: str) -> AlreadyExistsError:
        return AlreadyExistsError(
            f"{self._url}/{name} exists already, and files are created only once"
        )

    def _write_temp(
        self, path: str, name: str, chunks: Iterable[bytes | memoryview]
    ) -> tuple[str, int, int]:
        """Write a temporary file; return its path, its size in bytes and its checksum."""
        kept: list[bytes | memoryview] = []
        size_bytes, rest = 0, iter(chunks)
        for chunk in rest:
            kept.append(chunk)
            size_bytes += memoryview(chunk).nbytes
            if size_bytes > _KEPT_BYTES:
                break
        else:
            return self._write_again(path, name, [b"".join(kept)])
        return self._write(path, chain(kept, rest), name)

    def _write_again(self, path: str, name: str, data: Iterable[bytes]) -> tuple[str, int, int]:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return self._write(path, data, name)
            except StorageRefusedError as error:
                cause = error.__cause__
                is_lasting = isinstance(cause, (PermissionError, FileExistsError))
                was_retried = _RETRIABLE in str(cause)
                if is_lasting or was_retried or attempt == _ATTEMPTS:
                    raise
                if _NO_NODES in str(cause):
                    threading.Event().wait(_HEARTBEAT_S)
        raise AssertionError("unreachable")

    def _write(
        self, path: str, chunks: Iterable[bytes | memoryview], name: str
    ) -> tuple[str, int, int]:
        """Write and sync a temporary file. An error leaves none, unless an answer was lost."""
        from hdfs_native import WriteOptions  # noqa: PLC0415 - see _client

        client = self._client()
        options = WriteOptions(permission=self._modes[1], overwrite=False, create_parent=True)

        def open_temp() -> tuple[str, Any]:
            temp = _temp_beside(path)
            return temp, client.create(temp, options)

        with self._refusing("create a file in", name):
            temp, writer = _resent(open_temp)
        size_bytes = checksum = 0
        try:
            for chunk in chunks:
                data = memoryview(chunk).cast("B")
                size_bytes += len(data)
                checksum = zlib.crc32(data, checksum)
                with self._refusing("write", name):
                    _bounded(writer.write, data)
            with self._refusing("sync", name):
                _bounded(writer.hsync)
                _bounded(writer.close)
        except BaseException:
            self._discard(client, temp)
            raise
        return temp, size_bytes, checksum

    def _settle(self, client: Any, temp: str, name: str, checksum: int, error: Exception) -> None:
        """Return if a rename whose answer was lost has happened; else raise."""
        message = self._message("create", name, error)
        try:
            if _resent(partial(client.delete, temp, False)):
                raise StorageRefusedError(message) from error
            found = 0
            for chunk in self.read_chunks(name, 1 << 20):
                found = zlib.crc32(chunk, found)
        except StorageRefusedError as refused:
            if refused.__cause__ is error:
                raise
            raise StorageUncertainError(message) from error
        except Exception:
            raise StorageUncertainError(message) from error
        if found != checksum:
            raise self._taken(name) from error

    def _discard(self, client: Any, temp: str) -> None:
        with contextlib.suppress(Exception):
            client.delete(temp, False)

    @contextlib.contextmanager
    def _refusing(self, action: str, name: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except CheckpointError:
            raise
        except Exception as error:
            raise StorageRefusedError(self._message(action, name, error)) from error

    def _message(self, action: str, name: str, error: Exception) -> str:
        where = f"{self._url}/{name}".rstrip("/")
        return f"cannot {action} {where}: {_reason(error)}; {_remedy(error)}"


def _bounded(call: Callable[..., _T], *arguments: Any) -> _T:
    """Return what *call* returns; raise TimeoutError if it takes longer than :data:`_ANSWER_S`.

    The client waits forever for a DataNode that died, and minutes for a NameNode that is down.
    """
    done: list[Any] = []

    def run() -> None:
        try:
            done[:] = [call(*arguments), None]
        except BaseException as error:
            done[:] = [None, error]

    thread = threading.Thread(target=run, daemon=True)  # noqa: TID251 - may never end
    thread.start()
    thread.join(_ANSWER_S)
    if not done:
        raise TimeoutError(f"no answer within {_ANSWER_S} s")
    result, error = done
    if error is not None:
        raise error
    return cast("_T", result)


def _resent(call: Callable[[], _T]) -> _T:
    """Return what *call* returns; call it once more if the answer of the NameNode was lost.

    The client sends only calls that read to the next NameNode if a connection ends. If it sent a
    create again, the file that exists would be its own.
    """
    bounded = partial(_bounded, call)
    try:
        return _retried(bounded)
    except OSError as error:
        if not isinstance(error, FileExistsError) and _LOST not in str(error):
            raise
    return _retried(bounded)


def _retried(call: Callable[[], _T]) -> _T:
    """Return the result of *call*, retried after a pause while the NameNode asks to retry."""
    for wait_s in _RETRY_WAITS_S:
        try:
            return call()
        except Exception as error:
            if _RETRIABLE not in str(error):
                raise
        threading.Event().wait(wait_s)
    return call()


def _walk(client: Any, directory: str, prefix: str) -> Iterator[Any]:
    """Yield the files whose paths begin with *prefix*, and the directories around them."""
    for status in list(client.list_status(directory, False)):
        within = f"{status.path}/" if status.isdir else status.path
        if not (within.startswith(prefix) or prefix.startswith(within)):
            continue
        yield status
        if status.isdir:
            yield from _walk(client, status.path, prefix)


def _temp_beside(path: str) -> str:
    return f"{path.rpartition('/')[0]}/{temporary_name()}"


def _reason(error: Exception) -> str:
    """Return the first line of an error: what follows is the NameNode's stack trace.

    The client escapes the ends of lines in some errors.
    """
    return re.split(r"\n|\\n", str(error) or type(error).__name__)[0]


def _remedy(error: Exception) -> str:
    text = f"{type(error).__name__} {error}"
    return next((remedy for part, remedy in _REMEDIES.items() if part in text), _ANY_REMEDY)
