"""The state store: Python keys and values over any :class:`StateBackend`.

Keys may be of the kinds in :mod:`checkpoint.state_store.keys`, values anything that the codec
accepts except None. Every call returns new values; changing one in place changes nothing in the
store until it is put. Any key may have a timeout: the store finds due keys, the caller removes
them.

A writer starts open. Its calls then and later:

=========== ==================== ==================== ===========
state       get, scans, put ...  commit               abort
=========== ==================== ==================== ===========
open        work                 then committed       then aborted
committed   StateStoreUseError   StateStoreUseError   no effect
aborted     StateStoreUseError   StateStoreUseError   no effect
=========== ==================== ==================== ===========

A commit that fails also aborts the writer; the next attempt opens another one. As a context manager
a writer aborts what was not committed. Neither the version nor other writers on it are affected.
The buffer contains bytes, so changing a value after it was put has no effect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import compress, islice
from operator import not_
from types import TracebackType
from typing import Any, TypeVar

from checkpoint.errors import CheckpointError
from checkpoint.log.batch_records import PartitionCommit, StoreId, VersionId
from checkpoint.state_store.backend import Changes, RawVersion, StateBackend
from checkpoint.state_store.keys import (
    EVERYTHING,
    KEYS_NAME,
    MAX_INLINE_BYTES,
    KeyRange,
    are_plain,
    decode_key,
    decode_keys,
    encode_key,
    encode_keys,
    key_range,
    prefix_range,
)
from checkpoint.state_store.records import (
    PLAIN_END,
    DueRecords,
    are_plain_records,
    due_records,
    extras_of,
    index_entries_of,
    index_stop,
    is_timed,
    require_timeouts_ms,
    split_entry,
    times_of,
)
from checkpoint.state_store.shapes import Shapes
from checkpoint.state_store.values import DataValues, ValueCodec
from checkpoint.state_store.write_buffer import WriteBuffer

_FIRST_CHUNK, _LAST_CHUNK = 8, 512
_PLAIN = {PLAIN_END}
_REMEDY = {
    "committed": "open a writer of what the commit returned",
    "aborted": "open another writer",
    "closed": "open another reader",
}
_R = TypeVar("_R", bound="StateReader")
UPDATE_KEYS = 500  # few enough for the processor's caches
_NEAR_BYTES = 1 << 20
_PARTS = (slice(0, 8), slice(8, 64), slice(64, None))  # of the keys that are read together
SPILL_BYTES = 64 << 20


class StateStoreUseError(CheckpointError, RuntimeError):
    """A reader or writer was used after it ended."""


class CodecMismatchError(CheckpointError, ValueError):
    """A version was opened with another codec or schema than it was written with."""


class StateReader:
    """One version of a store.

    After :meth:`close` every other method and every iterator raises :class:`StateStoreUseError`.
    Invalid keys raise ``TypeError`` or ``ValueError``.

    Args:
        store: the store.
        content: a version, or one with changes to it.
        values: codec of its values.
        shapes: shapes of the version.
    """

    _what = "reader"

    def __init__(
        self, store: StoreId, content: RawVersion | WriteBuffer, values: ValueCodec, shapes: Shapes
    ) -> None:
        self.store = store
        self._content = content
        self._get = content.get
        self._decode = values.decoder(shapes)
        self._decode_many = values.many_decoder(shapes)
        self._classes = values.classes
        self._version_id = content.version_id
        self.ended = ""  # then "closed", "committed" or "aborted"

    @property
    def version_id(self) -> VersionId:
        """The version that was opened."""
        return self._version_id

    def get(self, key: Any) -> Any:
        """Return the value of a key, None if it is missing."""
        record = self._record(key)
        return None if record is None else self._decode(record)

    def timeout_ms(self, key: Any) -> int | None:
        """Return when a key is due, None if never or if it is missing."""
        record = self._record(key)
        return None if record is None else extras_of(record).timeout_ms

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Iterate over (key, value), in the order of encoded keys.

        A key is returned as it was last put, or as the plainest key that equals it.
        """
        return self._scan(EVERYTHING)

    def prefix(self, prefix: Any) -> Iterator[tuple[Any, Any]]:
        """Iterate over pairs whose keys begin with *prefix*, in order.

        Args:
            prefix: str, bytes, or a tuple of the first elements.
        """
        return self._scan(prefix_range(prefix))

    def range(self, start: Any, stop: Any) -> Iterator[tuple[Any, Any]]:
        """Iterate over pairs with keys from *start* to before *stop*, in order.

        Args:
            start: int, str, bytes, date, datetime without zone, timedelta, UUID or tuple; None for
                the first key of the kind of *stop*.
            stop: of the same kind; None for the last key of the kind of *start*.
        """
        return self._scan(key_range(start, stop))

    def due(self, until_ms: int) -> Iterator[tuple[Any, Any, int]]:
        """Iterate over (key, value, timeout in ms) of the keys that are due before *until_ms*.

        They are found without a scan. They are in the order of the timeouts with which they entered
        the index, so a repeated run has the same order.
        """
        self._require_open()
        return self._due(until_ms)

    def count(self) -> int:
        """Return the number of keys."""
        self._require_open()
        return self._content.count()

    def size_bytes(self) -> int:
        """Return the approximate size of the version."""
        self._require_open()
        return self._content.size_bytes()

    def close(self) -> None:
        """Release the version. May be called again."""
        if not self.ended:
            self.ended = "closed"
            self._content.close()

    def __enter__(self: _R) -> _R:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _record(self, key: Any) -> bytes | None:
        """Return the record of a key."""
        self._require_open()
        return self._get(encode_key(key))

    def _reschedule(self, raw: bytes, record: bytes) -> None:
        """Handle an index entry that is too early; only a writer moves it."""

    def _require_open(self) -> None:
        """Raise :class:`StateStoreUseError` unless it is open."""
        if self.ended:
            store = self.store
            raise StateStoreUseError(
                f"the {self._what} of version {self.version_id.version} of store {store.store!r} "
                f"of operator {store.operator_uid!r}, partition {store.partition}, is "
                f"{self.ended}; "
                f"{_REMEDY[self.ended]}"
            )

    def _scan(self, wanted: KeyRange) -> Iterator[tuple[Any, Any]]:
        self._require_open()
        return self._decoded(self._content.scan(wanted.first, wanted.last), wanted)

    def _decoded(
        self, stream: Iterator[tuple[bytes, bytes | None]], wanted: KeyRange
    ) -> Iterator[tuple[Any, Any]]:
        """Iterate over (key, value) of a stream of records, skipping removed keys.

        Decodes several at once, but not many more than are pulled.
        """
        self._require_open()
        is_exact, decode = wanted.is_exact, self._decode
        wanted_count = _FIRST_CHUNK
        while chunk := list(islice(stream, wanted_count)):
            wanted_count = min(2 * wanted_count, _LAST_CHUNK)
            pairs = self._decoded_together(chunk) if is_exact else None
            if pairs is None:
                pairs = [
                    (self._key_of(raw, record), decode(record))
                    for raw, record in chunk
                    if record is not None
                    and (is_exact or wanted.holds(extras_of(record).whole or raw))
                ]
            for pair in pairs:
                yield pair
                if self.ended:
                    self._require_open()

    def _decoded_together(
        self, chunk: list[tuple[bytes, bytes | None]]
    ) -> Iterable[tuple[Any, Any]] | None:
        """Decode pairs that are all present, short and plain; else None."""
        raws, records = map(list, zip(*chunk, strict=True))
        try:
            ends = {record[-1] for record in records}
        except TypeError:  # None: one was removed
            return None
        if ends != _PLAIN or len(max(raws, key=len)) > MAX_INLINE_BYTES:
            return None
        return zip(decode_keys(raws, self._classes), self._decode_many(records), strict=True)

    def _key_of(self, raw: bytes, record: bytes) -> Any:
        """Return the key of a record, as it was put or as the plainest equal key."""
        if len(raw) <= MAX_INLINE_BYTES and (record[-1] == PLAIN_END or is_timed(record)):
            return decode_key(raw, self._classes)
        extras = extras_of(record)
        if extras.original is not None:
            return self._decode(extras.original)
        return decode_key(raw if extras.whole is None else extras.whole, self._classes)

    def _due(self, until_ms: int) -> Iterator[tuple[Any, Any, int]]:
        self._require_open()
        for entry in self._content.scan_index(index_stop(until_ms)):
            indexed_ms, raw = split_entry(entry)
            record = self._get(raw)
            if record is None:
                continue
            timeout_ms, entry_ms = times_of(record)
            if entry_ms != indexed_ms or timeout_ms is None:
                continue  # put again after this iteration began
            if timeout_ms < until_ms:
                yield self._key_of(raw, record), self._decode(record), timeout_ms
                self._require_open()
            else:
                self._reschedule(raw, record)


