"""The write buffer: uncommitted changes over the version that they are based on.

It has three layers: the version, the spill file, and the changes in memory. Higher layers win. The
records and the timeout index each have one :class:`ChangeLayer` in memory.

The spill file is an LMDB file on the local disk. It is unlinked as soon as it is open, so nothing
is left behind. An iterator sees the changes that existed when it began, as every LMDB reader does.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import compress, islice, repeat
from operator import itemgetter, lt
from typing import Any, TypeVar, cast

import lmdb

from checkpoint.errors import StorageRefusedError
from checkpoint.log.batch_records import VersionId
from checkpoint.state_store.backend import (
    Changes,
    Pairs,
    RawVersion,
    chunks,
    first_checksum,
    moved_checksum,
)
from checkpoint.state_store.keys import MAX_INLINE_BYTES, comes_back, encode_whole
from checkpoint.state_store.plain_pickles import NotPlainError
from checkpoint.state_store.records import (
    PLAIN_END,
    Extras,
    index_entries,
    index_entry,
    indexed_ms_of,
    require_timeout_ms,
    split_record,
    timed_record,
    timed_records,
    with_extras,
)
from checkpoint.state_store.shapes import Shapes
from checkpoint.state_store.store_files import Column
from checkpoint.state_store.values import MAX_VALUE_BYTES, ValueCodec

_NOTHING = b""  # a removal, as no record is empty and index entries have no records
_FIRST_MAP_BYTES = 8 << 20
_CHUNK_PAIRS = 4096  # per transaction, whose pages stay in memory until it ends
_RECORDS, _INDEX = range(2)

ChangedPairs = Iterator[tuple[bytes, "bytes | None"]]
"""Keys in order with their records, None for removed keys."""

CHUNK_KEYS = 50_000
_MOST_UNSORTED = 256
_ENTRY = b"+"  # the value of an entry of the timeout index
_PAIR_BYTES = 200  # of memory for a key and a record, in addition to their own bytes
_LAST = itemgetter(-1)
_PLAIN_ENDS = {PLAIN_END}
_V = TypeVar("_V")

Columns = tuple[Sequence[bytes], Sequence["bytes | None"]]
"""Keys, and their records; None for removed keys."""

Parts = Iterator[tuple[Sequence[bytes], Sequence[bytes], Sequence[bytes]]]
"""Keys, their values, and removed keys."""


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

    def scan(self, start: bytes = b"", stop: bytes | None = None) -> ChangedPairs:
        """Iterate over records in key order, with None for removed keys."""
        return self._scan(_RECORDS, start, stop)

    def scan_index(self, stop: bytes | None = None) -> ChangedPairs:
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

    def _scan(self, database: int, start: bytes, stop: bytes | None) -> ChangedPairs:
        if self._env is None:
            return
        cursor = self._env.begin().cursor(self._databases[database])
        if not (cursor.set_range(start) if start else cursor.first()):
            return
        for key, record in cast(Iterator[tuple[bytes, bytes]], cursor):
            if stop is not None and key >= stop:
                return
            yield key, record or None


def overlaid(
    below: Iterator[tuple[bytes, _V]], above: Iterator[tuple[bytes, _V]]
) -> Iterator[tuple[bytes, _V]]:
    """Merge two streams that are sorted by key; for a key in both, *above* wins."""
    end: tuple[None, None] = (None, None)
    key, value = next(above, end)
    if key is None:
        yield from below
        return
    for lower in below:
        while key is not None and key <= lower[0]:
            yield key, value  # type: ignore[misc]
            if key == lower[0]:
                key, value = next(above, end)
                break
            key, value = next(above, end)
        else:
            yield lower
    if key is not None:
        yield key, value  # type: ignore[misc]
        yield from above


class Bounds:
    """The first and the last of some keys."""

    def __init__(self) -> None:
        self._first: bytes | None = None
        self._last = b""

    def meets(self, start: bytes, stop: bytes | None) -> bool:
        """Return whether some of the keys may be from *start* to *stop*."""
        if self._first is None:
            return False
        return self._last >= start and (stop is None or self._first <= stop)

    def are_before(self, keys: Sequence[bytes]) -> bool:
        """Return whether other keys are in order, and after these."""
        return self._last < keys[0] and all(map(lt, keys, islice(keys, 1, None)))

    def include(self, first: bytes, last: bytes) -> None:
        """Include more keys."""
        self._first = first if self._first is None else min(self._first, first)
        self._last = max(self._last, last)


class KeyList:
    """Distinct keys that are changed in the same way: cheaper than a dict, but not searchable."""

    def __init__(self) -> None:
        self._keys: list[bytes] = []
        self.bounds = Bounds()

    def __bool__(self) -> bool:
        return bool(self._keys)

    def add(self, keys: list[bytes]) -> None:
        """Add keys that are not in the list."""
        if keys:
            self.bounds.include(min(keys), max(keys))
            self._keys += keys

    def move_to(self, changed: dict[bytes, bytes | None], value: bytes | None) -> None:
        """Set all keys to *value* in a dict, and clear the list."""
        changed.update(zip(self._keys, repeat(value)))
        self.clear()

    def parts(self) -> Iterator[list[bytes]]:
        """Yield all keys in order, in parts of a bounded size."""
        ordered = sorted(self._keys)
        for start in range(0, len(ordered), CHUNK_KEYS):
            yield ordered[start : start + CHUNK_KEYS]

    def clear(self) -> None:
        """Remove all keys."""
        self._keys.clear()
        self.bounds = Bounds()


class OrderedRecords:
    """Records that were put in the order of their keys: cheaper than a dict, but not searchable."""

    def __init__(self) -> None:
        self._columns: list[tuple[Column, Column]] = []
        self.bounds = Bounds()

    def __bool__(self) -> bool:
        return bool(self._columns)

    def add(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Add keys in order, after all others."""
        self.bounds.include(keys[0], keys[-1])
        self._columns.append((Column.of(keys), Column.of(values)))

    def move_to(self, changed: dict[bytes, bytes | None]) -> None:
        """Put all records into a dict, and clear."""
        for keys, values in self._columns:
            changed.update(zip(keys, values, strict=True))
        self.clear()

    def parts(self) -> Iterator[tuple[Column, Column]]:
        """Yield keys and records in order, in parts of a bounded size."""
        part: list[tuple[Column, Column]] = []
        count = 0
        for keys, values in self._columns:
            if part and count + len(keys) > CHUNK_KEYS:
                yield _joined(part)
                part, count = [], 0
            part.append((keys, values))
            count += len(keys)
        if part:
            yield _joined(part)

    def clear(self) -> None:
        """Remove all records."""
        self._columns.clear()
        self.bounds = Bounds()


