"""A spill file: changes that exceed the memory limit, in an LMDB file on the local disk.

The file is unlinked as soon as it is open, so nothing is left behind. An iterator sees the changes
that existed when it began, as every LMDB reader does.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import cast

import lmdb

from checkpoint.errors import StorageRefusedError

_NOTHING = b""  # a removal, as no record is empty and index entries have no records
_FIRST_MAP_BYTES = 8 << 20
_CHUNK_PAIRS = 4096  # per transaction, whose pages stay in memory until it ends
_RECORDS, _INDEX = range(2)

Pairs = Iterator[tuple[bytes, "bytes | None"]]


class Spill:
    """The changes of one writer that are not in memory. A later change replaces an earlier one."""

    def __init__(self, directory: str | None = None) -> None:
        self._directory = directory
        self._env: lmdb.Environment | None = None
        self._read: lmdb.Transaction[bytes] | None = None

    def __bool__(self) -> bool:
        return self._env is not None

    def add(
        self, changed: Mapping[bytes, bytes | None], index: Mapping[bytes, bytes | None]
    ) -> None:
        """Write changes of records and of the timeout index; None removes."""
        try:
            if self._env is None:
                self._env = self._open(_FIRST_MAP_BYTES)
            if self._read is not None:
                self._read.abort()
            self._put(_RECORDS, changed)
            self._put(_INDEX, index)
            self._read = self._env.begin(db=self._databases[_RECORDS])
        except (lmdb.Error, OSError) as error:
            where = self._directory or tempfile.gettempdir()
            raise StorageRefusedError(
                f"cannot spill changes of a state store to {where}: {error}; free space "
                "there, or raise the memory limit for changes"
            ) from error

    def get(self, key: bytes) -> bytes | None:
        """Return the record of a key, empty if it was removed, None if it is not here."""
        return None if self._read is None else self._read.get(key)

    def scan(self, start: bytes = b"", stop: bytes | None = None) -> Pairs:
        """Iterate over records in key order, with None for removed keys."""
        return self._scan(_RECORDS, start, stop)

    def scan_index(self, stop: bytes | None = None) -> Pairs:
        """Iterate over index entries in order, with None for removed entries."""
        return self._scan(_INDEX, b"", stop)

    def close(self) -> None:
        """Free the disk space. May be called again."""
        if self._env is not None:
            self._env.close()
            self._env = self._read = None

    def _open(self, map_bytes: int) -> lmdb.Environment:
        """Open a file with the content of the previous one, whose readers pin its size."""
        handle, path = tempfile.mkstemp(prefix="state-spill-", dir=self._directory)
        try:
            if self._env is not None:
                self._env.copyfd(handle, compact=True)
            env = lmdb.open(
                path,
                map_size=map_bytes,
                subdir=False,
                sync=False,
                metasync=False,
                meminit=False,
                readahead=False,
                max_dbs=2,
            )
        finally:
            os.close(handle)
            for name in (path, f"{path}-lock"):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name)
        self._map_bytes = map_bytes
        self._databases = [env.open_db(name) for name in (b"d", b"x")]
        return env

    def _put(self, database: int, changes: Mapping[bytes, bytes | None]) -> None:
        keys = iter(sorted(changes))
        while chunk := [(key, changes[key] or _NOTHING) for key in islice(keys, _CHUNK_PAIRS)]:
            while not self._put_chunk(database, chunk):
                self._env = self._open(2 * self._map_bytes)

    def _put_chunk(self, database: int, chunk: list[tuple[bytes, bytes]]) -> bool:
        """Write pairs, and return whether they fit."""
        try:
            with cast(lmdb.Environment, self._env).begin(write=True) as txn:
                txn.cursor(self._databases[database]).putmulti(chunk)
        except lmdb.MapFullError:
            return False
        return True

    def _scan(self, database: int, start: bytes, stop: bytes | None) -> Pairs:
        if self._env is None:
            return
        cursor = self._env.begin().cursor(self._databases[database])
        if not (cursor.set_range(start) if start else cursor.first()):
            return
        for key, record in cast(Iterator[tuple[bytes, bytes]], cursor):
            if stop is not None and key >= stop:
                return
            yield key, record or None