class StateWriter(StateReader):
    """A version, and changes to it that only this writer sees until they are committed.

    It reads its own changes. A store may be changed while iterating: an iterator returns the
    content from when its first pair was pulled, and an iterator of due keys skips keys that were
    put or removed meanwhile, unless they are still due.

    Args:
        store: the store.
        values: codec of its values.
        shapes: shapes of the version; new values may add to them.
        buffer: the version, and changes to it.
        commit: writes the changes.
    """

    _what = "writer"

    def __init__(
        self,
        store: StoreId,
        values: ValueCodec,
        shapes: Shapes,
        buffer: WriteBuffer,
        commit: Callable[[Iterable[Changes]], PartitionCommit],
    ) -> None:
        super().__init__(store, buffer, values, shapes)
        self._buffer = buffer
        self._commit = commit
        self._encode = values.encoder(shapes)
        self._encode_many = values.many_encoder(shapes)
        # Encodings and records of the keys read last, as a key that is read is usually put next.
        # Cleared whenever the buffer changes in another way.
        self._near: dict[Any, tuple[bytes, bytes | None]] = {}

    def get_many(self, keys: Sequence[Any]) -> list[Any]:
        """Return the values of the first of *keys*, faster than one by one.

        All of them unless they are large, and at least one. Putting or removing these keys next is
        faster, too.
        """
        self._require_open()
        raws, _ = encode_keys(list(keys))
        records: list[bytes | None] = []
        for part in _PARTS:
            records += self._buffer.records(raws[part])
            if sum(map(len, filter(None, records))) > _NEAR_BYTES:
                break
        self._near = dict(zip(keys, zip(raws, records, strict=False), strict=False))
        return list(self._decode_many(records))

    def has_many(self, keys: Sequence[Any]) -> list[bool]:
        """Return which of *keys* exist, faster than reading their values.

        Putting the missing keys next is faster, too.
        """
        self._require_open()
        near: dict[Any, tuple[bytes, bytes | None]] = {}
        self._near = near
        found: list[bool] = []
        for start in range(0, len(keys), UPDATE_KEYS):
            part = list(keys[start : start + UPDATE_KEYS])
            raws, _ = encode_keys(part)
            records = self._buffer.records(raws)
            there = [record is not None for record in records]
            found += there
            if not all(there):
                known = zip(part, zip(raws, records, strict=True), strict=True)
                near.update(compress(known, map(not_, there)))
        return found

    def put(self, key: Any, value: Any, timeout_ms: int | None = None) -> None:
        """Set the value and the timeout of a key.

        Args:
            timeout_ms: when the key is due, in ms since the epoch; None removes its timeout.

        Raises:
            TypeError: the codec rejects the value.
            ValueError: the value is None or too large, or the timeout is out of range.
        """
        raw, before = self._take(key)
        if value is None:
            raise _none_of(key)
        self._buffer.put(key, raw, before, self._encode(value), timeout_ms)

    def put_many(self, values: Mapping[Any, Any], timeouts_ms: Sequence[int] | None = None) -> None:
        """Set the values of many keys, faster than one by one.

        Raises as :meth:`put` does, possibly after some of the keys were put.

        Args:
            timeouts_ms: when each key is due, in ms since the epoch, in the order of *values*;
                None removes their timeouts.
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
            self._buffer.put_plain(raws, before, after)
            if timeouts_ms is None
            else self._buffer.put_timed(raws, before, after, timeouts_ms)
        ):
            return
        timeouts = [None] * len(keys) if timeouts_ms is None else timeouts_ms
        for key, raw, old, new, timeout_ms in zip(keys, raws, before, after, timeouts, strict=True):
            self._buffer.put(key, raw, old, new, timeout_ms)

    def remove(self, key: Any) -> None:
        """Remove a key and its timeout, if it exists."""
        raw, before = self._take(key)
        if before is not None:
            self._buffer.remove(raw, before)

    def take_due(self, until_ms: int) -> Iterator[tuple[Any, Any, int]]:
        """Remove the keys that are due before *until_ms*, and iterate as :meth:`due` does.

        Read it to the end, because many keys are removed before the first of them is yielded.
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
        """Remove the keys that are due before *until_ms*, and return their number."""
        self._require_open()
        return sum(len(due.raws) for due in self._removed_due(until_ms))

    def take_range(self, start: Any, stop: Any) -> Iterator[tuple[list[Any], Iterable[Any]]]:
        """Remove the keys from *start* to before *stop*, and iterate over (keys, values).

        Yields many keys at a time, in the order of :meth:`range`. Read it to the end.
        """
        self._require_open()
        return self._take_range(key_range(start, stop))

    def _take_range(self, wanted: KeyRange) -> Iterator[tuple[list[Any], Iterable[Any]]]:
        for raws, records in self._removed_range(wanted):
            yield self._keys_of(raws, records), self._decode_many(records)
            self._require_open()

    def remove_range(self, start: Any, stop: Any) -> int:
        """Remove the keys from *start* to before *stop*, and return their number."""
        self._require_open()
        return sum(len(raws) for raws, _ in self._removed_range(key_range(start, stop)))

    def remove_prefix(self, prefix: Any) -> int:
        """Remove the keys that begin with *prefix*, as of :meth:`prefix`; return their number."""
        self._require_open()
        return sum(len(raws) for raws, _ in self._removed_range(prefix_range(prefix)))

    def _removed_range(self, wanted: KeyRange) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """Remove the keys of a range, and yield keys and records, many at a time."""
        found = self._buffer.scan_now(wanted.first, wanted.last)
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
                self._buffer.remove_all(raws, records, entries)
                yield raws, records

    def _removed_due(self, until_ms: int) -> Iterator[DueRecords]:
        """Remove due keys, and yield them, many at a time."""
        entries = self._buffer.scan_index(index_stop(until_ms))
        while chunk := list(islice(entries, UPDATE_KEYS)):
            due, too_early = due_records(chunk, self._buffer.records_of_due, until_ms)
            for raw, record in too_early:
                self._reschedule(raw, record)
            self._near.clear()
            self._buffer.remove_all(due.raws, due.records, due.entries)
            yield due

    def update(self, pairs: Iterable[tuple[Any, Any]], step: Callable[[Any, Any], Any]) -> None:
        """Get, step and put for many keys, faster than one by one, in their order.

        Args:
            pairs: (key, given); some are pulled before the first step. Fastest in key order, which
                reads and writes neighbouring pages together.
            step: ``(given, value or None) -> new value``, or None to remove the key. The new value
                has no timeout. The function must not change the store.
        """
        self._require_open()
        self._near.clear()
        rest = iter(pairs)
        while chunk := list(islice(rest, UPDATE_KEYS)):
            keys, given = map(list, zip(*chunk, strict=True))
            raws, are_plain = encode_keys(keys, self._classes)
            for part in _without_repeats(raws):  # a step sees the result of the previous one
                self._update(keys[part], raws[part], partial(map, step, given[part]), are_plain)

    def update_many(
        self, keys: Sequence[Any], steps: Callable[[int, Iterable[Any]], Iterable[Any]]
    ) -> None:
        """Get, step and put many distinct keys, as :meth:`update` does.

        Args:
            steps: ``(index of the first key of a part, values or None) -> new values``; each new
                value is written before the next is pulled.
        """
        self._require_open()
        self._near.clear()
        for start in range(0, len(keys), UPDATE_KEYS):
            part = list(keys[start : start + UPDATE_KEYS])
            raws, are_plain = encode_keys(part, self._classes)
            self._update(part, raws, partial(steps, start), are_plain)

    def _update(
        self,
        keys: list[Any],
        raws: list[bytes],
        steps: Callable[[Iterable[Any]], Iterable[Any]],
        are_plain: bool,
    ) -> None:
        buffer = self._buffer
        before = buffer.records(raws)
        after = self._encode_many(steps(self._decode_many(before)))
        self._near.clear()  # of keys that a step has read
        if are_plain and buffer.put_plain(raws, before, after):
            return
        for key, raw, old, new in zip(keys, raws, before, after, strict=True):
            if new is not None:
                buffer.put(key, raw, old, new, None)
            elif old is not None:
                buffer.remove(raw, old)

    def commit(self) -> PartitionCommit:
        """Write the changes, durably, and end this writer.

        The commit record decides whether they count. A commit may be empty.

        Raises:
            CheckpointError: the changes were not, or possibly not, written; the writer is aborted.
        """
        self._require_open()
        end = "aborted"
        try:
            committed = self._commit(self._buffer.changes())
            end = "committed"
        finally:
            self._end(end)
        return committed

    def abort(self) -> None:
        """Drop all changes and end this writer, unless it has ended."""
        if not self.ended:
            self._end("aborted")

    def close(self) -> None:
        """Do as :meth:`abort` does."""
        self.abort()

    def _end(self, end: str) -> None:
        self.ended = end
        self._near.clear()
        self._buffer.close()

    def _reschedule(self, raw: bytes, record: bytes) -> None:
        self._near.clear()
        self._buffer.reschedule(raw, record)

    def _record(self, key: Any) -> bytes | None:
        """Return the record of a key, and remember both."""
        if self.ended:
            self._require_open()
        near = self._near
        try:
            known = near.get(key)
        except TypeError:  # encoding the key raises a better error
            known = None
        if known is None:
            known = self._look_up(key)
            near.clear()  # they may be large
            near[key] = known
        return known[1]

    def _take(self, key: Any) -> tuple[bytes, bytes | None]:
        """Return the encoding and the record of a key that is about to change."""
        if self.ended:
            self._require_open()
        try:
            known = self._near.pop(key, None)
        except TypeError:
            known = None
        return known or self._look_up(key)

    def _take_many(self, keys: list[Any]) -> tuple[list[bytes], list[bytes | None]]:
        """Return the encodings and records of keys that are about to change."""
        near = self._near
        known = list(map(near.get, keys))
        if None in known:
            unknown = [key for key, each in zip(keys, known, strict=True) if each is None]
            encoded, _ = encode_keys(unknown)
            found = zip(encoded, self._buffer.records(encoded), strict=True)
            known = [each or next(found) for each in known]
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
        f"the value of key {key!r:.80} must not be None, which get returns for a missing key; "
        "remove the key, or put a tuple that contains None"
    )


