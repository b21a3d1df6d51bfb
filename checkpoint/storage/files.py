"""Files: the few things that checkpoints ask of a file system.

Everything durable is a file that is created once, whole, and never changed; so six operations are
enough, and whatever does them right (:func:`checkpoint.testing.check_files`) can hold a checkpoint.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from checkpoint.storage.names import Names, require_name, require_prefix

READ_CHUNK_BYTES = 1 << 20

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


class Files(Protocol):
    """Named files, created once, whole, and durable when that returns.

    Values of this type are small and can be pickled: the driver opens them and hands them to tasks.
    Names are relative posix paths (:mod:`checkpoint.storage.names`); any other is a ``ValueError``.
    Every method may raise :class:`StorageRefusedError`.
    """

    @property
    def url(self) -> str:
        """Where these files are, for people to read; without passwords."""
        ...

    def create(self, name: str, chunks: Iterable[bytes | memoryview]) -> int:
        """Create a file from *chunks* and return its size in bytes.

        Either the whole file is there, or nothing is, whatever happens on the way; an error that
        *chunks* itself raises is passed on, and nothing is there. Chunks of 16 kB and more are
        written best.

        Raises:
            AlreadyExistsError: the name is taken, by a file that is whole and durable.
            StorageRefusedError: the file was not created; another try may succeed.
            StorageUncertainError: the file may have been created, or may still be.
            NotDurableError: the file was created and may not survive a power loss.
        """
        ...

    def read_chunks(self, name: str, chunk_bytes: int) -> Iterator[bytes]:
        """Read a file from its beginning, in chunks of at most *chunk_bytes*, none of them empty.

        Raises (at the first chunk):
            FileNotFoundError: there is no file of that name.
        """
        ...

    def read(self, name: str) -> bytes:
        """Read a whole file.

        Raises:
            FileNotFoundError: there is no file of that name.
        """
        ...

    def exists(self, name: str) -> bool:
        """Whether a file of that name can be seen now."""
        ...

    def list(self, prefix: str) -> Names:
        """Return the names that begin with *prefix*, sorted; ``""`` lists them all.

        Temporary files, and files that :meth:`create` could not have made, are not listed.
        """
        ...

    def directories(self, directory: str = "") -> Names:
        """Return the names of the directories in a directory, sorted; nothing in them is listed.

        Args:
            directory: its name; that of the root by default. One that is not there has none.
        """
        ...

    def delete(self, name: str) -> None:
        """Delete a file; that there is none is fine.

        A power loss may bring the file back.
        """
        ...


class ReplaceableFiles(Files, Protocol):
    """Files of which one can be written in another way, with the same content.

    Nothing that runs a stream does this: what a reader holds is what there is.
    """

    def replace(self, name: str, chunks: Iterable[bytes | memoryview]) -> None:
        """Put other bytes in the place of a file that is there.

        Whenever it ends, the old bytes are there or the new ones, whole; they are durable when it
        returns. Raises as :meth:`Files.create` does.
        """
        ...


@dataclass(frozen=True)
class SomeFiles:
    """The files of *inner* as they would be if there were some of them only, for who only reads.

    Args:
        inner: the files.
        shows: says of a name whether that file is one of them; others are taken for missing.
    """

    inner: Files
    shows: Callable[[str], bool]

    @property
    def url(self) -> str:
        return self.inner.url

    def create(self, name: str, chunks: Iterable[bytes | memoryview]) -> int:
        raise ValueError(f"{self.url} is only looked at, and nothing is written there")

    def read_chunks(self, name: str, chunk_bytes: int) -> Iterator[bytes]:
        self._require_shown(name)
        return self.inner.read_chunks(name, chunk_bytes)

    def read(self, name: str) -> bytes:
        self._require_shown(name)
        return self.inner.read(name)

    def exists(self, name: str) -> bool:
        return self.shows(name) and self.inner.exists(name)

    def list(self, prefix: str) -> Names:
        return [name for name in self.inner.list(prefix) if self.shows(name)]

    def directories(self, directory: str = "") -> Names:
        return self.inner.directories(directory)

    def delete(self, name: str) -> None:
        raise ValueError(f"{self.url} is only looked at, and nothing is deleted there")

    def _require_shown(self, name: str) -> None:
        if not self.shows(name):
            raise FileNotFoundError(f"{self.url}/{name} is taken for missing")


@dataclass(frozen=True)
class FilesBelow:
    """The files of a directory among *inner*, under their names from there on.

    Args:
        inner: the files.
        directory: name of the directory.
    """

    inner: Files
    directory: str

    @property
    def url(self) -> str:
        return f"{self.inner.url}/{self.directory}"

    def create(self, name: str, chunks: Iterable[bytes | memoryview]) -> int:
        return self.inner.create(self._inside(name), chunks)

    def read_chunks(self, name: str, chunk_bytes: int) -> Iterator[bytes]:
        return self.inner.read_chunks(self._inside(name), chunk_bytes)

    def read(self, name: str) -> bytes:
        return self.inner.read(self._inside(name))

    def exists(self, name: str) -> bool:
        return self.inner.exists(self._inside(name))

    def list(self, prefix: str) -> Names:
        require_prefix(prefix)
        start = len(self.directory) + 1
        return [name[start:] for name in self.inner.list(f"{self.directory}/{prefix}")]

    def directories(self, directory: str = "") -> Names:
        return self.inner.directories(f"{self.directory}/{directory}".rstrip("/"))

    def delete(self, name: str) -> None:
        self.inner.delete(self._inside(name))

    def _inside(self, name: str) -> str:
        return f"{self.directory}/{require_name(name)}"


def is_path(url: str) -> bool:
    """Whether *url* is on a path of this host: a path itself, or ``file:`` and a path."""
    return not _URL.match(url) or url.startswith("file:")


def location(files: Files, name: str) -> str:
    """Where the file *name* is, for messages."""
    return f"{files.url}/{name}"