def _joined(part: list[tuple[Column, Column]]) -> tuple[Column, Column]:
    keys, values = zip(*part, strict=True)
    return Column.joined(keys), Column.joined(values)


class ChangeLayer:
    """Changes in memory: a dict by key, and three collections of bulk changes.

    A key is in at most one of them. Bulk changes move to the dict as soon as one of their keys may
    be needed. All keys that are added in bulk without a record have one value.
    """

    def __init__(self, added_value: bytes = b"") -> None:
        self._added_value = added_value
        self._changed: dict[bytes, bytes | None] = {}  # None: removed
        self._in_order = OrderedRecords()  # empty unless the dict is
        self._added, self._removed = KeyList(), KeyList()
        self._has_removed = False  # set once the dict may contain None
        self._ordered: list[bytes] = []  # the first keys of the dict, sorted
        self._bounds, self._bounded = Bounds(), 0  # of the first keys of the dict; their number

    def by_key(self) -> dict[bytes, bytes | None]:
        """Return all changes by key. The dict is live, and complete until the next bulk change."""
        if self._in_order:
            self._in_order.move_to(self._changed)
        if self._removed:
            self._has_removed = True
            self._removed.move_to(self._changed, None)
        if self._added:
            self._added.move_to(self._changed, self._added_value)
        return self._changed

    def put(self, key: bytes, value: bytes | None) -> None:
        """Change one key; None removes it."""
        if self._removed or self._added or self._in_order:
            self.by_key()
        self._has_removed = self._has_removed or value is None
        self._changed[key] = value

    def put_many(self, keys: list[bytes], values: Sequence[bytes]) -> None:
        """Change many keys; each is in *keys* once."""
        is_alone = not (self._changed or self._removed or self._added)
        if keys and is_alone and self._in_order.bounds.are_before(keys):
            self._in_order.add(keys, values)
        else:
            self.by_key().update(zip(keys, values, strict=True))

    def add_many(self, keys: list[bytes]) -> None:
        """Add many keys that are not in this layer, unless it has removed them."""
        if self._changed or self._removed:
            self.by_key().update(zip(keys, repeat(self._added_value)))
        else:
            self._added.add(keys)

    def remove_many(self, keys: list[bytes]) -> bool:
        """Remove many distinct keys; return whether this layer may have contained some of them."""
        if not keys:
            return False
        first, last = min(keys), max(keys)
        may_be_here = any(each.bounds.meets(first, last) for each in (self._in_order, self._added))
        if self._changed.keys().isdisjoint(keys) and not may_be_here:
            self._removed.add(keys)
            return False
        self.by_key().update(zip(keys, repeat(None)))
        self._has_removed = True
        return True

    def unlisted(self) -> dict[bytes, bytes | None]:
        """Return the changes by key, without those of bulk removals."""
        assert not self._added, "keys that were added in bulk are never looked up"
        self._in_order.move_to(self._changed)
        return self._changed

    def meets(self, start: bytes, stop: bytes | None) -> bool:
        """Return whether changes from *start* to *stop* may exist."""
        self._bound()
        collections = (self._in_order, self._added, self._removed)
        return any(
            bounds.meets(start, stop)
            for bounds in (self._bounds, *(each.bounds for each in collections))
        )

    def _bound(self) -> None:
        """Update the bounds of the dict, which only grows, by its newest keys."""
        recent = list(islice(reversed(self._changed), len(self._changed) - self._bounded))
        if recent:
            self._bounds.include(min(recent), max(recent))
            self._bounded = len(self._changed)

    def scan(self, start: bytes = b"", stop: bytes | None = None) -> ChangedPairs:
        """Iterate over the present changes in key order, from *start* to before *stop*."""
        changed = self.by_key()
        ordered = sorted(changed if start == b"" and stop is None else self._between(start, stop))
        return iter(list(zip(ordered, map(changed.__getitem__, ordered), strict=True)))

    def _between(self, start: bytes, stop: bytes | None) -> list[bytes]:
        """Return the keys of the dict from *start* to before *stop*.

        Many short ranges cost little: the dict only grows, so sorting resumes where it ended.
        """
        recent = list(islice(reversed(self._changed), len(self._changed) - len(self._ordered)))
        if len(recent) > _MOST_UNSORTED:
            self._ordered = sorted(self._ordered + sorted(recent))
            recent.clear()
        end = None if stop is None else bisect_left(self._ordered, stop)
        found = self._ordered[bisect_left(self._ordered, start) : end]
        return found + [key for key in recent if start <= key and (stop is None or key < stop)]

    def parts(self) -> Parts:
        """Yield (keys, values, removed keys) in order, in parts of a bounded size."""
        if self._has_removed or (self._added and (self._changed or self._in_order)):
            self.by_key()
        if self._has_removed:
            yield from map(_split, _columns(self.scan()))
            return
        has_records = bool(self._changed) + bool(self._in_order) + bool(self._added)
        assert has_records <= 1, "keys that stay are in one collection"
        removed = self._removed.parts()
        if self._added:
            puts: Iterator[tuple[Sequence[bytes], Any]] = (
                (keys, [self._added_value] * len(keys)) for keys in self._added.parts()
            )
        else:
            puts = self._in_order.parts() if self._in_order else self._puts()
        while True:
            keys, values = next(puts, ([], []))
            gone = next(removed, [])
            if not keys and not gone:
                return
            yield keys, values, gone

    def _puts(self) -> Iterator[tuple[Sequence[bytes], Any]]:
        ordered = sorted(self._changed)
        for start in range(0, len(ordered), CHUNK_KEYS):
            keys = ordered[start : start + CHUNK_KEYS]
            yield keys, list(map(self._changed.__getitem__, keys))

    def clear(self) -> None:
        """Drop all changes."""
        self._changed.clear()
        self._ordered.clear()
        self._bounds, self._bounded = Bounds(), 0
        self._in_order.clear()
        self._added.clear()
        self._removed.clear()
        self._has_removed = False


