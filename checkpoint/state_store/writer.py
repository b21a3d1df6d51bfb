"""A writer: one content, and an overlay of changes on it.

Nothing below is changed before :meth:`Writer.commit` hands all changes over. The overlay is bytes,
so what a caller does to a value after it was put changes nothing here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any

from checkpoint.state_store.base import Base, Changes, CommittedChanges
from checkpoint.state_store.changed_view import ENTRY, ChangedView
from checkpoint.state_store.checksum import first_checksum, moved_checksum
from checkpoint.state_store.keys import (
    MAX_INLINE_BYTES,
    are_plain,
    comes_back,
    encode_key,
    encode_keys,
    encode_whole,
)
from checkpoint.state_store.overlay import are_in_order, parts_of, without_repeats
from checkpoint.state_store.protocol import WriterState
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
from checkpoint.state_store.scanning import keys_of
from checkpoint.state_store.timeouts import (
    DueRecords,
    due_records,
    index_entries,
    index_entry,
    index_stop,
    require_timeout,
    require_timeouts,
)
from checkpoint.state_store.values import MAX_VALUE_BYTES, ValueCodec

UPDATE_KEYS = 500  # as many as caches near the processor hold
_PAIR_BYTES = 200  # of memory, for a key and a record beside their own bytes
_NEAR_BYTES = 1 << 20
_PARTS = (slice(0, 8), slice(8, 64), slice(64, None))  # of keys that are read together
_LAST = itemgetter(-1)
_PLAIN_ENDS = {PLAIN_END}


class Writer(ChangedView):
    """One content and changes to it; see :class:`checkpoint.state_store.protocol.StateWriter`."""

    def __init__(
        self,
        store: StoreId,
        base: Base,
        values: ValueCodec,
        commit: Callable[[Iterable[Changes]], CommittedChanges],
        spill_bytes: int,
        spill_directory: str | None,
        checksums: bool,
    ) -> None:
        super().__init__(store, base, values, spill_directory)
        self._commit = commit
        self._encode = values.encoder()
        self._step = values.stepper()
        self._encode_many = values.many_encoder()
        self._has_removed = False
        self._spill_bytes = spill_bytes
        self._room = spill_bytes
        self._count = base.count()
        self._checksum = first_checksum(base) if checksums else None
        # Encodings and records of what was read last: what is got is mostly put next.
        self._near: dict[Any, tuple[bytes, bytes | None]] = {}

    @property
    def state(self) -> WriterState:
        """Where this writer is in its life."""
        return WriterState(self._life.end or "open")

    def count(self) -> int:
        """Return the number of keys."""
        self._life.require()
        return self._count

    def size_bytes(self) -> int:
        """Return about how much room the content takes, with the changes that are in memory."""
        return super().size_bytes() + self._spill_bytes - self._room

    def get_many(self, keys: Sequence[Any]) -> list[Any]:
        """Return the values of the first of *keys*, of all of them unless they are large."""
        self._life.require()
        raws, _ = encode_keys(list(keys))
        records: list[bytes | None] = []
        for part in _PARTS:
            records += self._records(raws[part])
            if sum(map(len, filter(None, records))) > _NEAR_BYTES:
                break
        self._near = dict(zip(keys, zip(raws, records, strict=False), strict=False))
        there = list(filter(None, records))
        values = self._decode_many(there)
        if len(there) == len(records):
            return values
        found = iter(values)
        return [None if record is None else next(found) for record in records]

    def has_many(self, keys: Sequence[Any]) -> list[bool]:
        """Return which of *keys* are there."""
        self._life.require()
        self._near = near = {}
        found: list[bool] = []
        for start in range(0, len(keys), UPDATE_KEYS):
            part = list(keys[start : start + UPDATE_KEYS])
            raws, _ = encode_keys(part)
            there = [record is not None for record in self._records(raws)]
            found += there
            for key, raw, is_there in zip(part, raws, there, strict=True):
                if not is_there:
                    near[key] = raw, None
        return found

    def put(self, key: Any, value: Any, timeout_ms: int | None = None) -> None:
        """Give a key a value, and a timeout or none.

        Args:
            timeout_ms: when the key is due, in ms since the epoch. None: never, whatever it was.

        Raises:
            TypeError: the codec does not take the value.
            ValueError: the value is None or too large, or the timeout is no time.
        """
        raw, before = self._take(key)
        if value is None:
            raise _none_of(key)
        self._put(key, raw, before, self._encode(value), timeout_ms)

    def put_many(self, values: Mapping[Any, Any], timeouts_ms: Sequence[int] | None = None) -> None:
        """Give many keys a value, and each a timeout or none. Raises as :meth:`put` does."""
        self._life.require()
        if timeouts_ms is not None:
            require_timeouts(timeouts_ms)
        keys, near = list(values), self._near
        for key, value in values.items():
            if value is None:
                raise _none_of(key)
        taken = [near.pop(key) if key in near else self._look_up(key) for key in keys]
        raws, before = [raw for raw, _ in taken], [record for _, record in taken]
        after: list[bytes] = self._encode_many(list(values.values()))
        if are_plain(keys, raws) and (
            self._put_plain(raws, before, after)
            if timeouts_ms is None
            else self._put_timed(raws, before, after, timeouts_ms)
        ):
            return
        timeouts = [None] * len(keys) if timeouts_ms is None else timeouts_ms
        for key, raw, old, new, timeout_ms in zip(keys, raws, before, after, timeouts, strict=True):
            self._put(key, raw, old, new, timeout_ms)

    def remove(self, key: Any) -> None:
        """Remove a key and its timeout; that there is none is fine."""
        raw, before = self._take(key)
        if before is not None:
            self._remove(raw, before)

    def take_due(self, until_ms: int) -> Iterator[tuple[Any, Any, int]]:
        """Remove the keys that are due before *until_ms*, and iterate over what they were.

        Read to its end: many are removed before the first of them is shown.
        """
        self._life.require()
        return self._take_due(until_ms)

    def _take_due(self, until_ms: int) -> Iterator[tuple[Any, Any, int]]:
        for due in self._removed_due(until_ms):
            keys = keys_of(due.raws, due.records, self._decode)
            yield from zip(keys, self._decode_many(due.records), due.timeouts_ms, strict=True)
            self._life.require()

    def remove_due(self, until_ms: int) -> int:
        """Remove the keys that are due before *until_ms*, and return how many."""
        self._life.require()
        return sum(len(due.raws) for due in self._removed_due(until_ms))

    def _removed_due(self, until_ms: int) -> Iterator[DueRecords]:
        """Remove the keys that are due, and yield what they were, many at a time."""
        entries = self._entries(index_stop(until_ms))
        while chunk := list(islice(entries, UPDATE_KEYS)):
            due, too_early = due_records(chunk, self._records, until_ms)
            for raw, record in too_early:
                self._put_off(raw, record)
            self._remove_all(due)
            yield due

    def _remove_all(self, due: DueRecords) -> None:
        self._near.clear()
        self._note(due.raws, due.records, [None] * len(due.raws))
        self._changed.update(dict.fromkeys(due.raws))
        self._index.update(dict.fromkeys(due.entries))
        self._has_removed = True
        self._count -= len(due.raws)
        self._room -= 2 * len(due.raws) * _PAIR_BYTES
        if self._room < 0:
            self._spill()

    def update(self, pairs: Iterable[tuple[Any, Any]], step: Callable[[Any, Any], Any]) -> None:
        """Get, step and put for many keys, faster than one by one.

        Args:
            pairs: (key, given); some are pulled before the first is stepped. Fastest if they are in
                the order of their keys: what is near is then read and written together.
            step: ``(given, value or None) -> new value``, or None to remove the key. The new value
                has no timeout. It must not change the store itself.
        """
        self._life.require()
        self._near.clear()
        rest = iter(pairs)
        while chunk := list(islice(rest, UPDATE_KEYS)):
            keys, given = map(list, zip(*chunk, strict=True))
            raws, are_plain = encode_keys(keys)
            if are_in_order(raws):
                self._update(keys, raws, given, step, are_plain, in_order=True)
                continue
            for part in without_repeats(raws):  # a step sees what the one before has put
                self._update(keys[part], raws[part], given[part], step, are_plain)

    def _update(
        self,
        keys: list[Any],
        raws: list[bytes],
        given: list[Any],
        step: Callable[[Any, Any], Any],
        are_plain: bool,
        in_order: bool = False,
    ) -> None:
        is_behind = in_order and self._follow(raws)
        before = self._records_below(raws) if is_behind else self._records(raws)
        after = self._step(given, before, step)
        if are_plain and self._put_plain(raws, before, after, in_order):
            return
        self._fold()
        for key, raw, old, new in zip(keys, raws, before, after, strict=True):
            if new is not None:
                self._put(key, raw, old, new, None)
            elif old is not None:
                self._remove(raw, old)

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

    def commit(self) -> CommittedChanges:
        """Write the changes, durably, and end this writer.

        Raises:
            CheckpointError: they were not, or perhaps not, written. The writer is aborted.
        """
        self._life.require()
        end = "aborted"
        try:
            committed = self._commit(self._changes())
            end = "committed"
        finally:
            self._end(end)
        return committed

    def abort(self) -> None:
        """Drop all changes and end this writer, if it has not come to its end."""
        if self._life.is_open:
            self._end("aborted")

    def _leave(self) -> None:
        self.abort()

    def _end(self, end: str) -> None:
        self._life.finish(end)
        self._changed.clear()
        self._ordered.clear()
        self._index.clear()
        self._near.clear()
        try:
            self._runs.close()
        finally:
            self._base.close()

    def _record(self, key: Any) -> bytes | None:
        """Return the record of a key, and remember it with its encoding."""
        if not self._life.is_open:
            self._life.require()
        near = self._near
        try:
            known = near.get(key)
        except TypeError:  # encoding it says what is wrong with it
            known = None
        if known is None:
            known = self._look_up(key)
            near.clear()  # they may be large
            near[key] = known
        return known[1]

    def _take(self, key: Any) -> tuple[bytes, bytes | None]:
        """Return encoding and record of a key that is about to change."""
        if not self._life.is_open:
            self._life.require()
        try:
            known = self._near.pop(key, None)
        except TypeError:
            known = None
        return known or self._look_up(key)

    def _look_up(self, key: Any) -> tuple[bytes, bytes | None]:
        self._fold()
        raw = encode_key(key)
        changed = self._changed
        return raw, changed[raw] if raw in changed else self._below(raw)

    def _put(
        self, key: Any, raw: bytes, before: bytes | None, value: bytes, timeout_ms: int | None
    ) -> None:
        if len(value) > MAX_VALUE_BYTES:
            raise ValueError(
                f"value of key {key!r:.80} of {len(value)} bytes must be at most {MAX_VALUE_BYTES} "
                "bytes when encoded; split it over several keys"
            )
        kind = type(key)
        if len(raw) > MAX_INLINE_BYTES or not (kind is str or kind is int or comes_back(key)):
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
        original = None if comes_back(key) else self._original(key)
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
        except TypeError:  # no plain data, as a named tuple; the tuple that it equals will do
            return None

    def _remove(self, raw: bytes, before: bytes) -> None:
        self._count -= 1
        self._note([raw], [before], [None])
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
        removes_from = self._base if self._has_removed else None
        columns, index = self._own_columns(), self._own_index()
        return parts_of(columns, index, removes_from, self._count, self._checksum)


def _none_of(key: Any) -> ValueError:
    return ValueError(
        f"value None of key {key!r:.80} must be another: None is what get returns for a key that "
        "is not there; remove the key, or put a tuple that holds None"
    )
