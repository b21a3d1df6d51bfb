"""The file operations that a checkpoint needs, and the names of its files.

Every durable thing is a file that is created once, whole, and never changed by a stream.
:func:`checkpoint.testing.check_files` tests an implementation.

Names are relative POSIX paths from a small alphabet. A part begins with a letter, a digit or ``_``:
this rules out ``..`` and absolute names, and keeps hidden names (``.x``) for temporary files.
"""

from __future__ import annotations

import hashlib
import re
import secrets  # noqa: TID251
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Protocol, TypeVar

import msgspec

from checkpoint.errors import CorruptCheckpointError

Names = list[str]
"""A sorted list of names. (A class with a method ``list`` cannot write ``list[str]``.)"""

READ_CHUNK_BYTES = 1 << 20

_LOOK_AGAIN = 5

_T = TypeVar("_T")
_R = TypeVar("_R")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._=-]{0,199}")
_NAME = rf"^{_PART.pattern}(?:/{_PART.pattern})*\Z"
_TEMPORARY = re.compile(r"\.[0-9a-f]{16}\.tmp")
_PASSWORD = re.compile(r"//([^/:@\s]*):[^\s]*@")
_PARAMETER = re.compile(r"([?&][^=&\s]+=)[^&\s]+")
_PLAIN_UID = re.compile(r"[a-z0-9_][a-z0-9_-]{0,63}")
_RULE = (
    "must be parts joined by '/', each 1 to 200 of A-Z a-z 0-9 . _ = - "
    "and beginning with a letter, a digit or '_'"
)

Name = Annotated[str, msgspec.Meta(pattern=_NAME)]
"""The name of a file, in a record."""


class Files(Protocol):
    """Named files that are created once and durable when ``create`` returns.

    Values are small and can be pickled: the driver opens them and sends them to tasks. A name that
    breaks the rules is a ``ValueError``; every method may raise :class:`StorageRefusedError`.
    """

    @property
    def url(self) -> str:
        """The location, for messages; without passwords."""
        ...

    @property
    def at_once(self) -> int:
        """The number of requests to make at a time when there are many; 1 on local disks."""
        ...

    def create(self, name: str, chunks: Iterable[bytes | memoryview]) -> int:
        """Create a file from *chunks*, all or nothing, and return its size in bytes.

        An error that *chunks* raises is passed on, and no file is created. Chunks of 16 kB and
        more are the most efficient.

        Raises:
            AlreadyExistsError: a whole and durable file has this name.
            StorageRefusedError: the file was not created; a retry may succeed.
            StorageUncertainError: the file may have been created, or may still be.
            NotDurableError: the file was created and may not survive a power loss.
        """
        ...

    def replace(self, name: str, chunks: Iterable[bytes | memoryview]) -> None:
        """Replace the bytes of an existing file atomically; only for signing, never in a stream.

        Raises the errors of :meth:`create`.
        """
        ...

    def read_chunks(self, name: str, chunk_bytes: int) -> Iterator[bytes]:
        """Read a file in chunks of 1 to *chunk_bytes* bytes.

        Raises FileNotFoundError at the first chunk.
        """
        ...

    def read(self, name: str) -> bytes:
        """Read a whole file. Raises FileNotFoundError."""
        ...

    def exists(self, name: str) -> bool:
        """Return whether a file of this name is visible now."""
        ...

    def list(self, prefix: str) -> Names:
        """Return the sorted names that begin with *prefix*; ``""`` lists all files.

        Temporary files, and files with other names than :meth:`create` accepts, are not listed.
        """
        ...

    def directories(self, directory: str = "") -> Names:
        """Return the sorted names of the directories in *directory*; the root by default."""
        ...

    def delete(self, name: str) -> None:
        """Delete a file if it exists. A power loss may bring it back."""
        ...


@dataclass(frozen=True)
class WrappedFiles:
    """Files that pass every call to *inner*; a subclass overrides what differs."""

    inner: Files

    @property
    def url(self) -> str:
        return self.inner.url

    @property
    def at_once(self) -> int:
        return self.inner.at_once

    def create(self, name: str, chunks: Iterable[bytes | memoryview]) -> int:
        return self.inner.create(name, chunks)

    def replace(self, name: str, chunks: Iterable[bytes | memoryview]) -> None:
        self.inner.replace(name, chunks)

    def read_chunks(self, name: str, chunk_bytes: int) -> Iterator[bytes]:
        return self.inner.read_chunks(name, chunk_bytes)

    def read(self, name: str) -> bytes:
        return b"".join(self.read_chunks(name, READ_CHUNK_BYTES))

    def exists(self, name: str) -> bool:
        return self.inner.exists(name)

    def list(self, prefix: str) -> Names:
        return self.inner.list(prefix)

    def directories(self, directory: str = "") -> Names:
        return self.inner.directories(directory)

    def delete(self, name: str) -> None:
        self.inner.delete(name)


@dataclass(frozen=True)
class PrefixedFiles(WrappedFiles):
    """The files of *directory*, with names relative to it."""

    directory: str

    @property
    def url(self) -> str:
        return f"{self.inner.url}/{self.directory}"

    def create(self, name: str, chunks: Iterable[bytes | memoryview]) -> int:
        return self.inner.create(self._inside(name), chunks)

    def replace(self, name: str, chunks: Iterable[bytes | memoryview]) -> None:
        self.inner.replace(self._inside(name), chunks)

    def read_chunks(self, name: str, chunk_bytes: int) -> Iterator[bytes]:
        return self.inner.read_chunks(self._inside(name), chunk_bytes)

    def exists(self, name: str) -> bool:
        return self.inner.exists(self._inside(name))

    def list(self, prefix: str) -> Names:
        names = self.inner.list(f"{self.directory}/{require_prefix(prefix)}")
        return [name[len(self.directory) + 1 :] for name in names]

    def directories(self, directory: str = "") -> Names:
        return self.inner.directories(f"{self.directory}/{directory}".rstrip("/"))

    def delete(self, name: str) -> None:
        self.inner.delete(self._inside(name))

    def _inside(self, name: str) -> str:
        return f"{self.directory}/{require_name(name)}"