def _columns(pairs: ChangedPairs) -> Iterator[Columns]:
    for part in chunks(pairs, CHUNK_KEYS):
        keys, values = map(list, zip(*part, strict=True))
        yield keys, values


def _split(columns: Columns) -> tuple[Sequence[bytes], Sequence[bytes], Sequence[bytes]]:
    """Return keys and values without the removed keys, and the removed keys."""
    keys, values = columns
    if None not in values:
        return keys, values, []  # type: ignore[return-value]
    are_there = [value is not None for value in values]
    removed = [key for key, value in zip(keys, values, strict=True) if value is None]
    return list(compress(keys, are_there)), list(compress(values, are_there)), removed  # type: ignore[arg-type]


class WriteBuffer:
    """Changes to a version, in memory and in a spill file.

    Callers pass the record that they replace, so the buffer never looks it up.
    """

    def __init__(
        self,
        version: RawVersion,
        values: ValueCodec,
        shapes: Shapes,
        spill_bytes: int,
        spill_directory: str | None,
        checksums: bool,
    ) -> None:
        self._version = version
        self._encode = values.encoder(shapes)
        self._classes = values.classes
        self._records = ChangeLayer()
        self._index = ChangeLayer(_ENTRY)
        self._spilled = Spill(spill_directory)
        self._below = version.get
        self._may_remove_new = False  # set once a removed key may be missing from the version
        self._spill_bytes = spill_bytes
        self._room = spill_bytes
        self._count = version.count()
        self._checksum = first_checksum(version) if checksums else None

    @property
    def version_id(self) -> VersionId:
        """The version that is changed."""
        return self._version.version_id

    def count(self) -> int:
        """Return the number of keys."""
        return self._count

    def size_bytes(self) -> int:
        """Return the approximate size of the version and the changes in memory."""
        return self._version.size_bytes() + self._spill_bytes - self._room

    def get(self, raw: bytes) -> bytes | None:
        """Return the record of an encoded key, None if it is missing."""
        changed = self._records.by_key()
        return changed[raw] if raw in changed else self._below(raw)

    def records(self, raws: list[bytes]) -> list[bytes | None]:
        """Return the records of many encoded keys, None for missing ones."""
        if not raws or not self._records.meets(min(raws), max(raws)):
            return self._records_below(raws)
        return self._records_over(self._records.by_key(), raws)

    def records_of_due(self, raws: list[bytes]) -> list[bytes | None]:
        """Return the records of index entries; a key that was removed in bulk keeps its record.

        The caller compares the time in the record: no key has two entries with its current time.
        """
        return self._records_over(self._records.unlisted(), raws)

    def _records_over(
        self, changed: dict[bytes, bytes | None], raws: list[bytes]
    ) -> list[bytes | None]:
        if changed.keys().isdisjoint(raws):
            return self._records_below(raws)
        rest = iter(self._records_below([raw for raw in raws if raw not in changed]))
        return [changed[raw] if raw in changed else next(rest) for raw in raws]

    def _records_below(self, raws: list[bytes]) -> list[bytes | None]:
        return list(map(self._below, raws)) if self._spilled else self._version.get_many(raws)

    def _spilled_or_below(self, raw: bytes) -> bytes | None:
        spilled = self._spilled.get(raw)
        return self._version.get(raw) if spilled is None else spilled or None

    def scan(self, start: bytes, stop: bytes | None) -> ChangedPairs:
        """Iterate over keys and records in order, None for removed keys; begins when pulled."""
        yield from self.scan_now(start, stop)

    def scan_now(self, start: bytes, stop: bytes | None) -> ChangedPairs:
        """Iterate as :meth:`scan` does, over the present content."""
        below: ChangedPairs = self._version.scan(start, stop)
        if not (self._spilled or self._records.meets(start, stop)):
            return below
        return overlaid(below, self._own_records(start, stop))

    def scan_index(self, stop: bytes) -> Iterator[bytes]:
        """Iterate over the entries of the timeout index in order, up to before *stop*."""
        below = self._version.scan_index(stop)
        if not (self._spilled or self._index.meets(b"", stop)):
            return below
        pairs = overlaid(((entry, _ENTRY) for entry in below), self._own_index(stop))
        return (entry for entry, present in pairs if present is not None)

    def _own_records(self, start: bytes = b"", stop: bytes | None = None) -> ChangedPairs:
        in_memory = self._records.scan(start, stop)
        return overlaid(self._spilled.scan(start, stop), in_memory) if self._spilled else in_memory

    def _own_index(self, stop: bytes | None = None) -> ChangedPairs:
        in_memory = self._index.scan(b"", stop)
        return overlaid(self._spilled.scan_index(stop), in_memory) if self._spilled else in_memory

    def put_plain(
        self, raws: list[bytes], before: list[bytes | None], after: Sequence[bytes | None]
    ) -> bool:
        """Put many keys at once; False, without a change, if one has extras or is to be removed."""
        if set(map(_LAST, filter(None, before))) - _PLAIN_ENDS:
            return False
        try:
            size_bytes = sum(map(len, after))  # type: ignore[arg-type]
        except TypeError:  # None: to be removed
            return False
        if size_bytes > MAX_VALUE_BYTES:
            return False
        self._put_records(raws, before, after, size_bytes)  # type: ignore[arg-type]
        return True

    def put_timed(
        self,
        raws: list[bytes],
        before: list[bytes | None],
        after: list[bytes],
        timeouts_ms: Sequence[int],
    ) -> bool:
        """Put many new keys with timeouts at once; False, without a change, if a key exists."""
        size_bytes = sum(map(len, after))
        if before.count(None) < len(before) or size_bytes > MAX_VALUE_BYTES:
            return False
        self._index.add_many(index_entries(timeouts_ms, raws))
        self._room -= len(raws) * _PAIR_BYTES
        self._put_records(raws, before, timed_records(after, timeouts_ms), size_bytes)
        return True

    def _put_records(
        self,
        raws: list[bytes],
        before: list[bytes | None],
        after: Sequence[bytes],
        size_bytes: int,
    ) -> None:
        self._count += before.count(None)
        self._note(raws, before, after)
        self._records.put_many(raws, after)
        self._take_room(size_bytes + len(raws) * _PAIR_BYTES)

    def remove_all(self, raws: list[bytes], records: list[bytes], entries: list[bytes]) -> None:
        """Remove keys, given their records and their entries in the timeout index."""
        self._note(raws, records, [None] * len(raws))
        if self._records.remove_many(raws) or self._spilled:
            self._may_remove_new = True
        self._index.remove_many(entries)
        self._count -= len(raws)
        self._take_room((len(raws) + len(entries)) * _PAIR_BYTES)

    def put(
        self, key: Any, raw: bytes, before: bytes | None, value: bytes, timeout_ms: int | None
    ) -> None:
        """Replace the record *before* of a key by an encoded value."""
        if len(value) > MAX_VALUE_BYTES:
            raise ValueError(
                f"the value of key {key!r:.80} must be at most {MAX_VALUE_BYTES} bytes when "
                f"encoded, got {len(value)} bytes; split it over several keys"
            )
        kind = type(key)
        if len(raw) > MAX_INLINE_BYTES or not (
            kind is str or kind is int or comes_back(key, self._classes)
        ):
            value = self._with_extras(key, raw, before, value, timeout_ms)
        elif timeout_ms is not None or (before is not None and before[-1] != PLAIN_END):
            indexed_ms = self._index_at(raw, before, timeout_ms)
            if timeout_ms is not None and indexed_ms is not None:
                value = timed_record(value, timeout_ms, indexed_ms)
        if before is None:
            self._count += 1
        if self._checksum is not None:
            self._note([raw], [before], [value])
        self._records.put(raw, value)
        self._take_room(len(value) + _PAIR_BYTES)

    def _with_extras(
        self, key: Any, raw: bytes, before: bytes | None, value: bytes, timeout_ms: int | None
    ) -> bytes:
        """Return the record of a value with extras, and update the timeout index."""
        indexed_ms = self._index_at(raw, before, timeout_ms)
        whole = encode_whole(key) if len(raw) > MAX_INLINE_BYTES else None
        original = None if comes_back(key, self._classes) else self._original(key)
        return with_extras(value, Extras(timeout_ms, indexed_ms, whole, original))

    def _index_at(self, raw: bytes, before: bytes | None, timeout_ms: int | None) -> int | None:
        """Update the timeout index for a new timeout, and return the time of the entry."""
        previous_ms = None if before is None else indexed_ms_of(before)
        indexed_ms = previous_ms
        if timeout_ms is None:
            indexed_ms = None
        elif previous_ms is None or previous_ms > require_timeout_ms(timeout_ms):
            indexed_ms = require_timeout_ms(timeout_ms)
        if indexed_ms != previous_ms:
            self._move(raw, previous_ms, indexed_ms)
        return indexed_ms

    def _original(self, key: Any) -> bytes | None:
        """Return the encoding of a key as a value; None if only its plain equal can be stored."""
        try:
            return self._encode(key)
        except NotPlainError as error:
            if error.is_class_of_data:
                raise
            return None
        except TypeError:
            return None

    def remove(self, raw: bytes, before: bytes) -> None:
        """Remove a key whose record is *before*."""
        self._count -= 1
        self._note([raw], [before], [None])
        if self._spilled or raw in self._records.by_key():
            self._may_remove_new = True
        self._records.put(raw, None)
        if before[-1] != PLAIN_END:
            self._index_at(raw, before, None)
        self._take_room(_PAIR_BYTES)

    def reschedule(self, raw: bytes, record: bytes) -> None:
        """Move the index entry of a key to the time at which the key is due."""
        value, extras = split_record(record)
        self._move(raw, extras.indexed_ms, extras.timeout_ms)
        moved = with_extras(value, extras._replace(indexed_ms=extras.timeout_ms))
        self._note([raw], [record], [moved])
        self._records.put(raw, moved)
        self._room -= len(moved) + _PAIR_BYTES

    def _move(self, raw: bytes, from_ms: int | None, to_ms: int | None) -> None:
        for time_ms, present in ((from_ms, None), (to_ms, _ENTRY)):
            if time_ms is not None:
                self._index.put(index_entry(time_ms, raw), present)
                self._room -= _PAIR_BYTES

    def _note(
        self,
        raws: Sequence[bytes],
        before: Sequence[bytes | None],
        after: Sequence[bytes | None],
    ) -> None:
        """Update the checksum."""
        if self._checksum is not None:
            self._checksum = moved_checksum(self._checksum, raws, before, after)

    def _take_room(self, size_bytes: int) -> None:
        """Account for memory, and move everything to the spill file if the limit is exceeded."""
        self._room -= size_bytes
        if self._room < 0:
            self._spilled.add(self._records.by_key(), self._index.by_key())
            self._records.clear()
            self._index.clear()
            self._room = self._spill_bytes
            self._below = self._spilled_or_below

    def changes(self) -> Iterator[Changes]:
        """Yield all changes in parts of a bounded number of keys, at least one part."""
        records, index = self._records.parts(), self._index.parts()
        if self._spilled:
            records = iter(map(_split, _columns(self._own_records())))
            index = iter(map(_split, _columns(self._own_index())))
        nothing: tuple[Sequence[bytes], Sequence[bytes], Sequence[bytes]] = ([], [], [])
        is_first = True
        while True:
            raws, values, removes = next(records, nothing)
            entering, _, leaving = next(index, nothing)
            if not (raws or removes or entering or leaving or is_first):
                return
            is_first = False
            if removes and self._may_remove_new:
                there = self._version.get_many(removes)
                removes = [raw for raw, old in zip(removes, there, strict=True) if old is not None]
            yield Changes(
                Pairs(raws, values), removes, entering, leaving, self._count, self._checksum
            )

    def close(self) -> None:
        """Drop all changes, and release the version."""
        self._records.clear()
        self._index.clear()
        try:
            self._spilled.close()
        finally:
            self._version.close()
