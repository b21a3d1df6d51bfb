"""Spill: changes that are too many for memory, in sorted runs on disk that never change.

Each run is an LMDB file of its own, whose name is removed as soon as it is open: nothing is left
behind, however the process ends. Runs are few, each as large as the memory that changes may take.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from typing import cast

import lmdb

from checkpoint.errors import StorageRefusedError
from checkpoint.state_store.overlay import overlaid

_NOTHING = b""  # what stands for a removal: no record is empty, and no entry needs one
_SPARE_BYTES = 1 << 20
_PAIR_BYTES = 64


class Run:
    """One sorted run: the changes that were in memory together.

    Args:
        directory: where the file is made; None for the default of the system.
        changed: records by key, None for a removal.
        index: entries of the timeout index, None for a removal.

    Raises:
        StorageRefusedError: the disk is full, or the directory cannot be written.
    """

    def __init__(
        self,
        directory: str | None,
        changed: Mapping[bytes, bytes | None],
        index: Mapping[bytes, bytes | None],
    ) -> None:
        payload = sum(
            len(key) + len(record or b"") + _PAIR_BYTES for key, record in changed.items()
        )
        payload += sum(len(entry) + _PAIR_BYTES for entry in index)
        room = 2 * payload + _SPARE_BYTES
        while True:
            try:
                self._fill(directory, room, changed, index)
                return
            except lmdb.MapFullError:
                room *= 2
            except (lmdb.Error, OSError) as error:
                where = directory or tempfile.gettempdir()
                raise StorageRefusedError(
                    f"changes of a state store cannot be spilled to {where}: {error}; make room "
                    "there, or give the store more memory for changes"
                ) from error

    def _fill(
        self,
        directory: str | None,
        room: int,
        changed: Mapping[bytes, bytes | None],
        index: Mapping[bytes, bytes | None],
    ) -> None:
        handle, path = tempfile.mkstemp(prefix="state-spill-", dir=directory)
        os.close(handle)
        try:
            self._env = lmdb.open(
                path,
                map_size=room,
                subdir=False,
                lock=False,
                sync=False,
                metasync=False,
                meminit=False,
                readahead=False,
                max_dbs=2,
            )
        finally:
            os.unlink(path)
        try:
            self._index = self._env.open_db(b"x")
            self._changed = self._env.open_db(b"d")
            with self._env.begin(write=True) as write:
                for database, pairs in ((self._changed, changed), (self._index, index)):
                    ordered = [(key, pairs[key] or _NOTHING) for key in sorted(pairs)]
                    write.cursor(database).putmulti(ordered, append=True)
            self._read = self._env.begin(db=self._changed)
        except BaseException:
            self._env.close()
            raise

    def get(self, key: bytes) -> bytes | None:
        """Return the record of a key, empty if it was removed, None if it is not in this run."""
        found: bytes | None = self._read.get(key)
        return found

    def scan(
        self, start: bytes = b"", stop: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes | None]]:
        """Iterate over records and removals in key order."""
        return _scan(self._read.cursor(self._changed), start, stop)

    def scan_index(self, stop: bytes | None = None) -> Iterator[tuple[bytes, bytes | None]]:
        """Iterate over entries of the index, with None for those that were removed."""
        return _scan(self._read.cursor(self._index), b"", stop)

    def close(self) -> None:
        """Give the room back."""
        self._read.abort()
        self._env.close()


def _scan(
    cursor: lmdb.Cursor, start: bytes, stop: bytes | None
) -> Iterator[tuple[bytes, bytes | None]]:
    if not (cursor.set_range(start) if start else cursor.first()):
        return
    for key, record in cast(Iterator[tuple[bytes, bytes]], cursor):
        if stop is not None and key >= stop:
            return
        yield key, record or None


class Runs:
    """All runs of one writer; later ones count.

    Args:
        directory: where their files are made; None for the default of the system.
    """

    def __init__(self, directory: str | None = None) -> None:
        self._directory = directory
        self._runs: list[Run] = []

    def __len__(self) -> int:
        return len(self._runs)

    def add(
        self, changed: Mapping[bytes, bytes | None], index: Mapping[bytes, bytes | None]
    ) -> None:
        """Write a run.

        Raises:
            StorageRefusedError: it cannot be written.
        """
        self._runs.append(Run(self._directory, changed, index))

    def get(self, key: bytes) -> bytes | None:
        """Return the record of a key, empty if it was removed, None if it is in no run."""
        for run in reversed(self._runs):
            found = run.get(key)
            if found is not None:
                return found
        return None

    def scan(
        self, start: bytes = b"", stop: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes | None]]:
        """Iterate over the records and removals of all runs in key order."""
        merged: Iterator[tuple[bytes, bytes | None]] = iter(())
        for run in self._runs:
            merged = overlaid(merged, run.scan(start, stop))
        return merged

    def scan_index(self, stop: bytes | None = None) -> Iterator[tuple[bytes, bytes | None]]:
        """Iterate over entries of the index of all runs, with None for those removed."""
        merged: Iterator[tuple[bytes, bytes | None]] = iter(())
        for run in self._runs:
            merged = overlaid(merged, run.scan_index(stop))
        return merged

    def close(self) -> None:
        """Give the room back; again is fine."""
        while self._runs:
            self._runs.pop().close()