def _without_repeats(raws: list[bytes]) -> Iterator[slice]:
    """Yield slices of a list, as long as possible, in which no key occurs twice."""
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


@dataclass(frozen=True)
class StateStore:
    """The keyed state of a stream; readers and writers open one version of it.

    >>> from checkpoint.log.batch_records import EMPTY
    >>> with store.writer(store_id, EMPTY) as writer:
    ...     writer.put("spark", 1)
    ...     committed = writer.commit()
    >>> with store.reader(store_id, committed.version_id) as reader:
    ...     reader.get("spark"), reader.count()
    (1, 1)

    Args:
        backend: storage of the versions.
        values: codec of the values.
        spill_bytes: approximate memory limit of a writer's changes; more go to disk.
        spill_directory: a directory on a local disk; None for the system's temporary directory.
        schema: the caller's description of the values, stored with the changes.
        checksums: maintain a checksum of all records, at about 0.15 us per changed record. It is
            compared before a snapshot is published and when a replica is built, so a damaged
            replica is detected before it spreads.
    """

    backend: StateBackend
    values: ValueCodec = field(default_factory=DataValues)
    spill_bytes: int = SPILL_BYTES
    spill_directory: str | None = None
    schema: str = ""
    checksums: bool = False

    @property
    def codec(self) -> Mapping[str, str]:
        """The encoding of keys and values, stored with the changes."""
        codec = {"keys": KEYS_NAME, "values": self.values.name}
        return {**codec, "schema": self.schema} if self.schema else codec

    def reader(self, store: StoreId, version_id: VersionId) -> StateReader:
        """Open one version for reading.

        Raises:
            CheckpointError: it is missing or damaged.
            CodecMismatchError: it was written by another codec or with another schema.
        """
        version = self._open(store, version_id)
        return StateReader(store, version, self.values, Shapes(version.codec))

    def writer(self, store: StoreId, version_id: VersionId) -> StateWriter:
        """Open one version for an attempt to create the next one.

        Raises:
            CheckpointError: it is missing or damaged.
            CodecMismatchError: it was written by another codec or with another schema.
        """
        version = self._open(store, version_id)
        try:
            shapes = Shapes(version.codec)
            buffer = WriteBuffer(
                version, self.values, shapes, self.spill_bytes, self.spill_directory, self.checksums
            )
            return StateWriter(
                store,
                self.values,
                shapes,
                buffer,
                lambda changes: self.backend.commit(
                    store, version_id, changes, {**self.codec, **shapes.to_codec()}
                ),
            )
        except BaseException:
            version.close()
            raise

    def _open(self, store: StoreId, version_id: VersionId) -> RawVersion:
        version = self.backend.open(store, version_id)
        try:
            self._require_codec(store, version)
        except BaseException:
            version.close()
            raise
        return version

    def _require_codec(self, store: StoreId, version: RawVersion) -> None:
        for what, wanted in self.codec.items():
            found = version.codec.get(what, wanted)
            # A list of classes may follow the name of the codec.
            if found != wanted and (what != "values" or found.split()[0] != wanted.split()[0]):
                raise CodecMismatchError(
                    f"{what} of store {store.store!r} of operator {store.operator_uid!r}, "
                    f"partition {store.partition}, version {version.version_id.version}, were "
                    f"written as {found!r}, got {wanted!r}; open it as it was written, or start a "
                    "new store"
                )
