"""A writer: one version, and an overlay of changes on it.

A writer begins open. What its calls do then, and afterwards:

=========== ==================== ==================== ===========
state       get, scans, put ...  commit               abort
=========== ==================== ==================== ===========
open        done                 then committed       then aborted
committed   StateStoreUseError   StateStoreUseError   nothing
aborted     StateStoreUseError   StateStoreUseError   nothing
=========== ==================== ==================== ===========

A commit that fails aborts, whatever the error: the attempt has failed, and the next one is another
writer. As a context manager a writer aborts what was not committed. None of this changes the
version it was opened on, nor disturbs another writer on it.

Nothing below is changed before :meth:`StateWriter.commit` hands all changes over. The overlay is
bytes, so what a caller does to a value after it was put changes nothing here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import compress, islice
from operator import not_
from typing import Any

from checkpoint.log.version_records import PartitionCommit, StoreId
from checkpoint.state_store.backend import Changes
from checkpoint.state_store.key_decoding import decode_keys
from checkpoint.state_store.keys import (
    MAX_INLINE_BYTES,
    KeyRange,
    are_plain,
    encode_key,
    encode_keys,
    key_range,
)
from checkpoint.state_store.records import (
    DueRecords,
    are_plain_records,
    due_records,
    extras_of,
    index_entries_of,
    index_stop,
    is_timed,
    require_timeouts_ms,
)
from checkpoint.state_store.shapes import Shapes
from checkpoint.state_store.store_reader import StateReader, WriterState
from checkpoint.state_store.values import ValueCodec
from checkpoint.state_store.write_buffer import Overlay, are_in_order, without_repeats

UPDATE_KEYS = 500  # as many as caches near the processor hold
_NEAR_BYTES = 1 << 20
_PARTS = (slice(0, 8), slice(8, 64), slice(64, None))  # of keys that are read together


class StateWriter(StateReader):
    """A version, and changes to it that only this writer sees until they count.

    It reads as :class:`StateReader` does, its own changes included. A store may be changed while it
    is iterated over: an iterator shows what was there when its first pair was asked for, and one of
    keys that are due does not show one later that was put or removed meanwhile, unless it was due
    all the same.

    Args:
        store: the store.
        values: codec of its values.
        shapes: those of the version; what is put may add to them.
        overlay: the version, and changes to it.
        commit: writes the changes.
    """

    _what = "writer"

    def __init__(
        self,
        store: StoreId,
        values: ValueCodec,
        shapes: Shapes,
        overlay: Overlay,
        commit: Callable[[Iterable[Changes]], PartitionCommit],
    ) -> None:
        super().__init__(store, overlay, values, shapes)
        self._overlay = overlay
        self._commit = commit
        self._encode = values.encoder(shapes)
        self._encode_many = values.many_encoder(shapes)
        # Encodings and records of what was read last: what is got is mostly put next.
        self._near: dict[Any, tuple[bytes, bytes | None]] = {}

    @property
    def state(self) -> WriterState:
        """Where this writer is in its life."""
        return WriterState(self._ended or "open")

    def get_many(self, keys: Sequence[Any]) -> list[Any]:
        """Return the values of the first of *keys*, in less time than one by one.

        Of all of them unless they are large, of one at least if there is one. To put or remove
        these keys next takes less time, too.
        """
        self._require_open()
        raws, _ = encode_keys(list(keys))
        records: list[bytes | None] = []
        for part in _PARTS:
            records += self._overlay.records(raws[part])
            if sum(map(len, filter(None, records))) > _NEAR_BYTES:
                break
        self._near = dict(zip(keys, zip(raws, records, strict=False), strict=False))
        return list(self._decode_many(records))

    def has_many(self, keys: Sequence[Any]) -> list[bool]:
        """Return which of *keys* are there, in less time than to get them.

        To put those that are not takes less time next.
        """
        self._require_open()
        near: dict[Any, tuple[bytes, bytes | None]] = {}
        self._near = near
        found: list[bool] = []
        for start in range(0, len(keys), UPDATE_KEYS):
            part = list(keys[start : start + UPDATE_KEYS])
            raws, _ = encode_keys(part)
            records = self._overlay.records(raws)
            there = [record is not None for record in records]
            found += there
            if not all(there):
                known = zip(part, zip(raws, records, strict=True), strict=True)
                near.update(compress(known, map(not_, there)))
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
        self._overlay.put(key, raw, before, self._encode(value), timeout_ms)

    def put_many(self, values: Mapping[Any, Any], timeouts_ms: Sequence[int] | None = None) -> None:
        """Give many keys a value, in less time than one by one.

        Raises as :meth:`put` does; some may have been put then.

        Args:
            timeouts_ms: when each of them is due, in ms since the epoch, in the order of *values*.
                None: never, whatever it was.
        """
        self._require_open()
        if timeouts_ms is not None:
            require_timeouts_ms(timeouts_ms)
        keys, given = list(values), list(values.values())
        if type(None) in set(map(type, given)):
            raise _none_of(next(key for key, value in values.items() if value is None))
        raws, before = self._take_many(keys)
        after: list[Any] = self._encode_many(given)
        if are_plain(keys, raws, self._classes) and (
            self._overlay.put_plain(raws, before, after)
            if timeouts_ms is None
            else self._overlay.put_timed(raws, before, after, timeouts_ms)
        ):
            return
        timeouts = [None] * len(keys) if timeouts_ms is None else timeouts_ms
        for key, raw, old, new, timeout_ms in zip(keys, raws, before, after, timeouts, strict=True):
            self._overlay.put(key, raw, old, new, timeout_ms)

    def remove(self, key: Any) -> None:
        """Remove a key and its timeout; that there is none is fine."""
        raw, before = self._take(key)
        if before is not None:
            self._overlay.remove(raw, before)

    def take_due(self, until_ms: int) -> Iterator[tuple[Any, Any, int]]:
        """Remove the keys that are due before *until_ms*, and iterate as :meth:`due` does.

        In less time than one by one; to be read to its end, because many are removed before the
        first of them is shown.
        """
        self._require_open()
        return self._take_due(until_ms)

    def _take_due(self, until_ms: int) -> Iterator[tuple[Any, Any, int]]:
        for due in self._removed_due(until_ms):
            keys = self._keys_of(due.raws, due.records)
            yield from zip(keys, self._decode_many(due.records), due.timeouts_ms, strict=True)
            self._require_open()

    def _keys_of(self, raws: list[bytes], records: list[bytes]) -> list[Any]:
        are_short = len(max(raws, key=len, default=b"")) <= MAX_INLINE_BYTES
        if are_short and (are_plain_records(records) or all(map(is_timed, records))):
            return decode_keys(raws, self._classes)
        return list(map(self._key_of, raws, records))

    def remove_due(self, until_ms: int) -> int:
        """Remove the keys that are due before *until_ms*, and return how many.

        In less time than :meth:`take_due`, because nothing is shown.
        """
        self._require_open()
        return sum(len(due.raws) for due in self._removed_due(until_ms))

    def take_range(self, start: Any, stop: Any) -> Iterator[tuple[list[Any], Iterable[Any]]]:
        """Remove the keys from *start* up to before *stop*, and iterate over (keys, values).

        Many at a time, in the order of :meth:`range`, and in less time than one by one; to be read
        to its end.
        """
        self._require_open()
        return self._take_range(key_range(start, stop))

    def _take_range(self, wanted: KeyRange) -> Iterator[tuple[list[Any], Iterable[Any]]]:
        for raws, records in self._removed_range(wanted):
            yield self._keys_of(raws, records), self._decode_many(records)
            self._require_open()

    def remove_range(self, start: Any, stop: Any) -> int:
        """Remove the keys from *start* up to before *stop*, and return how many.

        In less time than :meth:`take_range`, because nothing is shown.
        """
        self._require_open()
        return sum(len(raws) for raws, _ in self._removed_range(key_range(start, stop)))

    def _removed_range(self, wanted: KeyRange) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """Remove the keys of a range, and yield them and their records, many at a time."""
        found = self._overlay.scan_now(wanted.first, wanted.last)
        while chunk := list(islice(found, UPDATE_KEYS)):
            raws, records = map(list, zip(*chunk, strict=True))
            if None in records or not wanted.is_exact:
                is_there = [
                    record is not None
                    and (wanted.is_exact or wanted.holds(extras_of(record).whole or raw))
                    for raw, record in chunk
                ]
                raws, records = list(compress(raws, is_there)), list(compress(records, is_there))
            if raws:
                self._near.clear()
                entries = index_entries_of(raws, records)
                self._overlay.remove_all(raws, records, entries)
                yield raws, records

    def _removed_due(self, until_ms: int) -> Iterator[DueRecords]:
        """Remove the keys that are due, and yield what they were, many at a time."""
        entries = self._overlay.scan_index(index_stop(until_ms))
        while chunk := list(islice(entries, UPDATE_KEYS)):
            due, too_early = due_records(chunk, self._overlay.records_of_due, until_ms)
            for raw, record in too_early:
                self._put_off(raw, record)
            self._near.clear()
            self._overlay.remove_all(due.raws, due.records, due.entries)
            yield due

    def update(self, pairs: Iterable[tuple[Any, Any]], step: Callable[[Any, Any], Any]) -> None:
        """Get, step and put for many keys, faster than one by one, in their order.

        Args:
            pairs: (key, given); some are pulled before the first is stepped. Fastest if they are in
                the order of their keys: what is near is then read and written together.
            step: ``(given, value or None) -> new value``, or None to remove the key. The new value
                has no timeout. It must not change the store itself.
        """
        self._require_open()
        self._near.clear()
        rest = iter(pairs)
        while chunk := list(islice(rest, UPDATE_KEYS)):
            keys, given = map(list, zip(*chunk, strict=True))
            raws, are_plain = encode_keys(keys, self._classes)
            if are_in_order(raws):
                self._update(keys, raws, partial(map, step, given), are_plain, in_order=True)
                continue
            for part in without_repeats(raws):  # a step sees what the one before has put
                self._update(keys[part], raws[part], partial(map, step, given[part]), are_plain)

    def update_many(
        self, keys: Sequence[Any], steps: Callable[[int, Iterable[Any]], Iterable[Any]]
    ) -> None:
        """Get, step and put for many keys as :meth:`update` does; none of them is there twice.

        Args:
            steps: ``(place of the first key of some, their values or None) -> their new values``,
                of which each is written before the next one is asked for.
        """
        self._require_open()
        self._near.clear()
        for start in range(0, len(keys), UPDATE_KEYS):
            part = list(keys[start : start + UPDATE_KEYS])
            raws, are_plain = encode_keys(part, self._classes)
            self._update(part, raws, partial(steps, start), are_plain, are_in_order(raws))

    def _update(
        self,
        keys: list[Any],
        raws: list[bytes],
        steps: Callable[[Iterable[Any]], Iterable[Any]],
        are_plain: bool,
        in_order: bool = False,
    ) -> None:
        is_behind = in_order and self._overlay.follow(raws)
        before = self._overlay.records_below(raws) if is_behind else self._overlay.records(raws)
        after = self._encode_many(steps(self._decode_many(before)))
        overlay = self._overlay
        self._near.clear()  # what a step has looked at
        if are_plain and overlay.put_plain(raws, before, after, in_order):
            return
        overlay.fold()
        for key, raw, old, new in zip(keys, raws, before, after, strict=True):
            if new is not None:
                overlay.put(key, raw, old, new, None)
            elif old is not None:
                overlay.remove(raw, old)

    def commit(self) -> PartitionCommit:
        """Write the changes, durably, and end this writer.

        Whether they count is decided by who writes the commit record. A commit without changes is
        a commit.

        Raises:
            CheckpointError: they were not, or perhaps not, written. The writer is aborted.
        """
        self._require_open()
        end = "aborted"
        try:
            committed = self._commit(self._overlay.changes())
            end = "committed"
        finally:
            self._end(end)
        return committed

    def abort(self) -> None:
        """Drop all changes and end this writer, if it has not come to its end."""
        if not self._ended:
            self._end("aborted")

    def close(self) -> None:
        """Do as :meth:`abort` does."""
        self.abort()

    def _end(self, end: str) -> None:
        self._ended = end
        self._near.clear()
        self._overlay.close()

    def _put_off(self, raw: bytes, record: bytes) -> None:
        self._near.clear()
        self._overlay.put_off(raw, record)

    def _record(self, key: Any) -> bytes | None:
        """Return the record of a key, and remember it with its encoding."""
        if self._ended:
            self._require_open()
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
        if self._ended:
            self._require_open()
        try:
            known = self._near.pop(key, None)
        except TypeError:
            known = None
        return known or self._look_up(key)

    def _take_many(self, keys: list[Any]) -> tuple[list[bytes], list[bytes | None]]:
        """Return encodings and records of keys that are about to change."""
        near = self._near
        known = list(map(near.get, keys))
        if None in known:
            known = [each or self._look_up(key) for key, each in zip(keys, known, strict=True)]
        if len(keys) == len(near):
            near.clear()
        else:
            for key in keys:
                near.pop(key, None)
        if not known:
            return [], []
        raws, records = map(list, zip(*known, strict=True))
        return raws, records

    def _look_up(self, key: Any) -> tuple[bytes, bytes | None]:
        raw = encode_key(key)
        return raw, self._get(raw)


def _none_of(key: Any) -> ValueError:
    return ValueError(
        f"value None of key {key!r:.80} must be another: None is what get returns for a key that "
        "is not there; remove the key, or put a tuple that holds None"
    )
