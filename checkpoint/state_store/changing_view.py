"""Putting and removing records: what one change does to the overlay, the index and the count.

Nothing here asks where a record was before: who changes one has looked it up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any

from checkpoint.state_store.base import Base, Changes
from checkpoint.state_store.changed_view import ENTRY, ChangedView
from checkpoint.state_store.checksum import first_checksum, moved_checksum
from checkpoint.state_store.keys import MAX_INLINE_BYTES, comes_back, encode_whole
from checkpoint.state_store.overlay import parts_of
from checkpoint.state_store.plain_pickles import NotPlainError
from checkpoint.state_store.records import (
    PLAIN_END,
    Extras,
    indexed_ms_of,
    split_record,
    timed_record,
    timed_records,
    with_extras,
)
from checkpoint.state_store.reference import StoreId
from checkpoint.state_store.timeouts import (
    DueRecords,
    index_entries,
    index_entry,
    require_timeout,
)
from checkpoint.state_store.value_codec import MAX_VALUE_BYTES, ValueCodec

_PAIR_BYTES = 200  # of memory, for a key and a record beside their own bytes
_LAST = itemgetter(-1)
_PLAIN_ENDS = {PLAIN_END}


class ChangingView(ChangedView):
    """A content, changes to it, and how one more of them is made.

    Args:
        store: the store.
        base: the content.
        values: codec of its values.
        spill_bytes: changes above about this are held on disk, not in memory.
        spill_directory: where; None for the default of the system.
        checksums: carry the checksum of all records on.
    """

    def __init__(
        self,
        store: StoreId,
        base: Base,
        values: ValueCodec,
        spill_bytes: int,
        spill_directory: str | None,
        checksums: bool,
    ) -> None:
        super().__init__(store, base, values, spill_directory)
        self._encode = values.encoder(self._shapes)
        self._has_removed = False
        self._has_removed_new = False  # perhaps: one that the base may not have
        self._spill_bytes = spill_bytes
        self._room = spill_bytes
        self._count = base.count()
        self._checksum = first_checksum(base) if checksums else None
        # Encodings and records of what was read last: what is got is mostly put next.
        self._near: dict[Any, tuple[bytes, bytes | None]] = {}

    def _put_plain(
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

    def _put_timed(
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
        self._index.update(dict.fromkeys(index_entries(timeouts_ms, raws), ENTRY))
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
        if in_order and self._follow(raws):
            self._near.clear()  # what a step has looked at
            self._ordered.add(raws, after)  # type: ignore[arg-type]
        else:
            self._fold()
            self._changed.update(zip(raws, after, strict=True))
        self._room -= size_bytes + len(raws) * _PAIR_BYTES
        if self._room < 0:
            self._spill()

    def _remove_all(self, due: DueRecords) -> None:
        self._near.clear()
        self._note(due.raws, due.records, [None] * len(due.raws))
        if len(self._runs) or not self._changed.keys().isdisjoint(due.raws):
            self._has_removed_new = True
        self._changed.update(dict.fromkeys(due.raws))
        self._index.update(dict.fromkeys(due.entries))
        self._has_removed = True
        self._count -= len(due.raws)
        self._room -= 2 * len(due.raws) * _PAIR_BYTES
        if self._room < 0:
            self._spill()

    def _put(
        self, key: Any, raw: bytes, before: bytes | None, value: bytes, timeout_ms: int | None
    ) -> None:
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
        elif stood_ms is None or stood_ms > require_timeout(timeout_ms):
            indexed_ms = require_timeout(timeout_ms)
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

    def _remove(self, raw: bytes, before: bytes) -> None:
        self._count -= 1
        self._note([raw], [before], [None])
        if raw in self._changed or len(self._runs):
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
        for time_ms, present in ((from_ms, None), (to_ms, ENTRY)):
            if time_ms is not None:
                self._index[index_entry(time_ms, raw)] = present
                self._room -= _PAIR_BYTES

    def _spill(self) -> None:
        self._fold()
        self._runs.add(self._changed, self._index)
        self._changed.clear()
        self._index.clear()
        self._room = self._spill_bytes
        self._below = self._spilled_or_below

    def _put_off(self, raw: bytes, record: bytes) -> None:
        value, extras = split_record(record)
        self._move(raw, extras.indexed_ms, extras.timeout_ms)
        moved = with_extras(value, extras._replace(indexed_ms=extras.timeout_ms))
        self._note([raw], [record], [moved])
        self._changed[raw] = moved
        self._near.clear()
        self._room -= len(moved) + _PAIR_BYTES

    def _changes(self) -> Iterator[Changes]:
        """Yield all changes in parts, each of a bounded number of keys."""
        columns, index = self._own_columns(), self._own_index_columns()
        base = self._base if self._has_removed_new else None
        return parts_of(columns, index, self._has_removed, base, self._count, self._checksum)
