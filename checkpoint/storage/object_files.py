"""Files in an object store (S3, Google Cloud Storage, Azure), or in memory, through obstore.

obstore is imported when the first file is used: checkpoints on local disks do without it.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets  # noqa: TID251
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from itertools import chain
from typing import Any
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
    without_secrets,
)

PROTOCOLS = {
    **dict.fromkeys(("abfs", "abfss", "az"), "azure"),
    **dict.fromkeys(("gcs", "gs"), "gcs"),
    **dict.fromkeys(("memory", "s3", "s3a"), "s3"),
}
"""The extra of dstreams for each protocol."""

PART_BYTES = 16 << 20
"""Size of an upload part, and of what is read at a time; a process buffers about two of them."""

_AT_ONCE = 128
_ANSWER = timedelta(seconds=30)
_RETRIES: dict[str, Any] = {
    "max_retries": 6,
    "retry_timeout": timedelta(seconds=60),
    "backoff": {
        "init_backoff": timedelta(milliseconds=100),
        "max_backoff": timedelta(seconds=5),
        "base": 2,
    },
}
"""A request that is throttled, or fails in the server or the network, is sent again."""

_MADE_BY = "made-by"
"""Attribute of a small file: random bits of the create that made it."""

_REFUSED = re.compile(r"status(?: code)?:? 4(?!08|09|12|29)\d\d")
_TAKEN = ("AlreadyExistsError", "PreconditionError", "NotModifiedError")
_LEAST_SECRET = 6  # characters; a shorter value may be any word

_stores: dict[tuple[Any, ...], Any] = {}
_proved: set[tuple[Any, ...]] = set()


class ObjectFiles:
    """Files below *url* in an object store.

    A file is created in one conditional request. A file of more than :data:`PART_BYTES` is sent in
    parts to a hidden name, and the store copies it to its name by a conditional request. So a file
    is created atomically even if the sender dies, and a failure before the last request changes
    nothing. A probe before the first create detects stores that ignore the condition, as some S3
    look-alikes do.

    If the answer to a create is lost, an attribute of the file, or its content, shows whether it is
    this one.

    Args:
        url: such as ``s3://bucket/path``.
        options: configuration of the store of obstore; by default from the environment.
    """

    def __init__(self, url: str, **options: Any) -> None:
        self._url = url.rstrip("/")
        self._options = options
        self._proof: Future[None] | None = None
        self._is_proved = False

    @property
    def url(self) -> str:
        """The location, without the secrets in it."""
        return without_secrets(self._url)

    @property
    def at_once(self) -> int:
        return _AT_ONCE

    def __repr__(self) -> str:
        return f"ObjectFiles({self.url!r})"

    def __getstate__(self) -> dict[str, Any]:
        is_proved = self._is_proved or self._key in _proved
        return {**vars(self), "_proof": None, "_is_proved": is_proved}

    def start_proof(self) -> None:
        """Start :meth:`require_exclusive_create` in the background; the first create waits.

        Raises StorageRefusedError at once for what is wrong without asking the store.
        """
        self._store()
        thread = ThreadPoolExecutor(1, "checkpoint-proof")
        self._proof = thread.submit(self.require_exclusive_create)
        thread.shutdown(wait=False)

    def require_exclusive_create(self) -> None:
        """Raise StorageRefusedError unless a second create of a name fails in this store."""
        if self._is_proved or self._key in _proved:
            return
        store, probe = self._store(), self._path(f".probe-{secrets.token_hex(8)}")
        with self._refusing("create a file in", "", is_listing=True):
            store.put(probe, b"probe", mode="create")
        try:
            with self._refusing("create a file in", ""):
                store.put(probe, b"second", mode="create")
        except AlreadyExistsError:
            _proved.add(self._key)
        else:
            raise StorageRefusedError(
                f"{self.url} replaces an existing file instead of refusing to create it, so "
                "two drivers could commit the same batch; upgrade that store, or use another one"
            )
        finally:
            with contextlib.suppress(Exception):
                store.delete(probe)

    def create(self, name: str, chunks: Iterable[bytes | memoryview]) -> int:
        require_name(name)
        if self._proof is None:
            self.require_exclusive_create()
        else:
            self._proof.result()
        return self._put(name, chunks, "create")

    def replace(self, name: str, chunks: Iterable[bytes | memoryview]) -> None:
        self._put(require_name(name), chunks, "overwrite")

    def _put(self, name: str, chunks: Iterable[bytes | memoryview], mode: str) -> int:
        """Write a file in one request, or in parts if it is large, and return its size."""
        begin: list[bytes | memoryview] = []
        size_bytes, rest = 0, iter(chunks)
        for chunk in rest:
            begin.append(chunk)
            size_bytes += memoryview(chunk).nbytes
            if size_bytes > PART_BYTES:
                return self._put_parts(name, chain(begin, rest), mode)
        store, path, token = self._store(), self._path(name), secrets.token_hex(8)
        made_by, data = {_MADE_BY: token}, b"".join(begin)
        try:
            store.put(path, data, mode=mode, attributes=made_by, use_multipart=False)
        except Exception as error:
            self._settle(name, error, lambda: self._token(name) == token)
        return size_bytes

    def _put_parts(self, name: str, chunks: Iterable[bytes | memoryview], mode: str) -> int:
        """Send a file in parts to a hidden name, and let the store copy it to its own."""
        store, path, sent = self._store(), self._path(name), _Sent(chunks)
        temp = f"{path.rpartition('/')[0]}/{temporary_name()}".lstrip("/")
        try:
            try:
                store.put(temp, iter(sent), chunk_size=PART_BYTES, max_concurrency=2)
            except Exception as error:
                if sent.error is not None:
                    raise  # of the caller
                raise StorageRefusedError(self._message("write", name, error)) from error
            try:
                store.copy(temp, path, overwrite=mode != "create")
            except Exception as error:
                is_lost = not _is_named(error, *_TAKEN)
                self._settle(name, error, lambda: is_lost and self._checksum(name) == sent.checksum)
        finally:
            with contextlib.suppress(Exception):
                store.delete(temp)
        return sent.size_bytes

    def _settle(self, name: str, error: Exception, is_ours: Callable[[], bool]) -> None:
        """Return if a create whose answer was lost has happened; else raise.

        A request that is sent again is refused if the first one was carried out.
        """
        message = self._message("create", name, error)
        if not _is_named(error, *_TAKEN) and _is_refused(error):
            raise StorageRefusedError(message) from error
        try:
            if is_ours():
                return
        except Exception as unreadable:  # it is not there, or that is unknown
            raise StorageUncertainError(f"{message} ({self._reason(unreadable)})") from error
        raise AlreadyExistsError(
            f"{self.url}/{name} exists already, and files are created only once"
        ) from error

    def _token(self, name: str) -> object:
        return self._store().get(self._path(name)).attributes.get(_MADE_BY)

    def _checksum(self, name: str) -> int:
        sent = _Sent(self.read_chunks(name, PART_BYTES))
        for _ in sent:
            pass
        return sent.checksum

    def read_chunks(self, name: str, chunk_bytes: int) -> Iterator[bytes]:
        store, path = self._store(), self._path(require_name(name))
        with self._refusing("read", name):
            found = store.get(path)
            size_bytes = found.meta["size"]
            part = memoryview(b"" if size_bytes > PART_BYTES else found.bytes())
        del found
        for start in range(0, size_bytes, PART_BYTES):
            if size_bytes > PART_BYTES:
                end = min(start + PART_BYTES, size_bytes)
                with self._refusing("read", name):
                    part = memoryview(store.get_range(path, start=start, end=end))
            for first in range(0, len(part), chunk_bytes):
                yield bytes(part[first : first + chunk_bytes])

    def read(self, name: str) -> bytes:
        with self._refusing("read", require_name(name)):
            return bytes(self._store().get(self._path(name)).bytes())

    def exists(self, name: str) -> bool:
        try:
            with self._refusing("look up", require_name(name)):
                self._store().head(self._path(name))
        except FileNotFoundError:
            return False
        return True

    def list(self, prefix: str) -> Names:
        names = self._listed(require_prefix(prefix).rpartition("/")[0])
        return sorted(name for name in names if name.startswith(prefix) and is_name(name))

    def _listed(self, directory: str) -> Iterator[str]:
        """Yield all names below a directory; the store may write the parts of a path anew."""
        with self._refusing("list", directory, is_listing=True):
            found = self._store().list(self._path(directory)).collect()
        root = self._parts[1]
        depth = root.count("/") + 1 if root else 0
        return ("/".join(one["path"].split("/")[depth:]) for one in found)

    def directories(self, directory: str = "") -> Names:
        above = self._path(require_name(directory) if directory else "")
        with self._refusing("list", directory, is_listing=True):
            found = self._store().list_with_delimiter(above)["common_prefixes"]
        return sorted(filter(is_name, (path.rstrip("/").rpartition("/")[2] for path in found)))

    def delete(self, name: str) -> None:
        self.delete_temporary(require_name(name))

    def temporary(self) -> Names:
        """Return the names of temporary files, of running writers and of killed ones."""
        return sorted(name for name in self._listed("") if is_temporary(name.rpartition("/")[2]))

    def delete_temporary(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError), self._refusing("delete", name):
            self._store().delete(self._path(name))

    @property
    def _parts(self) -> tuple[str, str]:
        """The URL of the bucket, and the path in it."""
        parts = urlsplit(self._url)
        return f"{parts.scheme}://{parts.netloc}", parts.path.strip("/")

    @property
    def _key(self) -> tuple[Any, ...]:
        return (os.getpid(), self._parts[0], repr(sorted(self._options.items())))

    def _path(self, name: str) -> str:
        return f"{self._parts[1]}/{name}".strip("/")

    def _store(self) -> Any:
        """Return this process's store: its connections are shared by all files in the bucket."""
        key = self._key
        if key not in _stores:
            protocol = self._url.partition(":")[0]
            if protocol not in PROTOCOLS:
                raise StorageRefusedError(
                    f"{self.url} cannot hold a checkpoint: {protocol} is not known to create a "
                    "file whole and only if it is absent; use a path of a local or mounted file "
                    f"system, or one of {', '.join(sorted(PROTOCOLS))}"
                )
            try:
                _stores.setdefault(key, _open(self._parts[0], self._options))
            except ImportError as error:
                raise StorageRefusedError(
                    f"cannot open {self.url}: obstore is not installed for this Python; pip "
                    f"install 'dstreams[{PROTOCOLS[protocol]}]' for the driver and the workers"
                ) from error
            except Exception as error:
                raise StorageRefusedError(
                    f"cannot open {self.url}: {self._reason(error)}; check the URL, its options, "
                    "and the credentials of this process"
                ) from error
        return _stores[key]

    @contextlib.contextmanager
    def _refusing(self, action: str, name: str, *, is_listing: bool = False) -> Iterator[None]:
        """Raise errors of the store as ours; what is missing is the bucket if *is_listing*."""
        try:
            yield
        except CheckpointError:
            raise
        except Exception as error:
            if _is_named(error, *_TAKEN):
                raise AlreadyExistsError(self._message(action, name, error)) from error
            if isinstance(error, FileNotFoundError) and not is_listing:
                raise FileNotFoundError(f"{self.url}/{name}") from error
            raise StorageRefusedError(self._message(action, name, error)) from error

    def _message(self, action: str, name: str, error: Exception) -> str:
        return (
            f"cannot {action} {self.url}/{name}: {self._reason(error)}; "
            "check that storage, its credentials and the network"
        )

    def _reason(self, error: Exception) -> str:
        """Return the text of an error of the store without secrets and debugging details."""
        text = (str(error) or type(error).__name__).partition("\n\n")[0]
        reason = without_secrets(" ".join(text.split()))
        for value in self._options.values():
            if isinstance(value, str) and len(value) >= _LEAST_SECRET:
                reason = reason.replace(value, "***")
        return reason


