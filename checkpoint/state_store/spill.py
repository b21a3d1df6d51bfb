"""Spill: changes that are too many for memory, in sorted runs on disk that never change.

Each run is an LMDB file of its own, whose name is removed as soon as it is open: nothing is left
behind, however the process ends. Four runs of a size are merged into one, so there are few: a dozen
for changes of 250 times the memory they may take.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import cast

import lmdb

from checkpoint.errors import StorageRefusedError
from checkpoint.state_store.sorted_layers import overlaid

_NOTHING = b""  # what stands for a removal: no record is empty, and no entry needs one
_SPARE_BYTES = 1 << 20
_PAIR_BYTES = 64
_MERGED_RUNS = 4

Pairs = Iterator[tuple[bytes, "bytes | None"]]


class Run:
    """One sorted run: the changes that were in memory together, or those of several runs.

    Args:
        directory: where the file is made; None for the default of the system.
        changed: makes an iterator over keys and records in key order, None for a removal.
        index: the same for entries of the timeout index.
        size_bytes: about the size of all that.
        level: how often its changes were merged.

    Raises:
        StorageRefusedError: the disk is full, or the directory cannot be written.
    """

    def __init__(
        self,
        directory: str | None,
        changed: Callable[[], Pairs],
        index: Callable[[], Pairs],
        size_bytes: int,
        level: int = 0,
    ) -> None:
        self.size_bytes = size_bytes
        self.level = level
        room = 2 * size_bytes + _SPARE_BYTES
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

    @classmethod
    def of(
        cls,
        directory: str | None,
        changed: Mapping[bytes, bytes | None],
        index: Mapping[bytes, bytes | None],
    ) -> Run:
        """Return a run of changes that are in memory."""
        size_bytes = sum(len(key) + len(new or b"") + _PAIR_BYTES for key, new in changed.items())
        size_bytes += sum(len(entry) + _PAIR_BYTES for entry in index)
        return cls(directory, partial(_ordered, changed), partial(_ordered, index), size_bytes)

    @classmethod
    def merged(cls, directory: str | None, runs: Sequence[Run]) -> Run:
        """Return one run that holds what *runs* do, of which later ones count."""
        size_bytes = sum(run.size_bytes for run in runs)
        level = runs[-1].level + 1
        return cls(
            directory, partial(_scan_all, runs), partial(_index_all, runs), size_bytes, level
        )

    def _fill(
        self,
        directory: str | None,
        room: int,
        changed: Callable[[], Pairs],
        index: Callable[[], Pairs],
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
                    ordered = ((key, record or _NOTHING) for key, record in pairs())
                    write.cursor(database).putmulti(ordered, append=True)
            self._read = self._env.begin(db=self._changed)
        except BaseException:
            self._env.close()
            raise

    def get(self, key: bytes) -> bytes | None:
        """Return the record of a key, empty if it was removed, None if it is not in this run."""
        found: bytes | None = self._read.get(key)
        return found

    def scan(self, start: bytes = b"", stop: bytes | None = None) -> Pairs:
        """Iterate over records and removals in key order."""
        return _scan(self._read.cursor(self._changed), start, stop)

    def scan_index(self, stop: bytes | None = None) -> Pairs:
        """Iterate over entries of the index, with None for those that were removed."""
        return _scan(self._read.cursor(self._index), b"", stop)

    def close(self) -> None:
        """Give the room back."""
        self._read.abort()
        self._env.close()


def _ordered(pairs: Mapping[bytes, bytes | None]) -> Pairs:
    return ((key, pairs[key]) for key in sorted(pairs))


def _scan(cursor: lmdb.Cursor, start: bytes, stop: bytes | None) -> Pairs:
    if not (cursor.set_range(start) if start else cursor.first()):
        return
    for key, record in cast(Iterator[tuple[bytes, bytes]], cursor):
        if stop is not None and key >= stop:
            return
        yield key, record or None


def _scan_all(runs: Sequence[Run], start: bytes = b"", stop: bytes | None = None) -> Pairs:
    merged: Pairs = iter(())
    for run in runs:
        merged = overlaid(merged, run.scan(start, stop))
    return merged


def _index_all(runs: Sequence[Run], stop: bytes | None = None) -> Pairs:
    merged: Pairs = iter(())
    for run in runs:
        merged = overlaid(merged, run.scan_index(stop))
    return merged


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
        """Write a run, and merge the last ones where there are enough of one size.

        Iterators over the runs that were merged go on: their files are there until they end.

        Raises:
            StorageRefusedError: it cannot be written.
        """
        runs = self._runs
        runs.append(Run.of(self._directory, changed, index))
        while len(last := runs[-_MERGED_RUNS:]) == _MERGED_RUNS and last[0].level == last[-1].level:
            runs[-_MERGED_RUNS:] = [Run.merged(self._directory, last)]

    def get(self, key: bytes) -> bytes | None:
        """Return the record of a key, empty if it was removed, None if it is in no run."""
        for run in reversed(self._runs):
            found = run.get(key)
            if found is not None:
                return found
        return None

    def scan(self, start: bytes = b"", stop: bytes | None = None) -> Pairs:
        """Iterate over the records and removals of all runs in key order."""
        return _scan_all(tuple(self._runs), start, stop)

    def scan_index(self, stop: bytes | None = None) -> Pairs:
        """Iterate over entries of the index of all runs, with None for those removed."""
        return _index_all(tuple(self._runs), stop)

    def close(self) -> None:
        """Give the room back; again is fine."""
        while self._runs:
            self._runs.pop().close()
