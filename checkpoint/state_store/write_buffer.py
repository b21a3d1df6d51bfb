"""Layers of changes: sorted streams in which the upper one wins, and their columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import compress, islice, repeat
from operator import itemgetter, lt
from typing import Any, TypeVar

from checkpoint.log.version_records import VersionId
from checkpoint.state_store.backend import (
    Changes,
    Pairs,
    RawVersion,
    first_checksum,
    moved_checksum,
)
from checkpoint.state_store.change_blocks import Column
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
from checkpoint.state_store.spill import Spill
from checkpoint.state_store.values import MAX_VALUE_BYTES, ValueCodec

CHUNK_KEYS = 50_000

Columns = tuple[Sequence[bytes], Sequence["bytes | None"]]
"""Keys and what stands for them, apart."""

_V = TypeVar("_V")


class OrderedChanges:
    """Records that were put in the order of their keys, joined as they come."""

    def __init__(self) -> None:
        self._first = self._last = b""
        self._columns: list[tuple[Column, Column]] = []

    def __bool__(self) -> bool:
        return bool(self._columns)

    def follow(self, raws: list[bytes]) -> bool:
        """Whether keys that are in order stand behind all that are here."""
        return bool(raws) and self._last < raws[0]

    def meets(self, start: bytes, stop: bytes | None) -> bool:
        """Whether keys from *start* up to before *stop* may be here."""
        return bool(self._columns) and self._last >= start and (stop is None or self._first < stop)

    def add(self, raws: list[bytes], records: Sequence[bytes]) -> None:
        """Add keys that follow, and their records."""
        self._first = self._first or raws[0]
        self._last = raws[-1]
        self._columns.append((Column.of(raws), Column.of(records)))

    def columns(self) -> Iterator[tuple[Column, Column]]:
        """Yield all keys and records, in parts of a bounded number."""
        part: list[tuple[Column, Column]] = []
        count = 0
        for raws, records in self._columns:
            if count + len(raws) > CHUNK_KEYS:
                yield _joined(part)
                part, count = [], 0
            part.append((raws, records))
            count += len(raws)
        if part:
            yield _joined(part)

    def move_to(self, changed: dict[bytes, bytes | None]) -> None:
        """Put them all into *changed*, and begin anew."""
        for raws, records in self._columns:
            changed.update(zip(raws, records, strict=True))
        self.clear()

    def clear(self) -> None:
        """Begin anew."""
        self._first = self._last = b""
        self._columns.clear()


def _joined(part: list[tuple[Column, Column]]) -> tuple[Column, Column]:
    raws, records = zip(*part, strict=True)
    return Column.joined(raws), Column.joined(records)


class Apart:
    """Keys, or entries of the timeout index, that are all changed in one way, each once."""

    def __init__(self) -> None:
        self._keys: list[bytes] = []
        self._first = self._last = b""

    def __bool__(self) -> bool:
        return bool(self._keys)

    def meets(self, start: bytes, stop: bytes | None) -> bool:
        """Whether some may be from *start* up to *stop*."""
        return bool(self._keys) and self._last >= start and (stop is None or self._first <= stop)

    def add(self, keys: list[bytes]) -> None:
        """Add some, of which none is here."""
        if keys:
            first, last = min(keys), max(keys)
            self._first = min(self._first, first) if self._keys else first
            self._last = max(self._last, last)
            self._keys += keys

    def move_to(self, changed: dict[bytes, bytes | None], value: bytes | None) -> None:
        """Give all of them a value in *changed*, and begin anew."""
        if self._keys:
            changed.update(zip(self._keys, repeat(value)))
            self.clear()

    def parts(self) -> Iterator[list[bytes]]:
        """Yield all of them in order, in parts of a bounded number."""
        ordered = sorted(self._keys)
        for start in range(0, len(ordered), CHUNK_KEYS):
            yield ordered[start : start + CHUNK_KEYS]

    def clear(self) -> None:
        """Begin anew."""
        self._keys.clear()
        self._first = self._last = b""


def are_in_order(raws: list[bytes]) -> bool:
    """Whether each is less than the one after it."""
    return all(map(lt, raws, islice(raws, 1, None)))


def overlaid(
    below: Iterator[tuple[bytes, _V]], above: Iterator[tuple[bytes, _V]]
) -> Iterator[tuple[bytes, _V]]:
    """Merge two streams that are sorted by key; of a key that is in both, *above* counts."""
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


def entries_between(
    changed: dict[bytes, _V], start: bytes = b"", stop: bytes | None = None
) -> Iterator[tuple[bytes, _V]]:
    """Return what is in *changed* now, sorted by key, from *start* up to before *stop*."""
    keys: Iterable[bytes] = changed
    if stop is not None:
        keys = [key for key in changed if start <= key < stop]
    elif start != b"":
        keys = [key for key in changed if start <= key]
    ordered = sorted(keys)
    return iter(list(zip(ordered, map(changed.__getitem__, ordered), strict=True)))


def columns_of(changed: dict[bytes, bytes | None]) -> Iterator[Columns]:
    """Yield what is in *changed*, sorted by key, in parts of a bounded number."""
    ordered = sorted(changed)
    for start in range(0, len(ordered), CHUNK_KEYS):
        raws = ordered[start : start + CHUNK_KEYS]
        yield raws, list(map(changed.__getitem__, raws))


def parts_of(
    columns: Iterator[Columns],
    index: Iterator[Columns],
    apart: list[Iterator[list[bytes]]],
    has_removed: bool,
    removes_from: RawVersion | None,
    count: int,
    checksum: int | None,
) -> Iterator[Changes]:
    """Yield the changes of a commit, in parts; one at least.

    What stands *apart* are keys that are removed, and entries that enter and leave the index: of
    these each kind is either there or in the other columns.
    """
    is_first = True
    while True:
        raws, records = next(columns, ([], []))
        entries, present = next(index, ([], []))
        gone, entering, leaving = (next(parts, []) for parts in apart)
        if not (raws or entries or gone or entering or leaving or is_first):
            return
        is_first = False
        removes: Sequence[bytes] = gone
        if has_removed:
            raws, records, removes = _parted(raws, records)
            if removes_from is not None:
                there = removes_from.get_many(removes)
                removes = [raw for raw, old in zip(removes, there, strict=True) if old is not None]
        if entries:
            entering, _, leaving = _parted(entries, present)  # type: ignore[assignment]
        yield Changes(
            puts=Pairs(raws, records),  # type: ignore[arg-type]
            removes=removes,
            index_puts=entering,
            index_removes=leaving,
            count=count,
            checksum=checksum,
        )


def _parted(
    raws: Sequence[bytes], records: Sequence[bytes | None]
) -> tuple[Sequence[bytes], Sequence[bytes | None], Sequence[bytes]]:
    """Return keys and records of those that are there, and the keys of those that are not."""
    if None not in records:
        return raws, records, []
    is_there = [record is not None for record in records]
    gone = [raw for raw, record in zip(raws, records, strict=True) if record is None]
    return list(compress(raws, is_there)), list(compress(records, is_there)), gone


def without_repeats(raws: list[bytes]) -> Iterator[slice]:
    """Yield the parts of a list, as long as can be, in which no key is there twice."""
    seen = set(raws)
    if len(seen) == len(raws):
        yield slice(0, len(raws))
        return
    start = 0
    seen.clear()
    for at, raw in enumerate(raws):
        if raw in seen:
            yield slice(start, at)
            start = at
            seen.clear()
        seen.add(raw)
    yield slice(start, len(raws))


_ENTRY = b"+"  # an entry of the timeout index that is there
_PAIR_BYTES = 200  # of memory, for a key and a record beside their own bytes
_LAST = itemgetter(-1)
_PLAIN_ENDS = {PLAIN_END}


class Overlay:
    """Changes to a version, in memory and in files."""

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
        self._changed: dict[bytes, bytes | None] = {}  # None: removed
        self._ordered = OrderedChanges()  # put in their order; as long as nothing is in _changed
        self._gone = Apart()  # removed from the version, and not changed otherwise
        self._index: dict[bytes, bytes | None] = {}
        # Entries that enter, and that leave the version; as long as nothing is in _index.
        self._entered, self._left = Apart(), Apart()
        self._spilled = Spill(spill_directory)
        self._below: Callable[[bytes], bytes | None] = version.get
        self._has_removed = False
        self._has_removed_new = False  # perhaps: one that the version may not have
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
        """Return about how much room the version takes, with the changes that are in memory."""
        return self._version.size_bytes() + self._spill_bytes - self._room

    def fold(self) -> None:
        """Bring all changes where one of them can be found by its key."""
        if self._ordered:
            self._ordered.move_to(self._changed)
        if self._gone:
            self._gone.move_to(self._changed, None)
            self._has_removed = True

    def _fold_index(self) -> None:
        """Bring all changes of the timeout index where one of them can be found."""
        self._left.move_to(self._index, None)
        self._entered.move_to(self._index, _ENTRY)

    def follow(self, raws: list[bytes]) -> bool:
        """Whether keys that are in order stand behind all that was changed."""
        return not (self._changed or self._gone) and self._ordered.follow(raws)

    def records(self, raws: list[bytes]) -> list[bytes | None]:
        """Return the records of many encoded keys, None for those that are not there."""
        self.fold()
        return self._records(raws)

    def records_of_due(self, raws: list[bytes]) -> list[bytes | None]:
        """Do as :meth:`records` does, where a key that is gone may come with what it had.

        What the index names is not there twice, so the time in its record tells.
        """
        if self._ordered:
            self.fold()
        return self._records(raws)

    def _records(self, raws: list[bytes]) -> list[bytes | None]:
        changed = self._changed
        if changed.keys().isdisjoint(raws):
            return self.records_below(raws)
        rest = iter(self.records_below([raw for raw in raws if raw not in changed]))
        return [changed[raw] if raw in changed else next(rest) for raw in raws]

    def records_below(self, raws: list[bytes]) -> list[bytes | None]:
        """Return what :meth:`records` does for keys of which none is changed in memory."""
        return list(map(self._below, raws)) if self._spilled else self._version.get_many(raws)

    def _spilled_or_below(self, raw: bytes) -> bytes | None:
        spilled = self._spilled.get(raw)
        return self._version.get(raw) if spilled is None else spilled or None

    def get(self, raw: bytes) -> bytes | None:
        """Return the record of an encoded key, None if it is not there."""
        self.fold()
        changed = self._changed
        return changed[raw] if raw in changed else self._below(raw)

    def scan(self, start: bytes, stop: bytes | None) -> Iterator[tuple[bytes, bytes | None]]:
        """Iterate over encoded keys and records in order, None for one that was removed."""
        yield from self.scan_now(start, stop)

    def scan_now(self, start: bytes, stop: bytes | None) -> Iterator[tuple[bytes, bytes | None]]:
        """Do as :meth:`scan` does, with what is there now."""
        below: Iterator[tuple[bytes, bytes | None]] = self._version.scan(start, stop)
        return overlaid(below, self._own(start, stop)) if self._meets(start, stop) else below

    def scan_index(self, stop: bytes) -> Iterator[bytes]:
        """Iterate over the entries of the timeout index in order, up to before *stop*."""
        below = self._version.scan_index(stop)
        is_changed = self._index or self._spilled or self._left
        if not (is_changed or self._entered.meets(b"", stop)):
            return below
        pairs = overlaid(((entry, _ENTRY) for entry in below), self._own_index(stop))
        return (entry for entry, present in pairs if present is not None)

    def _meets(self, start: bytes, stop: bytes | None) -> bool:
        """Whether there may be changes of keys from *start* up to before *stop*."""
        if self._changed or self._spilled:
            return True
        return self._ordered.meets(start, stop) or self._gone.meets(start, stop)

    def _own(
        self, start: bytes = b"", stop: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes | None]]:
        self.fold()
        in_memory = entries_between(self._changed, start, stop)
        return overlaid(self._spilled.scan(start, stop), in_memory) if self._spilled else in_memory

    def _own_index(self, stop: bytes | None = None) -> Iterator[tuple[bytes, bytes | None]]:
        self._fold_index()
        in_memory = entries_between(self._index, b"", stop)
        return overlaid(self._spilled.scan_index(stop), in_memory) if self._spilled else in_memory

    def put_plain(
        self,
        raws: list[bytes],
        before: list[bytes | None],
        after: Sequence[bytes | None],
        in_order: bool = False,
    ) -> bool:
        """Put many at once, unless one of them needs more than its value."""
        there = list(filter(None, before))
        if set(map(_LAST, there)) - _PLAIN_ENDS:
            return False
        try:
            size_bytes = sum(map(len, after))  # type: ignore[arg-type]
        except TypeError:  # None: to be removed
            return False
        if size_bytes > MAX_VALUE_BYTES:
            return False
        self._put_records(raws, before, after, size_bytes, in_order)
        return True

    def put_timed(
        self,
        raws: list[bytes],
        before: list[bytes | None],
        after: list[bytes],
        timeouts_ms: Sequence[int],
    ) -> bool:
        """Put many keys that were not there at once, with timeouts; False if any was there."""
        size_bytes = sum(map(len, after))
        if before.count(None) < len(before) or size_bytes > MAX_VALUE_BYTES:
            return False
        entries = index_entries(timeouts_ms, raws)
        if self._index or self._left:
            self._fold_index()
            self._index.update(zip(entries, repeat(_ENTRY)))
        else:
            self._entered.add(entries)
        self._room -= len(raws) * _PAIR_BYTES
        self._put_records(raws, before, timed_records(after, timeouts_ms), size_bytes)
        return True

    def _put_records(
        self,
        raws: list[bytes],
        before: list[bytes | None],
        after: Sequence[bytes | None],
        size_bytes: int,
        in_order: bool = False,
    ) -> None:
        self._count += before.count(None)
        self._note(raws, before, after)
        if in_order and self.follow(raws):
            self._ordered.add(raws, after)  # type: ignore[arg-type]
        else:
            self.fold()
            self._changed.update(zip(raws, after, strict=True))
        self._room -= size_bytes + len(raws) * _PAIR_BYTES
        if self._room < 0:
            self._spill()

    def remove_all(self, raws: list[bytes], records: list[bytes], entries: list[bytes]) -> None:
        """Remove keys, given their records and what names them in the timeout index."""
        self._note(raws, records, [None] * len(raws))
        if self._is_of_version(raws):
            self._gone.add(raws)
        else:
            self.fold()
            self._has_removed_new = True
            self._changed.update(zip(raws, repeat(None)))
            self._has_removed = True
        if self._index or (entries and self._entered.meets(min(entries), max(entries))):
            self._fold_index()
            self._index.update(zip(entries, repeat(None)))
        else:
            self._left.add(entries)
        self._count -= len(raws)
        self._room -= (len(raws) + len(entries)) * _PAIR_BYTES
        if self._room < 0:
            self._spill()

    def _is_of_version(self, raws: list[bytes]) -> bool:
        """Whether keys that are there are so in the version, and not by a change to it."""
        if self._spilled or not self._changed.keys().isdisjoint(raws):
            return False
        return not (self._ordered and self._ordered.meets(min(raws), max(raws) + b"\0"))

    def put(
        self, key: Any, raw: bytes, before: bytes | None, value: bytes, timeout_ms: int | None
    ) -> None:
        """Put a value, encoded, in the place of the record *before* of a key."""
        if len(value) > MAX_VALUE_BYTES:
            raise ValueError(
                f"value of key {key!r:.80} of {len(value)} bytes must be at most {MAX_VALUE_BYTES} "
                "bytes when encoded; split it over several keys"
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
        self._changed[raw] = value
        self._room -= len(value) + _PAIR_BYTES
        if self._room < 0:
            self._spill()

    def _with_extras(
        self, key: Any, raw: bytes, before: bytes | None, value: bytes, timeout_ms: int | None
    ) -> bytes:
        """Return the record of a value that needs more than itself, and bring the index to it."""
        indexed_ms = self._index_at(raw, before, timeout_ms)
        whole = encode_whole(key) if len(raw) > MAX_INLINE_BYTES else None
        original = None if comes_back(key, self._classes) else self._original(key)
        return with_extras(value, Extras(timeout_ms, indexed_ms, whole, original))

    def _index_at(self, raw: bytes, before: bytes | None, timeout_ms: int | None) -> int | None:
        """Bring the index to a new timeout of a key, and return where the key stands then."""
        stood_ms = None if before is None else indexed_ms_of(before)
        indexed_ms = stood_ms
        if timeout_ms is None:
            indexed_ms = None
        elif stood_ms is None or stood_ms > require_timeout_ms(timeout_ms):
            indexed_ms = require_timeout_ms(timeout_ms)
        if indexed_ms != stood_ms:
            self._move(raw, stood_ms, indexed_ms)
        return indexed_ms

    def _original(self, key: Any) -> bytes | None:
        try:
            return self._encode(key)
        except NotPlainError as error:
            if error.is_class_of_data:
                raise
            return None  # the plain key that it equals will do
        except TypeError:
            return None

    def remove(self, raw: bytes, before: bytes) -> None:
        """Remove a key whose record is *before*."""
        self._count -= 1
        self._note([raw], [before], [None])
        if raw in self._changed or self._spilled:
            self._has_removed_new = True
        self._changed[raw] = None
        self._has_removed = True
        if before[-1] != PLAIN_END:
            self._index_at(raw, before, None)
        self._room -= _PAIR_BYTES
        if self._room < 0:
            self._spill()

    def _note(
        self,
        raws: Sequence[bytes],
        before: Sequence[bytes | None],
        after: Sequence[bytes | None],
    ) -> None:
        """Carry the checksum on."""
        if self._checksum is not None:
            self._checksum = moved_checksum(self._checksum, raws, before, after)

    def _move(self, raw: bytes, from_ms: int | None, to_ms: int | None) -> None:
        self._fold_index()
        for time_ms, present in ((from_ms, None), (to_ms, _ENTRY)):
            if time_ms is not None:
                self._index[index_entry(time_ms, raw)] = present
                self._room -= _PAIR_BYTES

    def _spill(self) -> None:
        self.fold()
        self._fold_index()
        self._spilled.add(self._changed, self._index)
        self._changed.clear()
        self._index.clear()
        self._room = self._spill_bytes
        self._below = self._spilled_or_below

    def put_off(self, raw: bytes, record: bytes) -> None:
        """Move a key that the timeout index names too early to where it is due."""
        value, extras = split_record(record)
        self._move(raw, extras.indexed_ms, extras.timeout_ms)
        moved = with_extras(value, extras._replace(indexed_ms=extras.timeout_ms))
        self._note([raw], [record], [moved])
        self._changed[raw] = moved
        self._room -= len(moved) + _PAIR_BYTES

    def changes(self) -> Iterator[Changes]:
        """Yield all changes in parts, each of a bounded number of keys."""
        if self._spilled:
            columns, index = _in_columns(self._own()), _in_columns(self._own_index())
        else:
            if self._has_removed:
                self.fold()
            columns = columns_of(self._changed) if self._changed else self._ordered.columns()
            index = columns_of(self._index)
        removes_from = self._version if self._has_removed_new else None
        return parts_of(
            columns,
            index,
            [self._gone.parts(), self._entered.parts(), self._left.parts()],
            self._has_removed,
            removes_from,
            self._count,
            self._checksum,
        )

    def close(self) -> None:
        """Drop all changes, and give the version back."""
        self._changed.clear()
        self._ordered.clear()
        self._index.clear()
        for apart in (self._gone, self._entered, self._left):
            apart.clear()
        try:
            self._spilled.close()
        finally:
            self._version.close()


def _in_columns(pairs: Iterator[tuple[bytes, bytes | None]]) -> Iterator[Columns]:
    while part := list(islice(pairs, CHUNK_KEYS)):
        raws, records = map(list, zip(*part, strict=True))
        yield raws, records