@dataclass(frozen=True)
class ReadAhead(WrappedFiles):
    """Files as they were at the last :meth:`look`, for a restart, which needs many small ones.

    A look lists directories and reads files, many at a time. A file never changes, so each is read
    once, and lists are those of the last look. On local disks, which gain nothing from that, every
    call is passed on.
    """

    _names: dict[str, Names] = field(default_factory=dict)
    _contents: dict[str, bytes | None] = field(default_factory=dict)

    def look(self, read: Sequence[str], then: str, listed: Sequence[str]) -> None:
        """List the directories *read* and *listed*, and after them *then*; read what is new.

        Files of the directories *listed* are not read. Raises StorageRefusedError.
        """
        if self.at_once < 2:
            return
        for _ in range(_LOOK_AGAIN):
            self._do(partial(self._list, prefix) for prefix in (*read, *listed))
            self._do((partial(self._list, then), *self._missing(read)))
            self._do(self._missing([then]))
            if not self._missing([*read, then]):  # else another driver is deleting files
                break

    def forget(self) -> None:
        """Free the memory: from now on, every call is passed on."""
        self._names.clear()
        self._contents.clear()

    def _do(self, requests: Iterable[Callable[[], None]]) -> None:
        in_parallel(self, lambda request: request(), [*requests])

    def _missing(self, prefixes: Iterable[str]) -> list[Callable[[], None]]:
        """Return the requests for the files that were not read yet."""
        names = (name for prefix in prefixes for name in self._names[prefix])
        return [partial(self._read, name) for name in names if name not in self._contents]

    def _list(self, prefix: str) -> None:
        self._names[prefix] = self.inner.list(prefix)

    def _read(self, name: str) -> None:
        with suppress(FileNotFoundError):
            try:
                self._contents[name] = self.inner.read(name)
            except CorruptCheckpointError:
                self._contents[name] = None  # whoever needs the file reads it, and reports that

    def list(self, prefix: str) -> Names:
        known = self._names.get(prefix)
        return self.inner.list(prefix) if known is None else [*known]

    def read_chunks(self, name: str, chunk_bytes: int) -> Iterator[bytes]:
        content = self._contents.get(name)
        if content is None:
            return self.inner.read_chunks(name, chunk_bytes)
        starts = range(0, len(content), chunk_bytes)
        return (content[start : start + chunk_bytes] for start in starts)


def in_parallel(files: Files, call: Callable[[_T], _R], arguments: Sequence[_T]) -> list[_R]:
    """Return the results of *call* for each of the *arguments*, in order.

    As many calls run at a time as *files* allow. Raises the first error, after all calls.
    """
    width = min(files.at_once, len(arguments))
    if width < 2:
        return [call(one) for one in arguments]

    def run(first: int) -> list[_R]:
        return [call(one) for one in arguments[first::width]]

    with ThreadPoolExecutor(width, "checkpoint-requests") as threads:
        parts = list(threads.map(run, range(width)))
    return [parts[number % width][number // width] for number in range(len(arguments))]


def without_secrets(text: str) -> str:
    """Return *text* without passwords and parameter values (``?sig=...``) in its URLs.

    >>> without_secrets("abfs://user:a/b@c@host/x?sv=2024&sig=abc")
    'abfs://user:***@host/x?sv=***&sig=***'
    """
    return _PARAMETER.sub(r"\1***", _PASSWORD.sub(r"//\1:***@", text))


def is_path(url: str) -> bool:
    """Return whether *url* is a path, or ``file:`` and a path."""
    return not _URL.match(url) or url.startswith("file:")


def location(files: Files, name: str) -> str:
    """Return the location of the file *name*, for messages."""
    return f"{files.url}/{name}"


def is_name(name: str) -> bool:
    """Return whether *name* is a valid file name."""
    return all(_PART.fullmatch(part) for part in name.split("/"))


def temporary_name() -> str:
    """Return a new hidden name, which no listing has."""
    return f".{secrets.token_hex(8)}.tmp"


def is_temporary(name: str) -> bool:
    """Return whether *name* is of a temporary file, in its directory."""
    return _TEMPORARY.fullmatch(name) is not None


def require_name(name: str) -> str:
    """Return *name* if it is a valid file name. Raises ValueError."""
    if is_name(name):
        return name
    raise ValueError(f"file name {name!r} {_RULE}")


def require_prefix(prefix: str) -> str:
    """Return *prefix* if valid file names can begin with it. Raises ValueError."""
    if prefix == "" or is_name(prefix.removesuffix("/")):
        return prefix
    raise ValueError(f"prefix {prefix!r} of file names {_RULE}")


def uid_part(uid: str) -> str:
    """Return the part of a file name that represents *uid*, different for each uid.

    A short lower-case uid is used as it is. Any other becomes a readable beginning, a dot (which
    plain ones do not have) and a 128 bit digest: two uids never share a part, even on a
    case-insensitive file system.

    >>> uid_part("counts"), uid_part("Counts per user")
    ('counts', 'counts-per-user.6b00e3a4569c9ba0939681a72e71c24a')
    """
    if _PLAIN_UID.fullmatch(uid):
        return uid
    readable = re.sub(r"[^a-z0-9_]+", "-", uid.lower()).strip("-")[:40] or "_"
    digest = hashlib.blake2b(uid.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return f"{readable}.{digest}"