class _Sent:
    """Chunks with their size and checksum, and the error that ended them."""

    def __init__(self, chunks: Iterable[bytes | memoryview]) -> None:
        self._chunks = chunks
        self.size_bytes = self.checksum = 0
        self.error: BaseException | None = None

    def __iter__(self) -> Iterator[bytes | memoryview]:
        try:
            for chunk in self._chunks:
                self.size_bytes += memoryview(chunk).nbytes
                self.checksum = zlib.crc32(chunk, self.checksum)
                yield chunk
        except BaseException as error:
            self.error = error
            raise


def _open(url: str, options: dict[str, Any]) -> Any:
    """Return the store of a bucket."""
    from obstore.store import MemoryStore, from_url  # noqa: PLC0415

    protocol = url.partition(":")[0]
    if protocol == "memory":
        return MemoryStore()
    given: dict[str, Any] = {"config": options, "retry_config": _RETRIES}
    given["client_options"] = {"timeout": _ANSWER, "connect_timeout": "5s", "allow_http": True}
    if PROTOCOLS[protocol] == "s3":
        given["config"] = {"copy_if_not_exists": "multipart", **options}
        given["credential_provider"] = _credentials(options)
    return from_url(url.replace("gcs://", "gs://", 1), **given)


def _credentials(options: dict[str, Any]) -> Any:
    """Return a source of credentials that knows profiles, as boto3 does; None for obstore's own."""
    is_given = "access_key_id" in options or "AWS_ACCESS_KEY_ID" in os.environ
    if is_given or options.get("skip_signature") or os.environ.get("AWS_SKIP_SIGNATURE"):
        return None
    try:
        from obstore.auth.boto3 import Boto3CredentialProvider  # noqa: PLC0415 - imports boto3
    except ImportError:
        return None
    try:
        return Boto3CredentialProvider()
    except ValueError:
        raise ValueError(
            "no credentials in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile or a role"
        ) from None


def _is_named(error: Exception, *names: str) -> bool:
    """Return whether an error is of one of these classes of obstore, which may not be imported."""
    return type(error).__name__ in names


def _is_refused(error: Exception) -> bool:
    """Return whether a request was certainly not carried out."""
    refusals = ("PermissionDeniedError", "UnauthenticatedError", "NotSupportedError")
    is_wrong = isinstance(error, (FileNotFoundError, PermissionError, TypeError, ValueError))
    return is_wrong or _is_named(error, *refusals) or bool(_REFUSED.search(str(error)))
