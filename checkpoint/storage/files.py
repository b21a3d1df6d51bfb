"""The file operations that a checkpoint needs, and the names of its files.

Every durable thing is a file that is created once, whole, and never changed by a stream.
:func:`checkpoint.testing.check_files` tests an implementation.

Names are relative POSIX paths from a small alphabet. A part begins with a letter, a digit or ``_``:
this rules out ``..`` and absolute names, and keeps hidden names (``.x``) for temporary files.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Protocol

import msgspec

Names = list[str]
"""A sorted list of names. (A class with a method ``list`` cannot write ``list[str]``.)"""

READ_CHUNK_BYTES = 1 << 20

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._=-]{0,199}")
_NAME = rf"^{_PART.pattern}(?:/{_PART.pattern})*\Z"
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


def is_path(url: str) -> bool:
    """Return whether *url* is a path, or ``file:`` and a path."""
    return not _URL.match(url) or url.startswith("file:")


def location(files: Files, name: str) -> str:
    """Return the location of the file *name*, for messages."""
    return f"{files.url}/{name}"


def is_name(name: str) -> bool:
    """Return whether *name* is a valid file name."""
    return all(_PART.fullmatch(part) for part in name.split("/"))


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
